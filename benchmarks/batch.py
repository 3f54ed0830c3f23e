"""`batch`: one scheduler step with 256 requests, acquired one by one and by the batch form."""

from __future__ import annotations

import time
from functools import partial

from ..runtime.cache import Cache, open_cache
from . import models
from .bench import Bench
from .floors import BarePath, cut
from .forest import SHORT_EDGE, Forest
from .pace import Figures, plain_us
from .results import Case

PAGE = 16
MODELS = ("FULL", "FULL+SWA+MAMBA")
REQUESTS = 256
PREFIX = 4096
NEW_TOKENS = 512


async def measure(bench: Bench) -> None:
    """Measure the acquires of one step, each of them a hit."""
    requests = bench.scale(REQUESTS, 4)
    for model in MODELS:
        config = models.configure(model, PAGE, 2 * PREFIX, states=requests + 8)
        async with open_cache(config) as cache:
            forest = Forest(cache, PAGE, states=models.has_states(model))
            prefix = await forest.chain(PREFIX)
            prompts = [prefix + forest.fresh(NEW_TOKENS) for _ in range(requests)]
            samples = await bench.interleave(
                {
                    "batch": partial(_batch, cache, prompts),
                    "one by one": partial(_step, cache, prompts),
                    "floor": partial(_floor, BarePath(cut(prefix, SHORT_EDGE), PAGE), prompts),
                }
            )
        case: Case = {"model": model, "requests": requests}
        for name in ("batch", "one by one"):
            bench.compare(case | {"by": name}, samples, name, "floor")
        ratio = samples.ratio("µs", "batch", "one by one")
        bench.row(case | {"by": "batch"}, "÷ one by one", "×", ratio)


async def _step(cache: Cache, prompts: list[bytes]) -> Figures:
    started = time.perf_counter_ns()
    leases = [await cache.acquire(prompt) for prompt in prompts]
    lasted = time.perf_counter_ns() - started
    for lease in leases:
        await lease.release()
    return {"µs": lasted / 1e3}


async def _batch(cache: Cache, prompts: list[bytes]) -> Figures:
    started = time.perf_counter_ns()
    leases = await cache.acquire_batch(prompts)
    lasted = time.perf_counter_ns() - started
    for lease in leases:
        await lease.release()
    return {"µs": lasted / 1e3}


async def _floor(path: BarePath, prompts: list[bytes]) -> Figures:
    def step() -> None:
        for prompt in prompts:
            path.walk(prompt)

    return {"µs": plain_us(1, step)}
