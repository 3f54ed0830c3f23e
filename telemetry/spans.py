"""Spans from facts: what a room did for a sampled request, as a child of that request's root span.

A fact's class gives the span its name and the fact's own fields give it attributes, so that this
room needs no word of the rooms that report. `AcquireDone` becomes `banyankv.acquire`, likewise
`promote`, `prefetch`, `evict` and `publish`.
"""

from __future__ import annotations

import enum
import functools
import re

import msgspec
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from ..actors.observer import Fact, Trace

PREFIX = "banyankv."

Scalar = str | bool | int | float


class _Shape(msgspec.Struct, frozen=True):
    """What one fact class looks like as a span."""

    name: str
    attributes: tuple[tuple[str, str], ...]
    """(field, attribute key) of each field that the class has beyond `Fact`."""


@functools.cache
def _shape(kind: type[Fact]) -> _Shape:
    stem = kind.__name__.removesuffix("Done")
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", stem).lower()
    own = [field for field in kind.__struct_fields__ if field not in Fact.__struct_fields__]
    attributes = tuple((field, PREFIX + field) for field in own)
    return _Shape(name=PREFIX + name, attributes=attributes)


def span_name(fact: Fact) -> str:
    """Name the span of `fact`: its class without `Done`."""
    return _shape(type(fact)).name


def span_attributes(fact: Fact) -> dict[str, Scalar]:
    """Build the attributes of `fact`: its own scalar fields under `banyankv.`, enums by value.

    Fields that are None, bytes or collections have no attribute: token and page lists stay out.
    """
    found: dict[str, Scalar] = {}
    for field, key in _shape(type(fact)).attributes:
        value = _scalar(getattr(fact, field))
        if value is not None:
            found[key] = value
    return found


def _scalar(value: object) -> Scalar | None:
    if isinstance(value, enum.StrEnum):
        return value.value
    return value if isinstance(value, str | bool | int | float) else None


def mark_error(span: Span, error: str) -> None:
    """Give `span` the error status; `error.type` is what `error` says before its first colon.

    The type has to be of few values, so messages with sizes or paths in them stay in the status.
    """
    span.set_attribute("error.type", error.partition(":")[0])
    span.set_status(Status(StatusCode.ERROR, error))


def _span_context(trace: Trace) -> SpanContext:
    return SpanContext(
        trace_id=int(trace.trace_id, 16),
        span_id=trace.span_id,
        is_remote=False,
        trace_flags=TraceFlags(trace.flags),
    )


class SpanObserver:
    """Turns facts into spans of `tracer`; a fact without a trace costs one comparison.

    The parent comes from the fact alone: a step may run in the stack of another request, whose
    current context must not leak in. Start and end are the fact's own. Nothing is built where the
    provider's sampler says no after all.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def fact(self, fact: Fact) -> None:
        """Take one fact; one that carries no trace has no span, or one of its own where it is notable."""
        parent = Context()
        if fact.trace is not None:
            parent = set_span_in_context(NonRecordingSpan(_span_context(fact.trace)), parent)
        elif not fact.notable:
            return
        span = self._tracer.start_span(
            span_name(fact),
            context=parent,
            start_time=fact.started,
        )
        if not span.is_recording():
            return
        span.set_attributes(span_attributes(fact))
        if fact.error:
            mark_error(span, fact.error)
        span.end(end_time=fact.ended)
