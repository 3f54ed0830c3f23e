"""`hosts`: the same cache on trio, asyncio, asyncio on uvloop, and in a thread of its own.

A hit of 4,096 tokens, acquired and released; a whole turn behind it, with 1,024 new tokens, in a pool
that is full; and such hits in batches of 64, as a scheduler's step has them. What runs on asyncio's
loops and in a thread is measured there. A thread blocks for each answer, or polls for one.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import trio

from ..hosts import asyncio as on_asyncio
from ..hosts import threads
from ..runtime.cache import Cache, open_cache
from ..runtime.config import CacheConfig
from ..spec import TOKEN_BYTES
from . import models
from .bench import Bench
from .pace import Contender, Figures, median_us
from .results import Case
from .workload import random_tokens

PAGE = 16
MODELS = ("FULL", "FULL+SWA+MAMBA")
PREFIX = 4096
NEW_TOKENS = 1024
BATCH = 64
HIT, TURN, STEP = "hit of 4,096", "turn", f"batch of {BATCH} hits"

_SEED = 7
_ROOM = 8
"""Turns that L1 has room for behind the prefix."""


class Load:
    """What is done on every host: how often, and with which prompts."""

    def __init__(self, bench: Bench, model: str) -> None:
        self._states = models.has_states(model)
        self._times = bench.scale(200, 3)
        self._steps = bench.scale(20, 2)
        room = PREFIX + _ROOM * NEW_TOKENS
        self.config: CacheConfig = models.configure(model, PAGE, room, _ROOM + BATCH + 4)
        source = random.Random(_SEED)
        prefix = random_tokens(source, PREFIX)
        self._prefix = [prefix[: PREFIX // 2 * TOKEN_BYTES], prefix]
        self._hits = [prefix + random_tokens(source, NEW_TOKENS) for _ in range(BATCH)]
        turns = _ROOM + self._times
        self._turns = [prefix + random_tokens(source, NEW_TOKENS) for _ in range(turns)]

    async def run(self, cache: Cache) -> Figures:
        """Do it in the tasks of one host; medians in µs."""
        for prompt in self._prefix:
            await self._turn(cache, [prompt])
        turns = list(self._turns)
        return {
            HIT: await median_us(self._times, partial(_hit, cache, self._hits[0])),
            STEP: await median_us(self._steps, partial(_step, cache, self._hits)),
            TURN: await median_us(len(turns), partial(self._turn, cache, turns)),
        }

    async def _turn(self, cache: Cache, turns: list[bytes]) -> None:
        prompt = turns.pop()
        lease = await cache.acquire(prompt)
        await lease.extend(len(prompt) // TOKEN_BYTES - lease.length)
        if self._states:
            await lease.snapshot(at=lease.extent)
        await lease.publish()
        await lease.release()

    def blocking(self) -> Figures:
        """Do it from a thread that waits for each answer."""
        with threads.open_cache(self.config) as cache:
            for prompt in self._prefix:
                self._blocking_turn(cache, [prompt])
            turns, hits = list(self._turns), self._hits
            return {
                HIT: _median(self._times, lambda: cache.acquire(hits[0]).release()),
                STEP: _median(self._steps, partial(_blocking_step, cache, hits)),
                TURN: _median(len(turns), partial(self._blocking_turn, cache, turns)),
            }

    def polling(self) -> Figures:
        """Do the batches from a thread that never waits."""
        with threads.open_cache(self.config) as cache:
            for prompt in self._prefix:
                self._blocking_turn(cache, [prompt])
            return {STEP: _median(self._steps, partial(_polled_step, cache, self._hits))}

    def _blocking_turn(self, cache: threads.Cache, turns: list[bytes]) -> None:
        prompt = turns.pop()
        lease = cache.acquire(prompt)
        lease.extend(len(prompt) // TOKEN_BYTES - lease.length)
        if self._states:
            lease.snapshot(at=lease.extent)
        lease.publish()
        lease.release()


async def measure(bench: Bench) -> None:
    """Measure all hosts, in turns."""
    for model in MODELS:
        load = Load(bench, model)
        contenders: dict[str, Contender] = {
            "trio": partial(_on_trio, load),
            **{name: partial(_on_loop, load, loop) for name, loop in _loops(bench).items()},
            "thread": partial(trio.to_thread.run_sync, load.blocking),
            "thread that polls": partial(trio.to_thread.run_sync, load.polling),
        }
        samples = await bench.interleave(contenders)
        for name in contenders:
            case: Case = {"model": model, "host": name}
            for what in samples.measures(name):
                bench.row(case, what, "µs", samples.spread(name, what))
                if name != "trio":
                    bench.row(case, f"{what} ÷ trio", "×", samples.ratio(what, name, "trio"))


def _loops(bench: Bench) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    loops = {"asyncio": asyncio.new_event_loop}
    try:
        import uvloop
    except ImportError:
        bench.note("uvloop is not installed, and left out")
    else:
        loops["uvloop"] = uvloop.new_event_loop
    return loops


async def _on_trio(load: Load) -> Figures:
    async with open_cache(load.config) as cache:
        return await load.run(cache)


async def _on_loop(load: Load, loop: Callable[[], asyncio.AbstractEventLoop]) -> Figures:
    async def main() -> Figures:
        async with on_asyncio.open_cache(load.config) as cache:
            return await load.run(cache)

    def run() -> Figures:
        with asyncio.Runner(loop_factory=loop) as runner:
            return runner.run(main())

    return await trio.to_thread.run_sync(run)


async def _hit(cache: Cache, prompt: bytes) -> None:
    lease = await cache.acquire(prompt)
    await lease.release()


async def _step(cache: Cache, prompts: list[bytes]) -> None:
    for lease in await cache.acquire_batch(prompts):
        await lease.release()


def _blocking_step(cache: threads.Cache, prompts: list[bytes]) -> None:
    leases = cache.acquire_batch(prompts)
    cache.release_batch([lease for lease in leases if isinstance(lease, threads.Lease)])


def _polled_step(cache: threads.Cache, prompts: list[bytes]) -> None:
    asked = cache.submit(cache.acquire_batch, prompts)
    while not asked.poll():
        time.sleep(0)  # a step loop has other work here, and lets other threads run
    leases = [lease for lease in asked.result() if isinstance(lease, threads.Lease)]
    given_back = cache.submit(cache.release_batch, leases)
    while not given_back.poll():
        time.sleep(0)


def _median(times: int, step: Callable[[], None]) -> float:
    taken: list[int] = []
    for _ in range(times):
        started = time.perf_counter_ns()
        step()
        taken.append(time.perf_counter_ns() - started)
    return statistics.median(taken) / 1e3
