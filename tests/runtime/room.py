"""Caches whose L1 or L2 is short of room, and copies that a test holds."""

from __future__ import annotations

import trio
import trio.testing
from banyankv import (
    CacheConfig,
    ModelSpec,
    PagedSpec,
    SnapshotSpec,
    StateTensor,
    Tier,
    TierUnavailable,
)
from trio.testing import wait_all_tasks_blocked

FULL = PagedSpec(name="full")
STATES = SnapshotSpec(states=(StateTensor("s", (1,), "float32"),))
OLD, NEW = list(range(9)), list(range(100, 109))


def config(dispatch: str, l1: dict[str, int], l2: int = 0, *, patience: float = 99) -> CacheConfig:
    """Pages of one token; components as `l1` names them."""
    kinds = {"full": FULL, "swa": PagedSpec(name="swa", rule="swa", window=2), "mamba": STATES}
    model = ModelSpec(name="m", page_size=1, components=tuple(kinds[name] for name in l1))
    lower = dict.fromkeys(l1, l2) if l2 else None
    return CacheConfig(model=model, l1=l1, l2=lower, dispatch=dispatch, room_timeout=patience)


class Copies:
    """Stands before the copies: holds those to the tiers in `held`, lets them go one by one."""

    def __init__(self) -> None:
        self.held: set[Tier] = set()
        self._waiting: list[list] = []

    async def __call__(self, source, target, moves) -> None:
        if target in self.held:
            entry = [trio.Event(), True]
            self._waiting.append(entry)
            await entry[0].wait()
            if not entry[1]:
                raise TierUnavailable("the test lets this copy fail")

    async def go(self, *, ok: bool = True) -> None:
        """Let the copy that has waited longest go."""
        entry = self._waiting.pop(0)
        entry[1] = ok
        entry[0].set()
        await wait_all_tasks_blocked()

    async def let_all_go(self) -> None:
        """Hold nothing any more."""
        self.held.clear()
        while self._waiting:
            await self.go()


async def serve(cache, tokens, *cuts: int, states: bool = False) -> int:
    """Run one turn; publish at each of `cuts` and at the end."""
    async with await cache.acquire(tokens) as lease:
        for at in (*cuts, len(tokens)):
            if at > lease.extent:
                await lease.extend(at - lease.extent)
                if states:
                    cache.pools.view("mamba")[0][lease.state()] = at
                    await lease.snapshot(at=at)
                await lease.publish(at)
        return lease.length


async def hit(cache, tokens, hits: list[int]) -> None:
    """Note how much of a prompt is reused."""
    async with await cache.acquire(tokens, deadline=99) as lease:
        hits.append(lease.length)


async def pages(cache, component: str, tier: int = 0) -> list[int]:
    """Ends of the nodes that hold payload of a component on a tier."""
    seen = (await cache.inspect()).components
    records = next(part.records for part in seen if part.name == component)
    return sorted(r.end for r in records if (r.l1, r.l2)[tier] is not None)


async def locks(cache) -> int:
    return sum(r.lock for part in (await cache.inspect()).components for r in part.records)


async def only_on_l2(cache, tokens) -> None:
    """Have a prefix that was computed once, and has left L1."""
    await serve(cache, tokens)
    await cache.settle()
    await cache.evict("full", 99)
