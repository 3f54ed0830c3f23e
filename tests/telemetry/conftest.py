"""What the telemetry tests share: providers that export into memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from banyankv.telemetry import Telemetry
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler


class Recorded:
    """A provider, its exported spans, and a Telemetry that uses it."""

    def __init__(self, sampler: Sampler) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(tracer_provider=self.provider, meter_provider=self.meters)

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def span(self, name: str) -> ReadableSpan:
        [found] = [span for span in self.spans() if span.name == name]
        return found

    def metrics(self) -> dict[str, dict[tuple[tuple[str, str], ...], object]]:
        """Collect once: name -> labels -> the data point."""
        data = self.reader.get_metrics_data()
        found: dict[str, dict[tuple[tuple[str, str], ...], object]] = {}
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found[metric.name] = {
                        tuple(sorted(point.attributes.items())): point
                        for point in metric.data.data_points
                    }
        return found

    def values(self, name: str) -> dict[tuple[tuple[str, str], ...], object]:
        return {labels: point.value for labels, point in self.metrics().get(name, {}).items()}


@pytest.fixture
def sampled() -> Iterator[Recorded]:
    recorded = Recorded(ParentBased(ALWAYS_ON))
    yield recorded
    recorded.provider.shutdown()
    recorded.meters.shutdown()


@pytest.fixture
def sampled_out() -> Iterator[Recorded]:
    recorded = Recorded(ParentBased(ALWAYS_OFF))
    yield recorded
    recorded.provider.shutdown()
    recorded.meters.shutdown()
