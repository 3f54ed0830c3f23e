"""Replay a workload through the public API and prove that every reused byte is right."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import trio

from ..errors import IntegrityError
from ..runtime.cache import Cache, open_cache
from ..runtime.config import CacheConfig
from ..spec import Namespace
from .report import AcquireTimes, Checks, ReplayResult, Sample
from .toy_engine import Tally, ToyEngine
from .workloads import Turn, Workload

SAMPLES = 400
"""Samples of one replay, about."""


class Replay:
    """One run of a workload on a cache of its own.

    `samples` fill while it runs. `on_turn` is called with the tally after each request.
    """

    def __init__(
        self,
        config: CacheConfig,
        workload: Workload,
        *,
        concurrency: int = 1,
        namespace: Namespace | None = None,
        on_turn: Callable[[Tally], None] | None = None,
    ) -> None:
        self.samples: list[Sample] = []
        self._config = config
        self._workload = workload
        self._concurrency = concurrency
        self._namespace = namespace or Namespace()
        self._on_turn = on_turn
        self._scope = trio.CancelScope()

    def stop(self) -> None:
        """Cancel the requests under way and start no more; `run` answers what was done."""
        self._scope.cancel()

    async def run(self) -> ReplayResult:
        """Run the workload; answer its figures once nothing is in flight any more.

        Where there are lower tiers, a request begins when the copies that the one before caused are
        over: what is reused then depends on the workload alone. At the end all invariants are
        checked and the cache is flushed, and any page that is not free then is a leak. Raises what
        `open_cache` raises; cancelled from outside it gives no answer.
        """
        room = self._config.l1[self._config.model.components[0].name] * (
            self._config.model.page_size
        )
        async with open_cache(self._config) as cache:
            engine = ToyEngine(cache, self._config.model, self._namespace, room)
            started = time.perf_counter()
            with self._scope:
                turns = iter(self._workload)
                async with trio.open_nursery() as nursery:
                    for _ in range(self._concurrency):
                        nursery.start_soon(self._work, cache, engine, turns)
            seconds = time.perf_counter() - started
            await cache.settle()
            return await self._result(cache, engine.tally, seconds)

    async def _work(self, cache: Cache, engine: ToyEngine, turns: Iterator[Turn]) -> None:
        every = max(1, len(self._workload) // SAMPLES)
        tally = engine.tally
        for turn in turns:
            await engine.turn(turn)
            if self._config.l2 is not None:
                await cache.settle()
            if self._on_turn is not None:
                self._on_turn(tally)
            if tally.requests % every == 0:
                self.samples.append(await self._sample(cache, tally))
            await trio.lowlevel.checkpoint()

    async def _sample(self, cache: Cache, tally: Tally) -> Sample:
        stats = await cache.stats()
        usage = {
            f"{tier} {pool.component}": (pool.capacity - pool.free) / pool.capacity
            for tier, pools in stats.pools.items()
            for pool in pools
        }
        return Sample(tally.requests, tally.tokens, tally.hit_tokens, usage)

    async def _result(self, cache: Cache, tally: Tally, seconds: float) -> ReplayResult:
        stats = await cache.stats()
        problem = tally.first_failure or await _broken(cache)
        await cache.flush()
        flushed = await cache.stats()
        leaked = sum(
            pool.capacity - pool.free for pools in flushed.pools.values() for pool in pools
        )
        hit = tally.hit_tokens
        times = np.array(tally.acquire_ns) / 1000
        p50, p99 = np.percentile(times, (50, 99)) if len(times) else (0.0, 0.0)
        return ReplayResult(
            workload=self._workload.name,
            model=self._config.model.name,
            requests=tally.requests,
            tokens=tally.tokens,
            hit_tokens=hit,
            hit_rate=hit.total / max(tally.tokens, 1),
            refused=tally.refused,
            evicted=sum(c.evicted_l1 + c.evicted_l2 for c in stats.components),
            demoted=sum(c.demoted for c in stats.components),
            promoted=sum(c.promoted for c in stats.components),
            moved_bytes=stats.moved_bytes,
            seconds=seconds,
            turns_per_second=tally.requests / seconds,
            operations_per_second=tally.operations / seconds,
            acquire_us=AcquireTimes(round(float(p50), 1), round(float(p99), 1)),
            nodes=stats.nodes,
            node_ratio=stats.nodes / max(tally.tokens, 1),
            fingerprints=Checks(tally.checked, tally.failed),
            leaked_pages=leaked,
            interrupted=self._scope.cancelled_caught,
            problem=problem,
        )


async def _broken(cache: Cache) -> str:
    """Check all invariants; name the broken one."""
    try:
        await cache.check()
    except IntegrityError as error:
        return str(error)
    return ""
