"""The logger: structlog's processors as the host has set them, the standard library's levels.

A library has no business on standard output, so events go to the standard logger `banyankv`, where
the host's handlers and levels decide; with nothing configured, only warnings are seen.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import structlog
from opentelemetry.trace import format_span_id, get_current_span

from ..actors.observer import Trace
from .request import Outcome

_standard = logging.getLogger("banyankv")


def add_trace_ids(
    _logger: Any, _method: str, event_dict: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Add `trace_id` and `span_id` of the current span, unless the event names its own.

    A structlog processor; hosts may put it into their own chain. Ids are in hexadecimal, as
    trace viewers show them.
    """
    if "trace_id" not in event_dict:
        context = get_current_span().get_span_context()
        if context.is_valid:
            event_dict["trace_id"] = format(context.trace_id, "032x")
            event_dict["span_id"] = format_span_id(context.span_id)
    return event_dict


class TracedLogger(structlog.stdlib.BoundLogger):
    """A bound logger whose every event carries trace ids, whatever processors the host has set."""

    def _process_event(
        self, method_name: str, event: str | None, event_kw: dict[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        traced = dict(add_trace_ids(self._logger, method_name, event_kw))
        return super()._process_event(method_name, event, traced)


def get_logger() -> TracedLogger:
    """Get the logger that all rooms with a say use."""
    return cast(TracedLogger, structlog.wrap_logger(_standard, wrapper_class=TracedLogger))


_logger = get_logger()


def logs_requests() -> bool:
    """Return whether requests have their line in the log: at info."""
    return _standard.isEnabledFor(logging.INFO)


def log_request(outcome: Outcome, trace: Trace | None) -> None:
    """Write a request's one line, at info; nothing is built while that level is off.

    `lookup_us` is the time from acquire to lease; the ids are the request's own if it was sampled.
    """
    if not logs_requests():
        return
    event: dict[str, str | int | float | None] = {
        "session": outcome.session,
        "tokens": outcome.tokens,
        "hit_l1": outcome.l1,
        "hit_l2": outcome.l2,
        "hit_l3": outcome.l3,
        "lookup_us": outcome.acquire_ns / 1000,
        "published": outcome.published,
        "outcome": outcome.result,
    }
    if outcome.error:
        event["error"] = outcome.error
    if trace is not None:
        event["trace_id"] = trace.trace_id
        event["span_id"] = format_span_id(trace.span_id)
    _logger.info("request", **event)


def warn_of(event: str, attributes: Mapping[str, Any], error: str) -> None:
    """Write a warning of something rare, with what there is to say of it."""
    _logger.warning(event, **attributes, error=error)


def warn_store_takes_nothing(saves: int, reason: str) -> None:
    """Write a warning: the store took nothing of that many saves in a row, the last for this reason."""
    _logger.warning("store takes nothing", saves=saves, reason=reason)


def log_audit_found(actor: str, law: str, what: str) -> None:
    """Write an error: an audit found that an invariant of the cache does not hold."""
    _logger.error("audit found", actor=actor, law=law, what=what)
