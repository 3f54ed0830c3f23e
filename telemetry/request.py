"""The root span of a request, and the one sampling decision that everything below it follows."""

from __future__ import annotations

import msgspec
from opentelemetry.trace import Span

from ..actors.observer import Trace
from .spans import mark_error


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one request went; tokens everywhere but for `acquire_ns` (nanoseconds).

    `l1`, `l2`, `l3` say where its reused tokens came from, `extent` how many had pages at the end,
    `published` how far the tree holds them. `result` is one of few words, such as `released`,
    `cancelled` or `failed`; `error` is empty or `Type: message`.
    """

    tokens: int
    session: str | None = None
    l1: int = 0
    l2: int = 0
    l3: int = 0
    extent: int = 0
    published: int = 0
    acquire_ns: int = 0
    result: str = "released"
    error: str = ""


class RequestTrace:
    """One sampled request: its root span `banyankv.request`, from `begin_request` to `finish`.

    Attributes:
        trace: what messages and facts of this request carry.

    """

    __slots__ = ("_span", "trace")

    def __init__(self, span: Span) -> None:
        context = span.get_span_context()
        self._span = span
        self.trace = Trace(
            trace_id=format(context.trace_id, "032x"),
            span_id=context.span_id,
            flags=int(context.trace_flags),  # TraceFlags cannot be journalled
        )

    def finish(self, outcome: Outcome) -> None:
        """End the root span with `outcome`; to be called once, when the lease is released."""
        self._span.set_attributes(
            {
                "gen_ai.usage.cache_read.input_tokens": outcome.l1 + outcome.l2 + outcome.l3,
                "banyankv.hit.l1": outcome.l1,
                "banyankv.hit.l2": outcome.l2,
                "banyankv.hit.l3": outcome.l3,
                "banyankv.extent": outcome.extent,
                "banyankv.published": outcome.published,
                "banyankv.outcome": outcome.result,
            }
        )
        if outcome.error:
            mark_error(self._span, outcome.error)
        self._span.end()


def begin_request(span: Span, session: str | None, tokens: int) -> RequestTrace:
    """Begin the root span, which is recording, of a request of `tokens` prompt tokens.

    `gen_ai.*` attributes are on this span only: Jaeger takes any span that has one for a call of a
    model.
    """
    span.set_attribute("gen_ai.usage.input_tokens", tokens)
    if session is not None:
        span.set_attribute("gen_ai.conversation.id", session)
        span.set_attribute("session.id", session)
    return RequestTrace(span)
