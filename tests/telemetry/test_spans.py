"""Facts become spans: names, parents, links, times, attributes, errors; or nothing at all."""

from __future__ import annotations

import enum

import msgspec
import pytest
from banyankv.actors.observer import Fact, Trace
from banyankv.spec import Tier
from banyankv.telemetry import spans
from opentelemetry import baggage, context
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import StatusCode

ROOT = Trace(trace_id="0af7651916cd43dd8448eb211c80319c", span_id=0xB7AD6B7169203331)
OTHER = Trace(trace_id="4bf92f3577b34da6a3ce929d0e0e4736", span_id=0x00F067AA0BA902B7)


class Verb(enum.StrEnum):
    GET_MANY = "get"


class AcquireDone(Fact, frozen=True, kw_only=True):
    tokens: int = 96
    length: int = 80
    joined: bool = True
    share: float = 0.5
    source: Tier = Tier.L2
    reason: str | None = None
    pages: bytes = b"\x01\x00\x00\x00"
    by_tier: tuple[int, ...] = (1, 2)


class CopyDone(Fact, frozen=True, kw_only=True):
    direction: str = "l1_l2"


class StoreCall(Fact, frozen=True, kw_only=True):
    verb: str = "get"
    keys: int = 3


class StoreRepairDone(Fact, frozen=True, kw_only=True):
    pass


@pytest.mark.parametrize(
    ("fact", "name"),
    [
        (AcquireDone(started=1, ended=2), "banyankv.acquire"),
        (CopyDone(started=1, ended=2), "banyankv.copy"),
        (StoreCall(started=1, ended=2, verb="put"), "banyankv.store.put"),
        (StoreCall(started=1, ended=2, verb=Verb.GET_MANY), "banyankv.store.get"),
        (StoreRepairDone(started=1, ended=2), "banyankv.store_repair"),
    ],
)
def test_a_class_names_its_span(fact, name):
    assert spans.span_name(fact) == name


def test_a_fact_is_a_child_of_its_request_with_its_own_times(sampled):
    sampled.telemetry.fact(AcquireDone(started=1_000, ended=5_500, trace=ROOT))
    span = sampled.span("banyankv.acquire")
    assert span.parent.span_id == ROOT.span_id
    assert span.parent.trace_id == span.context.trace_id == int(ROOT.trace_id, 16)
    assert (span.start_time, span.end_time) == (1_000, 5_500)
    assert span.status.status_code is StatusCode.UNSET
    assert span.links == ()


def test_scalar_fields_are_attributes_and_nothing_else_is(sampled):
    sampled.telemetry.fact(AcquireDone(started=1, ended=2, trace=ROOT))
    assert dict(sampled.span("banyankv.acquire").attributes) == {
        "banyankv.tokens": 96,
        "banyankv.length": 80,
        "banyankv.joined": True,
        "banyankv.share": 0.5,
        "banyankv.source": "l2",
    }


def test_no_attribute_of_the_genai_conventions_is_below_the_root(sampled):
    for fact in (AcquireDone, CopyDone, StoreCall):
        sampled.telemetry.fact(fact(started=1, ended=2, trace=ROOT))
    keys = [key for span in sampled.spans() for key in span.attributes]
    assert keys
    assert all(key.startswith("banyankv.") for key in keys)


def test_batched_work_links_to_the_other_requests(sampled):
    sampled.telemetry.fact(CopyDone(started=1, ended=2, trace=ROOT, links=(OTHER,)))
    span = sampled.span("banyankv.copy")
    assert span.parent.trace_id == int(ROOT.trace_id, 16)
    [link] = span.links
    assert link.context.trace_id == int(OTHER.trace_id, 16)
    assert link.context.span_id == OTHER.span_id


def test_an_error_has_a_type_of_few_values_and_a_full_description(sampled):
    error = "NoCapacity: pool 'full': 4 pages needed, 1 free"
    sampled.telemetry.fact(AcquireDone(started=1, ended=2, trace=ROOT, error=error))
    span = sampled.span("banyankv.acquire")
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == error
    assert span.attributes["error.type"] == "NoCapacity"


def test_the_parent_is_the_facts_own_request_not_the_one_whose_stack_it_runs_in(sampled):
    with sampled.provider.get_tracer("engine").start_as_current_span("somebody else"):
        sampled.telemetry.fact(CopyDone(started=1, ended=2, trace=ROOT))
    assert sampled.span("banyankv.copy").parent.span_id == ROOT.span_id


def test_the_context_survives_the_journal(sampled):
    request = sampled.telemetry.begin("chat-17", 96)
    written = msgspec.msgpack.encode(CopyDone(started=1, ended=2, trace=request.trace))
    sampled.telemetry.fact(msgspec.msgpack.decode(written, type=CopyDone))
    [copy] = sampled.spans()
    assert copy.parent.span_id == request.trace.span_id
    assert format(copy.context.trace_id, "032x") == request.trace.trace_id


def test_no_baggage_of_another_request_reaches_the_hosts_processors(sampled):
    seen: list[object] = []

    class Peek(SpanProcessor):
        def on_start(self, span, parent_context=None):
            seen.append(baggage.get_baggage("user", parent_context))

    sampled.provider.add_span_processor(Peek())
    token = context.attach(baggage.set_baggage("user", "somebody else"))
    try:
        sampled.telemetry.fact(CopyDone(started=1, ended=2, trace=ROOT))
    finally:
        context.detach(token)
    assert seen == [None]


@pytest.fixture
def built(monkeypatch):
    """Spy on everything that builds a part of a span."""
    calls: list[str] = []
    for name in ("span_name", "span_attributes", "_span_context", "mark_error"):
        original = getattr(spans, name)

        def spy(*args, _name=name, _original=original):
            calls.append(_name)
            return _original(*args)

        monkeypatch.setattr(spans, name, spy)
    return calls


def test_a_fact_without_a_trace_builds_nothing(sampled, built):
    sampled.telemetry.fact(AcquireDone(started=1, ended=2, error="NoCapacity"))
    sampled.telemetry.fact(CopyDone(started=1, ended=2, links=(ROOT,)))
    assert built == []
    assert sampled.spans() == ()


def test_the_spy_sees_what_a_traced_fact_builds(sampled, built):
    sampled.telemetry.fact(AcquireDone(started=1, ended=2, trace=ROOT, error="NoCapacity"))
    assert set(built) == {"span_name", "span_attributes", "_span_context", "mark_error"}


def test_a_child_that_the_sampler_declines_builds_no_attribute(sampled, built):
    unsampled = Trace(trace_id=ROOT.trace_id, span_id=ROOT.span_id, flags=0)
    sampled.telemetry.fact(AcquireDone(started=1, ended=2, trace=unsampled, error="NoCapacity"))
    assert "span_attributes" not in built
    assert "mark_error" not in built
    assert sampled.spans() == ()


def test_the_current_span_is_left_as_it_was(sampled):
    before = otel.get_current_span()
    sampled.telemetry.fact(CopyDone(started=1, ended=2, trace=ROOT))
    assert otel.get_current_span() is before
