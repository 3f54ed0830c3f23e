"""`telemetry`: what observing adds to a request: off, sampled out, 1 % sampled, all sampled.

A request is a whole turn: 4,096 reused tokens, 512 new ones. What is looked for are a few µs, so the
four caches take turns with every request, and a request's cost is CPU time of its thread, as a mean
of all: one sampled request among a hundred would not show in a median. Metrics are off. Spans go to
an exporter that keeps nothing, whose thread is not counted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
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
from .pace import Figures

PAGE = 16
MODEL = "FULL+SWA+MAMBA"
PREFIX = 4096
NEW_TOKENS = 512
SHARES = {"sampled out": 0.0, "1 % sampled": 0.01, "all sampled": 1.0}
_REQUESTS = 1000
_HELD = 50
"""Requests' new tokens that the pool holds: then they evict each other."""


class Discard(SpanExporter):
    """Take spans and keep nothing: what is measured is the library and the SDK."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Throw them away."""
        return SpanExportResult.SUCCESS


class Subject:
    """A cache with one kind of telemetry, and the requests that it serves."""

    def __init__(self, forest: Forest, prefix: bytes) -> None:
        self._forest = forest
        self._prefix = prefix

    async def request(self) -> int:
        """Serve one; answer its nanoseconds."""
        prompt = self._prefix + self._forest.fresh(NEW_TOKENS)
        started = time.thread_time_ns()
        await self._forest.publish(prompt)
        return time.thread_time_ns() - started


async def measure(bench: Bench) -> None:
    """Measure four caches that differ in their telemetry only."""
    config = models.configure(MODEL, PAGE, PREFIX + _HELD * NEW_TOKENS, _HELD)
    providers = {name: _provider(share) for name, share in SHARES.items()}
    subjects: dict[str, Subject] = {}
    async with AsyncExitStack() as stack:
        for provider in providers.values():
            stack.callback(provider.shutdown)
        observed = {name: Telemetry(tracer_provider=made) for name, made in providers.items()}
        for name, telemetry in {"off": Telemetry(), **observed}.items():
            cache = await stack.enter_async_context(open_cache(config, telemetry=telemetry))
            forest = Forest(cache, PAGE, states=True)
            subjects[name] = Subject(forest, await forest.edge(PREFIX))
        requests = bench.scale(_REQUESTS, 3)
        samples = await bench.interleave({"all": partial(_take_turns, subjects, requests)})
    for name in subjects:
        bench.row({"telemetry": name}, "request", "µs", samples.spread("all", name))
        if name != "off":
            bench.row({"telemetry": name}, "− off", "µs", samples.spread("all", f"{name} − off"))


async def _take_turns(subjects: Mapping[str, Subject], requests: int) -> Figures:
    """Serve one request of each in turn, shuffled: who follows a sampled one finds cold caches."""
    taken = dict.fromkeys(subjects, 0)
    order, source = list(subjects), random.Random(requests)
    for _ in range(requests):
        source.shuffle(order)
        for name in order:
            taken[name] += await subjects[name].request()
    figures = {name: total / requests / 1e3 for name, total in taken.items()}
    return figures | {f"{name} − off": figures[name] - figures["off"] for name in SHARES}


def _provider(share: float) -> TracerProvider:
    made = TracerProvider(sampler=ParentBased(TraceIdRatioBased(share)))
    made.add_span_processor(BatchSpanProcessor(Discard()))
    return made
