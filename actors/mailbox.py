"""The mailbox: a bounded queue with a policy for when it is full, and a control lane ahead of it."""

from __future__ import annotations

import enum
from collections import deque
from typing import Any

import msgspec

from ..errors import ConfigError, MailboxFull
from .arguments import is_whole
from .envelope import Envelope


class Policy(enum.StrEnum):
    """What a full mailbox does with one more message."""

    WAIT = "wait"
    """An ask waits for room; a tell, which never waits, is refused."""
    REFUSE = "refuse"
    """The sender gets MailboxFull."""
    DROP_OLDEST = "drop_oldest"
    """The oldest queued message becomes a dead letter."""
    COALESCE = "coalesce"
    """A message replaces the queued one with an equal `coalesce_key()`, full or not; otherwise as
    `refuse`. It takes the place at the end, so that order per sender holds."""


class MailboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages a mailbox holds per lane, and what happens to one more."""

    bound: int = 1024
    policy: Policy = Policy.WAIT

    def __post_init__(self) -> None:
        if not is_whole(self.bound, 1):
            raise ConfigError(f"a mailbox needs a bound of at least 1, not {self.bound!r}")
        if not isinstance(self.policy, Policy):
            names = ", ".join(Policy)
            raise ConfigError(f"mailbox policy {self.policy!r} is not a Policy ({names})")


class MailboxStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a mailbox has seen. Times are measured only while hops are observed."""

    depth: int
    peak: int
    waiting: int
    waits: int
    dropped: int
    waited_ns: int


class Mailbox:
    """The queue of one actor. Survives its restarts."""

    __slots__ = ("_control", "_data", "_waiting", "dropped", "peak", "spec", "waited_ns", "waits")

    def __init__(self, spec: MailboxSpec) -> None:
        self.spec = spec
        self._data: deque[Envelope] = deque()
        self._control: deque[Envelope] = deque()
        self._waiting: deque[Envelope] = deque()
        self.peak = 0
        self.waits = 0
        self.dropped = 0
        self.waited_ns = 0

    def __len__(self) -> int:
        return len(self._data) + len(self._control) + len(self._waiting)

    def __repr__(self) -> str:
        return (
            f"<Mailbox {self.spec.policy.value} {len(self._data)}/{self.spec.bound}, "
            f"{len(self._control)} control, {len(self._waiting)} waiting>"
        )

    def statistics(self) -> MailboxStatistics:
        """Tell depth and history."""
        return MailboxStatistics(
            depth=len(self._data) + len(self._control),
            peak=self.peak,
            waiting=len(self._waiting),
            waits=self.waits,
            dropped=self.dropped,
            waited_ns=self.waited_ns,
        )

    def put(self, envelope: Envelope, *, may_wait: bool, exempt: bool = False) -> Envelope | None:
        """Queue a message; answers the queued one that had to go for it, if any.

        `exempt` is for the kernel's own notices, which are bounded by what they tell of. Raises
        MailboxFull where the policy says so; then nothing has changed.
        """
        lane = self._control if envelope.control else self._data
        victim: Envelope | None = None
        if self.spec.policy is Policy.COALESCE and not exempt:
            victim = self._replaced(lane, envelope)
        if len(lane) >= self.spec.bound and not exempt:
            if self.spec.policy is Policy.WAIT and may_wait:
                self._waiting.append(envelope)
                self.waits += 1
                return None
            if self.spec.policy is not Policy.DROP_OLDEST:
                self.dropped += 1
                raise MailboxFull(
                    f"{self.spec.bound} messages are queued and the policy is "
                    f"{self.spec.policy.value}; send later or give the mailbox a higher bound"
                )
            victim = lane.popleft()
        if victim is not None:
            self.dropped += 1
        lane.append(envelope)
        self.peak = max(self.peak, len(self._data) + len(self._control))
        return victim

    def _replaced(self, lane: deque[Envelope], envelope: Envelope) -> Envelope | None:
        key = _coalesce_key(envelope)
        if key is None:
            return None
        for queued in lane:
            if _coalesce_key(queued) == key:
                lane.remove(queued)
                return queued
        return None

    def head(self) -> Envelope | None:
        """Look at the message that `take` would answer."""
        if self._control:
            return self._control[0]
        return self._data[0] if self._data else None

    def take(self) -> Envelope | None:
        """Take the next message: control first, each lane in order; moves up who waits for room."""
        if self._control:
            taken = self._control.popleft()
        elif self._data:
            taken = self._data.popleft()
        else:
            return None
        self._refill()
        return taken

    def _refill(self) -> None:
        while self._waiting:
            lane = self._control if self._waiting[0].control else self._data
            if len(lane) >= self.spec.bound:
                return
            lane.append(self._waiting.popleft())

    def withdraw(self, envelope: Envelope) -> None:
        """Take a message back that nobody has begun."""
        for lane in (self._waiting, self._control, self._data):
            if envelope in lane:
                lane.remove(envelope)
                break
        self._refill()

    def clear(self) -> list[Envelope]:
        """Empty the mailbox for good; answers what was in it, in order."""
        left = [*self._control, *self._data, *self._waiting]
        self._control.clear()
        self._data.clear()
        self._waiting.clear()
        return left


def _coalesce_key(envelope: Envelope) -> tuple[type[Any], Any] | None:
    key = getattr(envelope.msg, "coalesce_key", None)
    if key is None:
        return None
    return envelope.msg.__class__, key()
