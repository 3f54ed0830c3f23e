"""Providers and exporters for a process that has none, from the standard `OTEL_*` variables.

A library uses what its host has set up; this is for the command line and for small programs. The
SDK and the exporter are imported only here, and only when it is called.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

import trio
from opentelemetry import metrics, trace

from ..errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter


class ConfiguredTelemetry:
    """The providers that `configure_telemetry` has set, to be flushed and shut down at the end."""

    def __init__(self, tracers: TracerProvider | None, meters: MeterProvider | None) -> None:
        self._tracers = tracers
        self._meters = meters

    async def shutdown(self, flush_timeout: float = 10.0) -> None:
        """Export what is left, waiting at most `flush_timeout` seconds for each kind, and stop.

        Runs in a worker thread, since flushing blocks. A cancelled call returns at once and leaves
        the thread to finish. Later calls do nothing.
        """
        tracers, self._tracers = self._tracers, None
        meters, self._meters = self._meters, None

        def stop() -> None:
            for provider in (tracers, meters):
                if provider is not None:
                    provider.force_flush(timeout_millis=int(flush_timeout * 1000))
                    provider.shutdown()

        await trio.to_thread.run_sync(stop, abandon_on_cancel=True)


def configure_telemetry(service_name: str = "banyankv") -> ConfiguredTelemetry:
    """Set the global tracer and meter providers from the environment; call `shutdown` at the end.

    Reads `OTEL_SDK_DISABLED`, `OTEL_TRACES_EXPORTER` and `OTEL_METRICS_EXPORTER` (`otlp`, the
    default, `console`, or `none`, which sets no provider of that kind), and, through the SDK,
    `OTEL_EXPORTER_OTLP_*` (HTTP only), `OTEL_TRACES_SAMPLER[_ARG]`, `OTEL_BSP_*`,
    `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`, which `service_name` is the default of.

    Raises `ConfigError`, having set nothing, when a provider that it would set is already there,
    when a variable asks for what does not exist, or when an extra is missing: `telemetry`, and for
    exporting over OTLP `otlp`.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ConfiguredTelemetry(None, None)
    spans_to = _exporter("OTEL_TRACES_EXPORTER")
    metrics_to = _exporter("OTEL_METRICS_EXPORTER")
    if {spans_to, metrics_to} != {"none"}:
        _require("opentelemetry.sdk", "configuring telemetry", "telemetry")
    if "otlp" in (spans_to, metrics_to):
        _require("opentelemetry.exporter.otlp.proto.http", "exporting over OTLP", "otlp")
    if spans_to != "none" and not isinstance(
        trace.get_tracer_provider(), trace.ProxyTracerProvider
    ):
        raise _already_set("tracer")

    # Whatever can be refused is refused before the first provider is set.
    spans = _span_exporter(spans_to)
    readings = _metric_exporter(metrics_to)
    resource = _resource(service_name)
    meters = None if readings is None else _set_meters(readings, resource)
    tracers = None if spans is None else _set_tracers(spans, resource)
    return ConfiguredTelemetry(tracers, meters)


def _exporter(variable: str) -> str:
    value = os.environ.get(variable, "").strip().lower() or "otlp"
    if value not in ("otlp", "console", "none"):
        raise ConfigError(f"{variable}={value}: use otlp, console or none")
    if value == "otlp":
        signal = variable.removeprefix("OTEL_").removesuffix("_EXPORTER")
        for name in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
            protocol = os.environ.get(name, "").strip() or "http/protobuf"
            if protocol != "http/protobuf":
                raise ConfigError(f"{name}={protocol}: banyankv exports over http/protobuf only")
    return value


def _require(module: str, what: str, extra: str) -> None:
    """Refuse by `ConfigError` what needs a module that is not installed."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs an extra: pip install 'banyankv[{extra}]', "
            "or set OTEL_TRACES_EXPORTER=none and OTEL_METRICS_EXPORTER=none"
        ) from error


def _already_set(kind: str) -> ConfigError:
    return ConfigError(
        f"a {kind} provider is already set in this process, and banyankv uses it as it is: "
        f"call configure_telemetry() once, and only where nobody else sets up OpenTelemetry"
    )


def _resource(service_name: str) -> Resource:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    found = Resource.create()
    if not str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return found
    return found.merge(Resource({SERVICE_NAME: service_name}))


def _span_exporter(name: str) -> SpanExporter | None:
    if name == "none":
        return None
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _metric_exporter(name: str) -> MetricExporter | None:
    if name == "none":
        return None
    if name == "console":
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

        return ConsoleMetricExporter()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter()


def _set_meters(exporter: MetricExporter, resource: Resource) -> MeterProvider:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    provider = MeterProvider([PeriodicExportingMetricReader(exporter)], resource=resource)
    metrics.set_meter_provider(provider)
    # The API has no public question whether a meter provider is set; it keeps the first one.
    if metrics.get_meter_provider() is not provider:
        provider.shutdown()
        raise _already_set("meter")
    return provider


def _set_tracers(exporter: SpanExporter, resource: Resource) -> TracerProvider:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider
