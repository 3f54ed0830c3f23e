"""`misses`: prompts that nobody has seen, whole turns, beside packing and allocating them.

The pool holds a few prompts, so every turn evicts an older one: a miss with nothing to make room
for it would be a cache that is never full. Figures are µs for 1,000 tokens.
"""

from __future__ import annotations

import random
import statistics
import time
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..errors import BanyanError
from ..runtime.cache import Cache, open_cache
from ..runtime.tokens import pack
from ..tiers.l1 import L1Tier
from ..tiers.messages import Allocate, Allocated, Free
from ..tiers.pools import DevicePools
from . import models
from .bench import Bench
from .pace import Figures
from .results import Case
from .workload import random_tokens

PAGE = 16
MODELS = ("FULL", "FULL+SWA+MAMBA")
LENGTHS = (4_000, 32_000)
_HELD = 4
"""Prompts that the pool holds."""

_PROMPTS = 40
_STATES = 8

_Prompt = NDArray[np.uint32]


class Prompts:
    """An endless supply of prompts of one length, made before they are timed."""

    def __init__(self, length: int, count: int) -> None:
        self.length = length
        self._count = count
        self._source = random.Random(length)

    def batch(self) -> list[_Prompt]:
        """Return the prompts of one round."""
        return [
            np.frombuffer(random_tokens(self._source, self.length), np.uint32)
            for _ in range(self._count)
        ]


async def measure(bench: Bench) -> None:
    """Measure each model and length."""
    for model in MODELS:
        for length in LENGTHS[:1] if bench.tiny else LENGTHS:
            await _measure(bench, model, length)


async def _measure(bench: Bench, model: str, length: int) -> None:
    prompts = Prompts(length, bench.scale(_PROMPTS, 6))
    config = models.configure(model, PAGE, _HELD * length, _STATES)
    tier = L1Tier(DevicePools(config.model, config.l1))
    want = tuple((name, length // PAGE) for name in models.paged(model))
    async with open_cache(config) as cache:
        samples = await bench.interleave(
            {
                "ours": partial(_turns, cache, prompts, states=models.has_states(model)),
                "floor": partial(_floor, tier, want, prompts),
            }
        )
    case: Case = {"model": model, "tokens": length}
    bench.row(case, "whole turn", "µs", samples.spread("ours", "µs"))
    bench.row(case, "packing and allocating", "µs", samples.spread("floor", "µs"))
    bench.row(case, "above the floor", "µs", samples.difference("µs", "ours", "floor"))


async def _turns(cache: Cache, prompts: Prompts, *, states: bool) -> Figures:
    taken: list[int] = []
    for prompt in prompts.batch():
        started = time.perf_counter_ns()
        lease = await cache.acquire(prompt)
        await lease.extend(prompts.length - lease.length)
        if states:
            await lease.snapshot(at=prompts.length)
        await lease.publish()
        await lease.release()
        taken.append(time.perf_counter_ns() - started)
        if lease.length:
            raise BanyanError("a prompt that nobody has seen was a hit")
    return {"µs": statistics.median(taken) / prompts.length}


async def _floor(tier: L1Tier, want: tuple[tuple[str, int], ...], prompts: Prompts) -> Figures:
    taken: list[int] = []
    for prompt in prompts.batch():
        started = time.perf_counter_ns()
        pack(prompt)
        got = tier.allocate(Allocate(want))
        if not isinstance(got, Allocated):
            raise BanyanError(f"the pools are too small: {got}")
        items = zip(want, got.pages, strict=True)
        tier.free(Free(tuple((name, pages, 0) for (name, _), pages in items)))
        taken.append(time.perf_counter_ns() - started)
    return {"µs": statistics.median(taken) / prompts.length}
