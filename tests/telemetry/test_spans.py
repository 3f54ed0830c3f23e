"""Facts become spans: names, parents, times, attributes, errors; or nothing at all."""

from __future__ import annotations

import re
from pathlib import Path

import banyankv
import msgspec
import pytest
from banyankv import CacheConfig, StoreConfig, open_cache
from banyankv.actors.dead_letters import Reason
from banyankv.actors.observer import Fact, Trace
from banyankv.replay.presets import load_model
from banyankv.runtime.coordinator.facts import AcquireDone, EvictDone
from banyankv.telemetry import spans
from opentelemetry import baggage, context
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import StatusCode

ROOT = Trace(trace_id="0af7651916cd43dd8448eb211c80319c", span_id=0xB7AD6B7169203331)


def acquired(**more):
    fields = {"tokens": 96, "length": 80, "l1_tokens": 64, "l2_tokens": 16, "l3_tokens": 0}
    return AcquireDone(**{"started": 1, "ended": 2, **fields, **more})


def evicted(**more):
    fields = {"component": "full", "tier": "l1", "pages": 3, "nodes": 2}
    return EvictDone(**{"started": 1, "ended": 2, **fields, **more})


class Odd(Fact, frozen=True, kw_only=True):
    """Fields of the kinds that are no attributes, and an enum."""

    reason: Reason = Reason.ASKER_GONE
    share: float = 0.5
    nothing: str | None = None
    pages: bytes = b"\x01\x00\x00\x00"
    by_tier: tuple[int, ...] = (1, 2)


def test_a_class_names_its_span():
    assert spans.span_name(acquired()) == "banyankv.acquire"
    assert spans.span_name(evicted()) == "banyankv.evict"
    assert spans.span_name(Odd(started=1, ended=2)) == "banyankv.odd"


def test_a_fact_is_a_child_of_its_request_with_its_own_times(sampled):
    sampled.telemetry.fact(acquired(started=1_000, ended=5_500, trace=ROOT))
    span = sampled.span("banyankv.acquire")
    assert span.parent.span_id == ROOT.span_id
    assert span.parent.trace_id == span.context.trace_id == int(ROOT.trace_id, 16)
    assert (span.start_time, span.end_time) == (1_000, 5_500)
    assert span.status.status_code is StatusCode.UNSET


def test_scalar_fields_are_attributes_and_nothing_else_is(sampled):
    sampled.telemetry.fact(acquired(trace=ROOT))
    assert dict(sampled.span("banyankv.acquire").attributes) == {
        "banyankv.tokens": 96,
        "banyankv.length": 80,
        "banyankv.l1_tokens": 64,
        "banyankv.l2_tokens": 16,
        "banyankv.l3_tokens": 0,
    }
    sampled.telemetry.fact(Odd(started=1, ended=2, trace=ROOT))
    assert dict(sampled.span("banyankv.odd").attributes) == {
        "banyankv.reason": "asker_gone",
        "banyankv.share": 0.5,
    }


def test_no_attribute_of_the_genai_conventions_is_below_the_root(sampled):
    for fact in (acquired, evicted):
        sampled.telemetry.fact(fact(trace=ROOT))
    keys = [key for span in sampled.spans() for key in span.attributes]
    assert keys
    assert all(key.startswith("banyankv.") for key in keys)


async def test_the_spans_of_a_running_cache_are_those_that_the_docs_name(sampled, tmp_path):
    model = load_model("full")
    config = CacheConfig(
        model=model,
        l1={"full": 40},
        l2={"full": 400},
        store=StoreConfig(path=str(tmp_path), max_bytes=1 << 26),
    )
    for _ in range(2):  # the second one finds the store full
        async with open_cache(config, telemetry=sampled.telemetry) as cache:
            for prompt in ([0] * 513, [1] * 513, [0] * 513):
                async with await cache.acquire(prompt) as lease:
                    await lease.extend(len(prompt) - lease.length)
                    await lease.publish()
                await cache.settle()
    names = {span.name.removeprefix("banyankv.") for span in sampled.spans()}
    assert names == {"request", "acquire", "promote", "prefetch", "evict", "publish"}
    page = (Path(banyankv.__file__).parent / "docs" / "telemetry.md").read_text()
    [row] = re.findall(r"Below it are spans for (.+?): never", page)
    assert set(re.findall(r"`(\w+)`", row)) == names - {"request"}
    roots = {span.context.span_id for span in sampled.spans() if span.name == "banyankv.request"}
    assert all(span.parent.span_id in roots for span in sampled.spans() if span.parent)
    assert len(roots) == 6


def test_an_error_has_a_type_of_few_values_and_a_full_description(sampled):
    error = "NoCapacity: pool 'full': 4 pages needed, 1 free"
    sampled.telemetry.fact(acquired(trace=ROOT, error=error))
    span = sampled.span("banyankv.acquire")
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == error
    assert span.attributes["error.type"] == "NoCapacity"


def test_the_parent_is_the_facts_own_request_not_the_one_whose_stack_it_runs_in(sampled):
    with sampled.provider.get_tracer("engine").start_as_current_span("somebody else"):
        sampled.telemetry.fact(evicted(trace=ROOT))
    assert sampled.span("banyankv.evict").parent.span_id == ROOT.span_id


def test_the_context_survives_the_journal(sampled):
    request = sampled.telemetry.begin("chat-17", 96)
    written = msgspec.msgpack.encode(evicted(trace=request.trace))
    sampled.telemetry.fact(msgspec.msgpack.decode(written, type=EvictDone))
    [span] = sampled.spans()
    assert span.parent.span_id == request.trace.span_id
    assert format(span.context.trace_id, "032x") == request.trace.trace_id


def test_no_baggage_of_another_request_reaches_the_hosts_processors(sampled):
    seen: list[object] = []

    class Peek(SpanProcessor):
        def on_start(self, span, parent_context=None):
            seen.append(baggage.get_baggage("user", parent_context))

    sampled.provider.add_span_processor(Peek())
    token = context.attach(baggage.set_baggage("user", "somebody else"))
    try:
        sampled.telemetry.fact(evicted(trace=ROOT))
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
    sampled.telemetry.fact(acquired(error="NoCapacity"))
    sampled.telemetry.fact(evicted())
    assert built == []
    assert sampled.spans() == ()


def test_the_spy_sees_what_a_traced_fact_builds(sampled, built):
    sampled.telemetry.fact(acquired(trace=ROOT, error="NoCapacity"))
    assert set(built) == {"span_name", "span_attributes", "_span_context", "mark_error"}


def test_a_child_that_the_sampler_declines_builds_no_attribute(sampled, built):
    unsampled = Trace(trace_id=ROOT.trace_id, span_id=ROOT.span_id, flags=0)
    sampled.telemetry.fact(acquired(trace=unsampled, error="NoCapacity"))
    assert "span_attributes" not in built
    assert "mark_error" not in built
    assert sampled.spans() == ()


def test_the_current_span_is_left_as_it_was(sampled):
    before = otel.get_current_span()
    sampled.telemetry.fact(evicted(trace=ROOT))
    assert otel.get_current_span() is before
