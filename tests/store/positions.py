"""A cache over a store whose pages and states all hold their positions, and what tests ask of it."""

from __future__ import annotations

from collections.abc import Sequence

import trio
from banyankv import (
    Cache,
    CacheConfig,
    Lease,
    ModelSpec,
    PagedSpec,
    SnapshotSpec,
    StateTensor,
    Tier,
)
from banyankv.tiers.store.memory import MemoryStore
from banyankv.tiers.store.objects import decode

PAGE, CHUNK = 16, 256
TOKENS = list(range(4 * CHUNK + 1))


def config(
    dispatch: str, *, swa: int = 0, chunked: int = 0, states: bool = False, pages: int = 99
) -> CacheConfig:
    components: list[PagedSpec | SnapshotSpec] = [PagedSpec(name="full")]
    if swa:
        components.append(PagedSpec(name="swa", rule="swa", window=swa))
    if chunked:
        components.append(PagedSpec(name="chunked", rule="chunked", window=chunked))
    if states:
        components.append(SnapshotSpec(states=(StateTensor("s", (1,)),)))
    room = {component.name: pages for component in components}
    return CacheConfig(
        model=ModelSpec(name="m", page_size=PAGE, components=tuple(components)),
        l1=room,
        l2={name: 2 * count for name, count in room.items()},
        prefetch_threshold=PAGE,
        dispatch=dispatch,
    )


def paged(cache: Cache) -> list[str]:
    return [spec.name for spec in cache.config.model.components if isinstance(spec, PagedSpec)]


async def serve(
    cache: Cache, tokens: Sequence[int], cuts: Sequence[int], keep: Sequence[int] | None = None
) -> int:
    """Compute a prompt up to each of the cuts: every page and state holds its position.

    States are kept at all cuts, or at those of `keep`.
    """
    states = "mamba" in cache.config.l1
    async with await cache.acquire(tokens) as lease:
        positions_of(cache, lease)
        for cut in cuts:
            done = lease.extent
            if cut <= done:
                continue
            await lease.extend(cut - done)
            for name in paged(cache):
                view, start = cache.pools.view(name)[0], lease.start(name)
                for index, page in enumerate(lease.pages(name)):
                    if start + index * PAGE >= done:
                        view[page] = start + index * PAGE
            if states:
                cache.pools.view("mamba")[0][lease.state()] = cut
                if keep is None or cut in keep:
                    await lease.snapshot(at=cut)
            await lease.publish(cut)
        length = lease.length
    await cache.settle()
    return length


def positions_of(cache: Cache, lease: Lease) -> None:
    """Compare every page and state of a hit with the position for which it was handed out."""
    for name in paged(cache):
        view, start = cache.pools.view(name)[0], lease.start(name)
        for index, page in enumerate(lease.pages(name)):
            if page >= 0:
                assert set(view[page].flatten().tolist()) == {start + index * PAGE}, name
    if lease.length and "mamba" in cache.config.l1:
        assert cache.pools.view("mamba")[0][lease.state()].flatten()[0] == lease.length


async def empty(cache: Cache) -> None:
    """Nothing is held for anybody: what remains can be evicted to the last page."""
    await cache.settle()
    await cache.check()
    for tier in (Tier.L1, Tier.L2):
        for name in cache.config.l1:
            await cache.evict(name, 1000, tier)
    await cache.check()
    seen = await cache.inspect()
    for pools in seen.pools.values():
        assert all(pool.owned == 0 for pool in pools)


class Gate:
    """Holds back copies to one tier until it is open."""

    def __init__(self, target: Tier) -> None:
        self.target = target
        self.open = trio.Event()
        self.open.set()

    async def __call__(self, source: Tier, target: Tier, batch: object) -> None:
        if target is self.target:
            await self.open.wait()


def entries(store: MemoryStore) -> dict[tuple[str, int], bytes]:
    """Name the keys of a store by component and end."""
    heads = {key: decode(data)[0] for key, data in store.objects.items()}
    return {(head.component, head.end): key for key, head in heads.items()}
