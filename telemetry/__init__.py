"""Spans, metrics and logs of a cache, through OpenTelemetry's API and structlog.

Nothing here is needed for a cache to work, and nothing is built for a request that is not sampled.
"""

from .configure import ConfiguredTelemetry, configure_telemetry
from .facade import Telemetry
from .logs import add_trace_ids, get_logger
from .readings import CATALOGUE, Reading
from .request import Outcome, RequestTrace

__all__ = [
    "CATALOGUE",
    "ConfiguredTelemetry",
    "Outcome",
    "Reading",
    "RequestTrace",
    "Telemetry",
    "add_trace_ids",
    "configure_telemetry",
    "get_logger",
]
