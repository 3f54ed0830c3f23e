"""`telemetry`: what observing adds to a request: off, sampled out, 1 % sampled, all sampled.

A request is a whole turn: 4,096 reused tokens, 512 new ones. Its cost is CPU time of the whole
process, the SDK's exporting thread included, as a mean: a sampled request among a hundred would not
show in a median. Metrics are off. Spans go to an exporter that keeps nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from ..runtime.cache import open_cache
from ..telemetry import Telemetry
from . import models
from .bench import Bench
from .forest import Forest
from .pace import Contender, Figures

PAGE = 16
MODEL = "FULL+SWA+MAMBA"
PREFIX = 4096
NEW_TOKENS = 512
SHARES = {"sampled out": 0.0, "1 % sampled": 0.01, "all sampled": 1.0}
_REQUESTS = 300
_HELD = 50
"""Requests' new tokens that the pool holds: then they evict each other."""


class Discard(SpanExporter):
    """Take spans and keep nothing: what is measured is the library and the SDK."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Throw them away."""
        return SpanExportResult.SUCCESS


async def measure(bench: Bench) -> None:
    """Measure four caches that differ in their telemetry only."""
    requests = bench.scale(_REQUESTS, 3)
    config = models.configure(MODEL, PAGE, PREFIX + _HELD * NEW_TOKENS, _HELD)
    contenders: dict[str, Contender] = {}
    providers = {name: _provider(share) for name, share in SHARES.items()}
    async with AsyncExitStack() as stack:
        for provider in providers.values():
            stack.callback(provider.shutdown)
        observed = {name: Telemetry(tracer_provider=made) for name, made in providers.items()}
        for name, telemetry in {"off": Telemetry(), **observed}.items():
            cache = await stack.enter_async_context(open_cache(config, telemetry=telemetry))
            forest = Forest(cache, PAGE, states=True)
            prefix = await forest.edge(PREFIX)
            contenders[name] = partial(_requests, forest, prefix, requests)
        samples = await bench.interleave(contenders)
    for name in contenders:
        case = {"telemetry": name}
        bench.row({**case}, "request", "µs", samples.spread(name, "µs"))
        if name != "off":
            bench.row({**case}, "− off", "µs", samples.difference("µs", name, "off"))


def _provider(share: float) -> TracerProvider:
    made = TracerProvider(sampler=ParentBased(TraceIdRatioBased(share)))
    made.add_span_processor(BatchSpanProcessor(Discard()))
    return made


async def _requests(forest: Forest, prefix: bytes, count: int) -> Figures:
    prompts = [prefix + forest.fresh(NEW_TOKENS) for _ in range(count)]
    started = time.process_time_ns()
    for prompt in prompts:
        await forest.publish(prompt)
    return {"µs": (time.process_time_ns() - started) / count / 1e3}
