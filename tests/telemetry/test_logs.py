"""Log lines: one a request, with trace ids, through the host's settings; free when off."""

from __future__ import annotations

import logging

import pytest
import structlog
from banyankv.telemetry import Outcome, add_trace_ids, get_logger, logs
from structlog.testing import capture_logs

OUTCOME = Outcome(
    tokens=100, session="chat-17", l1=32, l2=16, l3=0, published=96, acquire_ns=41_500
)


@pytest.fixture
def at_info(caplog):
    caplog.set_level(logging.INFO, logger="banyankv")
    return caplog


def test_a_sampled_request_writes_one_line_with_its_ids(sampled, at_info):
    with capture_logs() as lines:
        request = sampled.telemetry.begin("chat-17", 100)
        sampled.telemetry.finish(request, OUTCOME)
    span = sampled.span("banyankv.request")
    assert lines == [
        {
            "event": "request",
            "log_level": "info",
            "session": "chat-17",
            "tokens": 100,
            "hit_l1": 32,
            "hit_l2": 16,
            "hit_l3": 0,
            "lookup_us": 41.5,
            "published": 96,
            "outcome": "released",
            "trace_id": format(span.context.trace_id, "032x"),
            "span_id": format(span.context.span_id, "016x"),
        }
    ]


def test_an_untraced_request_has_the_hosts_ids_or_none(sampled, sampled_out, at_info):
    with capture_logs() as lines:
        sampled_out.telemetry.finish(None, OUTCOME)
        with sampled.provider.get_tracer("engine").start_as_current_span("engine.turn") as turn:
            sampled_out.telemetry.finish(None, OUTCOME)
    bare, inside = lines
    assert "trace_id" not in bare
    assert inside["trace_id"] == format(turn.get_span_context().trace_id, "032x")


def test_an_error_is_in_the_line(sampled, at_info):
    with capture_logs() as lines:
        sampled.telemetry.finish(
            None, Outcome(tokens=1, result="failed", error="NoCapacity: pool 'full'")
        )
    [line] = lines
    assert (line["outcome"], line["error"]) == ("failed", "NoCapacity: pool 'full'")


def test_nothing_is_built_while_info_is_off(sampled, caplog, monkeypatch):
    caplog.set_level(logging.WARNING, logger="banyankv")
    monkeypatch.setattr(logs, "_logger", None)
    sampled.telemetry.finish(None, OUTCOME)
    assert caplog.records == []


def test_any_event_of_the_logger_carries_the_current_ids(sampled):
    with (
        capture_logs() as lines,
        sampled.provider.get_tracer("engine").start_as_current_span("engine.turn") as turn,
    ):
        sampled.telemetry.logger.warning("store unavailable", tier="l3")
    [line] = lines
    assert line["span_id"] == format(turn.get_span_context().span_id, "016x")
    assert line["tier"] == "l3"


def test_events_go_to_the_standard_logger_and_not_to_standard_output(at_info, capsys):
    get_logger().info("opened", pages=4)
    [record] = at_info.records
    assert record.name == "banyankv"
    assert "opened" in record.getMessage()
    assert "pages" in record.getMessage()
    assert capsys.readouterr().out == ""


def test_the_hosts_own_processors_are_used(at_info):
    before = structlog.get_config()
    try:
        structlog.configure(processors=[structlog.processors.JSONRenderer(sort_keys=True)])
        get_logger().info("opened", pages=4)
    finally:
        structlog.configure(**before)
    assert at_info.messages == ['{"event": "opened", "pages": 4}']


def test_the_processor_leaves_ids_that_an_event_names_itself(sampled):
    with sampled.provider.get_tracer("engine").start_as_current_span("engine.turn"):
        assert add_trace_ids(None, "info", {"trace_id": "mine"}) == {"trace_id": "mine"}
