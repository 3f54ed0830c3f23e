"""One scene of a cache's life in which every message is sent while leases are live in every state.

    stage    prompts on L1, on L2 only, on L3 only; copies and store calls held; leases fresh, extended,
             published, partly published with appended tokens, with kept snapshots; others that wait for
             room, for a copy, for the store
    play     every verb, by leases of every state; then copies and store calls are let go, and those who
             wait are served, refused or gone
    finish   all leave: nothing is left, and the cache gets hits again

A crash is aimed at a delivery of the play. Nobody here knows of it but by `ActorCrashed`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import trio
import trio.testing
from banyankv import CacheConfig, NoCapacity, Tier, open_cache
from banyankv.actors import FaultPlan
from banyankv.runtime import messages as m

from ..driving import Gate, simulated
from ..engine import Turn, model_of
from ..history_store import Held
from .engines import Engines

PAGE, CHUNK = 2, 4
MODEL = model_of(PAGE, window=6, states=True, name="recovery")
SYSTEM = list(range(1, 9))
ON_L1 = [*SYSTEM, *range(20, 30)]
ON_L2 = [*range(40, 56)]
ON_L3 = [*range(60, 76)]
LIMIT = 600.0
"""Seconds of the virtual clock after which somebody waits for ever."""


def config(dispatch: str, *, full: bool) -> CacheConfig:
    """Tiers that are short of room, or wide."""
    l1 = {"full": 72, "swa": 60, "mamba": 16} if full else {"full": 400, "swa": 400, "mamba": 80}
    l2 = {"full": 40, "swa": 40, "mamba": 12} if full else {"full": 400, "swa": 400, "mamba": 80}
    return CacheConfig(
        model=MODEL,
        l1=l1,
        l2=l2,
        dispatch=dispatch,
        prefetch_threshold=1,
        room_timeout=60.0,
        audit_rate=20.0,
    )


@contextmanager
def quiet_world(seed: int) -> Iterator[None]:
    """A world that is the same each time: no threads, no look at the real clock."""
    logging.getLogger("banyankv").setLevel(logging.ERROR)
    with simulated(seed, CHUNK), mock.patch("banyankv.actors.life._BREATH", 1e9):
        yield


class Scene:
    """A cache with engines at work."""

    def __init__(self, engines: Engines, gate: Gate, store: Held, *, full: bool) -> None:
        self.engines = engines
        self.cache = engines.cache
        self.gate = gate
        self.store = store
        self.full = full

    # -- stage ----------------------------------------------------------------------------------------

    async def stage(self) -> None:
        """Bring leases into every state."""
        e, cache = self.engines, self.cache
        await e.serve(ON_L3, keep=(8, 12))
        await cache.settle()
        await cache.flush()
        await e.serve(ON_L2, keep=(8, 12))
        await cache.settle()
        for name in ("mamba", "swa", "full"):
            await cache.evict(name, 1 << 20)
        await e.serve(ON_L1, keep=(8, 16))
        if self.full:
            for other in range(9):
                await e.serve(range(1000 + 50 * other, 1016 + 50 * other), keep=(8,))
        await cache.settle()
        self.fresh = await e.acquire(ON_L1)
        self.extended = await e.acquire([*SYSTEM, *range(200, 212)])
        await e.extend(self.extended, 20)
        self.published = await e.acquire([*SYSTEM, *range(300, 312)])
        await e.extend(self.published, 20)
        await e.publish(self.published)
        self.twin = await e.acquire([*SYSTEM, *range(300, 312), 1, 2, 3])
        self.rival = await e.acquire([*SYSTEM, *range(200, 212), 5])  # as what `extended` publishes
        await e.extend(self.rival, 21)
        self.partly = await e.acquire([*SYSTEM, *range(400, 409)])
        await e.extend(self.partly, 17)
        await e.publish(self.partly)
        await e.generate(self.partly, 4)
        await e.publish(self.partly)
        await e.generate(self.partly, 5)
        self.keeping = await e.acquire([*range(500, 518)])
        await e.extend(self.keeping, 6, keep=True)
        await e.extend(self.keeping, 12, keep=True)
        self.idle = await e.acquire([700, 701])
        self.starved = await e.acquire([600, 601])
        self.gate.stall()
        self.store.held = ("exists", "get", "put")
        self.store.gate = trio.Event()
        hopeful = await e.acquire([610, 611], 0.0)
        e.acquires([*ON_L2, 2, 3])
        e.acquires([*ON_L3, 2, 3])
        self.leaving = [e.acquires([*ON_L2, 1]), e.acquires([*ON_L3, 1])]
        await trio.testing.wait_all_tasks_blocked()
        self.starving = e.extends(self.starved, self._too_much())
        self.leaving.append(e.extends(hopeful, self._too_much()))
        await trio.testing.wait_all_tasks_blocked()

    def _too_much(self) -> int:
        """Return tokens for which there is room only when most others have left."""
        return (self.cache.config.l1["full"] - 30) * PAGE

    # -- play -----------------------------------------------------------------------------------------

    async def play(self) -> None:
        """Do everything that can be done: with others that wait for room, and without."""
        e, cache = self.engines, self.cache
        await self._verbs(0)
        for scope in self.leaving:
            scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        self.starving.cancel()
        await trio.testing.wait_all_tasks_blocked()
        await self._verbs(1)
        e.extends(self.idle, self._too_much(), 1.0)  # refused when its time is over
        await trio.sleep(1.5)
        e.extends(self.starved, self._too_much())
        await trio.testing.wait_all_tasks_blocked()
        await e.do(lambda: cache._port.ref.ask(m.Cooled(0)))  # sent for devices only
        if self.gate.waiting:
            self.gate.let_one_go(0, ok=False)
        await trio.testing.wait_all_tasks_blocked()
        self.let_go()
        await self._quiet()
        await e.do(lambda: cache.evict("swa", 1 << 20))
        await e.serve([*ON_L1, 6])  # its state is on L1, its window on L2
        await e.do(lambda: cache.evict("mamba", 2))
        await e.do(lambda: cache.evict("swa", 1, Tier.L2))
        await e.do(lambda: cache.evict("full", 8))
        await e.do(lambda: cache.evict("full", 3, Tier.L2))
        self.gate.stall()
        await e.serve([*ON_L1, 8, 8, 8], deadline=0.0)
        await trio.testing.wait_all_tasks_blocked()
        if self.gate.waiting:  # a backup that fails
            self.gate.let_one_go(0, ok=False)
        self.let_go()
        await self._quiet()
        await e.serve([*ON_L1, 8, 8, 8], keep=(20,))  # a state that joins a node later
        e.acquires([*ON_L3, 4, 4])  # from the store, or from what is left of it above
        await self._quiet()
        await e.do(cache.flush)

    async def _verbs(self, turn: int) -> None:
        e, cache, more = self.engines, self.cache, 5000 + 100 * turn
        await e.do(lambda: cache.peek(ON_L1))
        await e.do(lambda: cache.explain(ON_L1))
        await e.do(cache.stats)
        await e.do(cache.check)
        await e.generate(self.fresh, 3)
        await e.publish(self.extended)
        await e.publish(self.rival)  # what others have published: pages are given back
        await e.generate(self.partly, 6)
        await e.publish(self.partly)
        await e.do(lambda: self.keeping.computed_room(keep=True))
        await e.publish(self.keeping, self.keeping.publishable // 2)
        await e.extend(self.keeping, 18, deadline=0.0)
        fork = await e.acquire([*ON_L1[: 13 - turn], *range(more, more + 4)], 0.0)
        await e.extend(fork, 17 - turn, deadline=0.0)
        await e.publish(fork, fork.publishable)
        await e.do(lambda: self._batch([ON_L1, [*SYSTEM, 7, 7, 7], [800, 801]]))
        await e.do(self._try)
        await self._draft(self.idle)
        await e.generate(self.twin, 4)
        await e.publish(self.twin)
        await e.release(fork)

    async def _draft(self, turn: Turn) -> None:
        """Take room for tokens that are not computed, and give it back."""
        e, extent = self.engines, len(turn.tokens)
        if not await e.extend(turn, extent, deadline=0.0):
            return

        async def room() -> None:
            if turn.lease.extent == extent:
                await turn.lease.extend(6, deadline=0.0)

        try:
            await e.do(room)
        except NoCapacity:
            return
        await e.trim(turn, extent)

    async def _batch(self, prompts: list[list[int]]) -> None:
        leases = await self.cache.acquire_batch(prompts)
        for lease, prompt in zip(leases, prompts, strict=True):
            await self.engines.release(self.engines.adopt(lease, prompt))

    async def _try(self) -> None:
        lease = self.cache.try_acquire(ON_L1)
        if lease is not None:
            await self.engines.release(self.engines.adopt(lease, ON_L1))

    def let_go(self) -> None:
        """Let copies and store calls go."""
        self.gate.let_go()
        self.store.held = ()
        self.store.gate.set()

    async def _quiet(self) -> None:
        await self.engines.do(self.cache.settle)

    # -- finish ---------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Leave: nothing is left behind, and the cache gets hits again."""
        e, cache = self.engines, self.cache
        self.let_go()
        e.verify()
        await e.do(cache.check)
        for turn in tuple(e.turns):
            if turn is not self.starved:
                await e.generate(turn, 2)
                await e.publish(turn)
                e.verify()
                await e.release(turn)
        await e.nobody_waits()
        for turn in tuple(e.turns):
            await e.release(turn)
        await self._quiet()
        await e.do(cache.check)
        again = [*range(900, 918)]
        hits = [await e.serve(again, keep=(8, 16)) for _ in range(3)]  # one may crash, and forget
        assert 16 in hits, f"the cache gets no hits any more: {hits}"
        await self._quiet()
        await e.do(cache.flush)
        stats = await e.do(cache.stats)
        busy = (stats.leases, stats.waiting, stats.in_flight, stats.due, stats.nodes)
        assert not any(busy), f"left behind: {busy}"
        for place, pools in stats.pools.items():
            for usage in pools:
                assert usage.free == usage.capacity, f"left behind on {place}: {usage}"
        await e.do(cache.check)


async def run(
    dispatch: str,
    *,
    full: bool,
    faults: FaultPlan | None = None,
    armed: Callable[[], object] | None = None,
) -> tuple[Engines, dict[str, int]]:
    """Open a cache, play the scene on it, close it; return the engines and the recoveries.

    `armed` is called between stage and play. Raises TimeoutError where somebody waits for ever.
    """
    store, gate = Held(), Gate()
    opened = open_cache(config(dispatch, full=full), store=store, before_copy=gate, faults=faults)
    with trio.move_on_after(LIMIT) as limit:
        async with opened as cache, trio.open_nursery() as nursery:
            scene = Scene(Engines(cache, nursery), gate, store, full=full)
            await scene.stage()
            if armed is not None:
                armed()
            await scene.play()
            await scene.finish()
            recoveries = (await scene.engines.do(cache.stats)).recoveries
    if limit.cancelled_caught:
        raise TimeoutError("somebody waits for ever")
    return scene.engines, recoveries
