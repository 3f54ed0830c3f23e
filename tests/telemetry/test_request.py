"""The root span of a request: one decision, the GenAI attributes, the outcome."""

from __future__ import annotations

import pytest
import trio
from banyankv.actors.observer import Fact
from banyankv.runtime import request_timer
from banyankv.runtime.messages import HitTokens
from banyankv.telemetry import Outcome, RequestTrace, Telemetry, facade
from opentelemetry.sdk.trace import Span
from opentelemetry.trace import NonRecordingSpan, StatusCode


class PublishDone(Fact, frozen=True, kw_only=True):
    length: int = 64


def test_a_request_is_one_root_span(sampled):
    request = sampled.telemetry.begin("chat-17", 100)
    outcome = Outcome(tokens=100, session="chat-17", l1=32, l2=16, l3=16, extent=112, published=96)
    sampled.telemetry.finish(request, outcome)
    span = sampled.span("banyankv.request")
    assert span.parent is None
    assert span.context.span_id == request.trace.span_id
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes) == {
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.cache_read.input_tokens": 64,
        "gen_ai.conversation.id": "chat-17",
        "session.id": "chat-17",
        "banyankv.hit.l1": 32,
        "banyankv.hit.l2": 16,
        "banyankv.hit.l3": 16,
        "banyankv.extent": 112,
        "banyankv.published": 96,
        "banyankv.outcome": "released",
    }


def test_what_a_request_causes_is_nested_below_it(sampled):
    request = sampled.telemetry.begin(None, 100)
    sampled.telemetry.fact(PublishDone(started=1, ended=2, trace=request.trace))
    sampled.telemetry.finish(request, Outcome(tokens=100))
    root, child = sampled.span("banyankv.request"), sampled.span("banyankv.publish")
    assert child.parent.span_id == root.context.span_id
    assert child.context.trace_id == root.context.trace_id


def test_the_callers_span_is_the_parent_and_stays_current(sampled):
    tracer = sampled.provider.get_tracer("engine")
    with tracer.start_as_current_span("engine.turn") as turn:
        request = sampled.telemetry.begin(None, 1)
        with tracer.start_as_current_span("engine.forward"):
            pass
        sampled.telemetry.finish(request, Outcome(tokens=1))
    assert sampled.span("banyankv.request").parent.span_id == turn.get_span_context().span_id
    assert sampled.span("engine.forward").parent.span_id == turn.get_span_context().span_id


async def test_concurrent_requests_keep_their_own_traces(sampled):
    async def turn(session: str, mine: trio.Event, other: trio.Event) -> None:
        request = sampled.telemetry.begin(session, 1)
        mine.set()
        await other.wait()
        sampled.telemetry.fact(PublishDone(started=1, ended=2, trace=request.trace))
        sampled.telemetry.finish(request, Outcome(tokens=1))

    first, second = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn, "a", first, second)
        nursery.start_soon(turn, "b", second, first)
    roots = [span for span in sampled.spans() if span.name == "banyankv.request"]
    children = [span for span in sampled.spans() if span.name == "banyankv.publish"]
    assert len({root.context.trace_id for root in roots}) == 2
    assert {child.parent.span_id for child in children} == {root.context.span_id for root in roots}


def test_a_failed_request_says_so(sampled):
    request = sampled.telemetry.begin(None, 9)
    error = "DeadlineExceeded: no room within 10 s"
    sampled.telemetry.finish(request, Outcome(tokens=9, result="failed", error=error))
    span = sampled.span("banyankv.request")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "DeadlineExceeded"
    assert span.attributes["banyankv.outcome"] == "failed"


@pytest.fixture
def attribute_writes(monkeypatch):
    calls: list[str] = []
    for name in ("set_attribute", "set_attributes"):
        for kind in (Span, NonRecordingSpan):
            monkeypatch.setattr(kind, name, lambda *_args, _name=name: calls.append(_name))
    return calls


def test_sampled_out_answers_none_and_builds_nothing(sampled_out, attribute_writes, monkeypatch):
    monkeypatch.setattr(RequestTrace, "__init__", lambda *_: pytest.fail("built a RequestTrace"))
    assert sampled_out.telemetry.begin("chat-17", 100) is None
    sampled_out.telemetry.finish(None, Outcome(tokens=100))
    assert attribute_writes == []
    assert sampled_out.spans() == ()


def test_the_sampler_is_asked_once_a_request(sampled_out, monkeypatch):
    asked: list[str] = []
    sampler = sampled_out.provider.sampler
    original = sampler.should_sample

    def should_sample(context, trace_id, name, *rest):
        asked.append(name)
        return original(context, trace_id, name, *rest)

    monkeypatch.setattr(sampler, "should_sample", should_sample)
    request = sampled_out.telemetry.begin("chat-17", 100)
    sampled_out.telemetry.fact(PublishDone(started=1, ended=2, trace=request))
    sampled_out.telemetry.finish(request, Outcome(tokens=100))
    assert asked == ["banyankv.request"]


def test_a_sampled_parent_decides_for_its_requests(sampled, sampled_out):
    tracer = sampled.provider.get_tracer("engine")
    with tracer.start_as_current_span("engine.turn"):
        assert sampled_out.telemetry.begin(None, 1) is not None


def test_without_a_provider_there_is_no_trace():
    assert Telemetry().begin("chat-17", 100) is None


def test_the_hosts_provider_is_found_when_it_is_set_later(sampled, monkeypatch):
    now = 100.0
    monkeypatch.setattr(facade.time, "monotonic", lambda: now)
    telemetry = Telemetry()
    assert telemetry.begin(None, 1) is None
    monkeypatch.setattr(facade, "get_tracer_provider", lambda: sampled.provider)
    monkeypatch.setattr(telemetry, "_tracer", sampled.provider.get_tracer("banyankv"))
    now += 0.011
    assert telemetry.begin(None, 1) is not None


def test_without_a_provider_no_tracer_is_called_and_no_outcome_is_made(monkeypatch):
    telemetry = Telemetry()
    monkeypatch.setattr(telemetry, "_tracer", None)
    monkeypatch.setattr(request_timer, "Outcome", None)
    recorded = []
    monkeypatch.setattr(telemetry, "record", recorded.append)
    made = request_timer.RequestTimer(telemetry, "chat-17", 100)
    made.leased()
    made.released(HitTokens(), 100, 96)
    assert len(recorded) == 1
    assert recorded[0] > 0
