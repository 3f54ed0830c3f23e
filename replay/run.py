"""Replay a workload through the public API and prove that every reused byte is right."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import trio

from ..errors import IntegrityError
from ..runtime.cache import Cache, open_cache
from ..runtime.config import CacheConfig
from ..spec import Namespace
from .admission import Admission
from .report import AcquireTimes, Checks, ReplayResult, Sample
from .toy_engine import Tally, ToyEngine
from .workloads import Workload

SAMPLES = 400
"""Samples of one replay, about."""

CONCURRENCY = 4
"""Requests under way at once where nobody says otherwise."""


class Replay:
    """One run of a workload on a cache of its own.

    With `concurrency` 1 a request begins when the one before is over, and the copies that it caused:
    what is reused then depends on the workload alone. With more, requests overlap as on a server, and
    what is reused depends on the machine's speed too. `samples` fill while it runs. `on_turn` is called
    with the tally after each request.
    """

    def __init__(
        self,
        config: CacheConfig,
        workload: Workload,
        *,
        concurrency: int = CONCURRENCY,
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
        """Cancel the requests under way and start no more; `run` returns what was done."""
        self._scope.cancel()

    async def run(self) -> ReplayResult:
        """Run the workload; return its figures once nothing is in flight any more.

        At the end all invariants are checked and the cache is flushed, and any page that is not free
        then is a leak. Raises what `open_cache` raises; cancelled from outside it returns nothing.
        """
        room = self._config.l1[self._config.model.components[0].name] * (
            self._config.model.page_size
        )
        async with open_cache(self._config) as cache:
            engine = ToyEngine(cache, self._config.model, self._namespace, room)
            started = time.perf_counter()
            admission = Admission(iter(self._workload), room, self._config.model.page_size)
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for _ in range(self._concurrency):
                        nursery.start_soon(self._work, cache, engine, admission)
            seconds = time.perf_counter() - started
            await cache.settle()
            return await self._result(cache, engine.tally, seconds)

    async def _work(self, cache: Cache, engine: ToyEngine, admission: Admission) -> None:
        """Serve requests, one after the other, until there are no more."""
        every = max(1, len(self._workload) // SAMPLES)
        tally = engine.tally
        while True:
            async with admission.next() as turn:
                if turn is None:
                    return
                await engine.turn(turn)
            if self._concurrency == 1:
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
            concurrency=self._concurrency,
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
