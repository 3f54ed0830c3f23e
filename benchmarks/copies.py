"""`copies`: batches of pages between L1 and L2 by worker threads, and a prefix promoted from L2.

The floor of a batch is one plain copy of as many bytes between two torch tensors.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from ..errors import BanyanError
from ..runtime.cache import Cache, open_cache
from ..runtime.config import CacheConfig
from ..spec import ModelSpec, PagedSpec, Tier
from ..tiers.arena import HostArena
from ..tiers.copy import ThreadCopyEngine
from ..tiers.messages import Move
from ..tiers.pools import DevicePools
from .bench import Bench
from .forest import Forest
from .pace import Figures, median_us, plain_us
from .results import Case

PAGE = 16
_TIMES = 50
PREFIX = 4096
_SIZES = ((2, (16, 1024, 8192)), (512, (16, 256)))
"""Head sizes, and the pages of a batch: pages of 128 bytes and of 32 KiB."""


async def measure(bench: Bench) -> None:
    """Measure batches up and down, in order and shuffled, then whole promotions."""
    times = bench.scale(_TIMES, 3)
    for head, counts in _SIZES:
        await _batches(bench, head, counts[:1] if bench.tiny else counts, times)
    await _promotion(bench, times)


async def _batches(bench: Bench, head: int, counts: tuple[int, ...], times: int) -> None:
    model = ModelSpec(name="copies", components=(PagedSpec(name="full", head_dim=head),))
    pages = {"full": max(counts)}
    pools, arena = DevicePools(model, pages), HostArena.for_pages(model, pages)
    engine = ThreadCopyEngine(pools, arena)
    size = pools.layouts["full"].page_bytes
    for count in counts:
        down = partial(_batch, engine, count, times)
        samples = await bench.interleave(
            {
                "in order, L1 to L2": partial(down, Tier.L1, shuffled=False),
                "in order, L2 to L1": partial(down, Tier.L2, shuffled=False),
                "shuffled, L1 to L2": partial(down, Tier.L1, shuffled=True),
                "shuffled, L2 to L1": partial(down, Tier.L2, shuffled=True),
                "floor": partial(_floor, count * size, times),
            }
        )
        for order in ("in order", "shuffled"):
            for way in ("L1 to L2", "L2 to L1"):
                case: Case = {"pages": count, "page bytes": size, "order": order, "way": way}
                bench.compare(case, samples, f"{order}, {way}", "floor")
    engine.close()


async def _batch(
    engine: ThreadCopyEngine, count: int, times: int, source: Tier, *, shuffled: bool
) -> Figures:
    ids = np.arange(count, dtype=np.int32)
    there = np.random.default_rng(0).permutation(ids) if shuffled else ids
    moves = (Move("full", there.tobytes(), ids.tobytes()),)
    target = Tier.L2 if source is Tier.L1 else Tier.L1

    async def step() -> None:
        await engine.run(moves, source, target)

    return {"µs": await median_us(times, step)}


async def _floor(size: int, times: int) -> Figures:
    """Copy by one thread: torch's own threads wait for each other where others use the cores."""
    source, target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {"µs": plain_us(times, lambda: target.copy_(source))}
    finally:
        torch.set_num_threads(threads)


async def _promotion(bench: Bench, times: int) -> None:
    """Acquire a prefix that is on L2 only."""
    paged = PagedSpec(name="full", head_dim=2)
    model = ModelSpec(name="promotion", components=(paged,))
    pages = {"full": 4 * PREFIX // PAGE}
    async with open_cache(CacheConfig(model=model, l1=pages, l2=pages)) as cache:
        forest = Forest(cache, PAGE, states=False)
        prefix = await forest.edge(PREFIX)
        prompt = prefix + forest.fresh(PAGE)
        size = PREFIX * paged.token_bytes
        samples = await bench.interleave(
            {
                "ours": partial(_promote, cache, prompt, times),
                "floor": partial(_floor, size, times),
            }
        )
    bench.compare({"what": "acquire from L2", "tokens": PREFIX}, samples, "ours", "floor")


async def _promote(cache: Cache, prompt: bytes, times: int) -> Figures:
    taken: list[float] = []
    for _ in range(times):
        await cache.settle()
        await cache.evict("full", cache.config.l1["full"], Tier.L1)

        async def step() -> None:
            lease = await cache.acquire(prompt)
            await lease.release()
            if lease.hit.l2 != PREFIX:
                raise BanyanError(f"not a hit on L2: {lease.hit}")

        taken.append(await median_us(1, step))
    return {"µs": float(np.median(taken))}
