"""configure_telemetry, each in a process of its own, since global providers can be set only once."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PROGRAM = """
import os, sys
import trio
from banyankv.actors.observer import Fact
from banyankv.telemetry import Outcome, Reading, Telemetry, configure_telemetry

class PublishDone(Fact, frozen=True, kw_only=True):
    length: int = 64

async def main():
    telemetry = Telemetry()
    telemetry.register_metrics(lambda: [Reading("banyankv.match.requested", 100)])
    configured = configure_telemetry({arguments})
    request = telemetry.begin("chat-17", 100)
    print("sampled" if request else "not sampled")
    if request:
        telemetry.fact(PublishDone(started=1, ended=2, trace=request.trace))
    telemetry.finish(request, Outcome(tokens=100, l1=64, acquire_ns=1000))
    await configured.shutdown()
    await configured.shutdown()

trio.run(main)
sys.stdout.flush()
os._exit(0)  # without the SDK's own flush at exit
"""

TWICE = """
from banyankv.errors import ConfigError
from banyankv.telemetry import configure_telemetry
{first}
try:
    configure_telemetry()
except ConfigError as error:
    print(error)
"""


def run(program: str, **variables: str) -> str:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**kept, "NO_PROXY": "127.0.0.1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP on loopback and decodes it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self):
        return [
            (resource.resource, span)
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def metric_names(self) -> set[str]:
        return {
            metric.name
            for request in self.metrics
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


class _Receive(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/traces":
            self.server.traces.append(ExportTraceServiceRequest.FromString(body))
        elif self.path == "/v1/metrics":
            self.server.metrics.append(ExportMetricsServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, name="collector")
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def attributes(message) -> dict[str, object]:
    return {
        item.key: getattr(item.value, item.value.WhichOneof("value")) for item in message.attributes
    }


def test_spans_and_metrics_arrive_over_otlp(collector):
    out = run(
        PROGRAM.format(arguments=""),
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint,
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
    )
    assert out == "sampled\n"
    spans = {span.name: span for _, span in collector.spans()}
    assert spans.keys() == {"banyankv.request", "banyankv.publish"}
    root, publish = spans["banyankv.request"], spans["banyankv.publish"]
    assert publish.parent_span_id == root.span_id
    assert publish.trace_id == root.trace_id
    assert (publish.start_time_unix_nano, publish.end_time_unix_nano) == (1, 2)
    assert attributes(publish) == {"banyankv.length": 64}
    assert attributes(root)["gen_ai.usage.cache_read.input_tokens"] == 64
    assert attributes(collector.spans()[0][0])["service.name"] == "banyankv"
    assert collector.metric_names() == {"banyankv.match.requested", "banyankv.acquire.duration"}


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "mine"),
        ({"OTEL_SERVICE_NAME": "theirs"}, "theirs"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs,a=b"}, "theirs"),
    ],
)
def test_the_environment_names_the_service_first(collector, variables, name):
    run(
        PROGRAM.format(arguments="service_name='mine'"),
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint,
        OTEL_METRICS_EXPORTER="none",
        **variables,
    )
    assert {attributes(resource)["service.name"] for resource, _ in collector.spans()} == {name}
    assert collector.metrics == []


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"},
        {"OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_no_spans_where_the_environment_wants_none(collector, variables):
    out = run(
        PROGRAM.format(arguments=""),
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint,
        **variables,
    )
    assert out == "not sampled\n"
    assert collector.traces == []
    assert "banyankv.match.requested" in collector.metric_names()


def test_a_disabled_sdk_exports_nothing(collector):
    out = run(
        PROGRAM.format(arguments=""),
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint,
        OTEL_SDK_DISABLED="true",
    )
    assert out == "not sampled\n"
    assert collector.traces == collector.metrics == []


def test_the_console_exporter_prints_spans():
    out = run(
        PROGRAM.format(arguments=""),
        OTEL_TRACES_EXPORTER="console",
        OTEL_METRICS_EXPORTER="none",
    )
    assert '"name": "banyankv.request"' in out


QUIET = {"OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "none"}


def test_a_second_call_is_refused():
    out = run(TWICE.format(first="configure_telemetry()"), **QUIET)
    assert out.startswith("a tracer provider is already set")


HOST_TRACES = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
"""

HOST_METERS = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
metrics.set_meter_provider(MeterProvider())
"""


@pytest.mark.parametrize(("host", "kind"), [(HOST_TRACES, "tracer"), (HOST_METERS, "meter")])
def test_a_hosts_provider_is_left_alone_and_nothing_is_set(host, kind):
    after = """
from opentelemetry import trace
print(type(trace.get_tracer_provider()).__name__)
"""
    out = run(
        TWICE.format(first=host) + after,
        OTEL_TRACES_EXPORTER="console",
        OTEL_METRICS_EXPORTER="console",
    )
    said, provider = out.splitlines()
    assert said.startswith(f"a {kind} provider is already set")
    assert provider == ("TracerProvider" if kind == "tracer" else "ProxyTracerProvider")


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"OTEL_TRACES_EXPORTER": "jaeger"}, "OTEL_TRACES_EXPORTER=jaeger"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=grpc",
        ),
    ],
)
def test_what_does_not_exist_is_refused_by_name(variables, says):
    assert run(TWICE.format(first=""), **variables).startswith(says)


@pytest.mark.parametrize("signal", ["TRACES", "METRICS"])
def test_a_missing_extra_is_named(signal):
    without = "import sys; sys.modules['opentelemetry.exporter.otlp.proto.http'] = None"
    other = "METRICS" if signal == "TRACES" else "TRACES"
    out = run(TWICE.format(first=without), **{f"OTEL_{other}_EXPORTER": "none"})
    assert "pip install 'banyankv[otlp]'" in out
    assert f"OTEL_{signal}_EXPORTER=none" in out


def test_without_the_sdk_its_extra_is_named():
    without = "import sys; sys.modules['opentelemetry.sdk'] = None"
    out = run(TWICE.format(first=without), OTEL_TRACES_EXPORTER="console")
    assert "pip install 'banyankv[telemetry]'" in out


def test_the_sdk_is_not_imported_before_it_is_asked_for():
    out = run(
        "import sys, banyankv.telemetry; "
        "print([m for m in sys.modules if m.startswith('opentelemetry.sdk')])"
    )
    assert out == "[]\n"
