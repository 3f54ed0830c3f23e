"""What the actors report: typed facts, to whoever subscribed.

Rooms below `telemetry/` know no exporter. They hand frozen structs to the system's observer; a fact
carries the trace it belongs to as plain integers, so that it can be journalled like any message.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import msgspec


class Trace(msgspec.Struct, frozen=True, gc=False):
    """The W3C trace context of a sampled request: ids as in `traceparent`, never of an unsampled one.

    An operation whose request was not sampled has no Trace at all (None), so that nothing is built.
    `trace_id` is the 128-bit id as 32 hexadecimal digits, because msgpack integers end at 64 bits.
    """

    trace_id: str
    span_id: int
    flags: int = 1


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something that happened in a room; each room subclasses it beside the actor that reports it.

    `started` and `ended` are nanoseconds of `time.time_ns()`; `trace` is the request it was done for,
    None where that is not sampled, or for work that served no one request. A `notable` one is rare and
    tells of trouble: it is worth a span of its own and a warning in the log, whoever is sampled.
    """

    notable: ClassVar[bool] = False

    started: int
    ended: int
    trace: Trace | None = None
    error: str = ""


class Hop(msgspec.Struct, frozen=True, gc=False):
    """One message handled by one actor: who, what, how, and how long (nanoseconds)."""

    sender: str
    receiver: str
    message: str
    via: str  # "direct" | "mailbox"
    waited_ns: int
    handled_ns: int
    outcome: str  # "ok" | "refused" | "crashed" | "deferred"


class Observer(Protocol):
    """Hears of facts and hops. Called inside steps: must be quick, must not raise, must not wait."""

    hops: bool
    """Whether `hop` is wanted at all: building one costs more than a direct step."""

    def fact(self, fact: Fact) -> None:
        """Take one fact."""

    def hop(self, hop: Hop) -> None:
        """Take one hop; called only while `hops` is true."""
