"""`store`: objects written to and read from the embedded L3 store, and a prefix fetched from it.

Objects are put and got 64 at a time; figures are µs an object. The floor is one plain copy of an
object's bytes in memory.
"""

from __future__ import annotations

import secrets
import statistics
import tempfile
from functools import partial
from pathlib import Path

from ..errors import BanyanError
from ..runtime.cache import Cache, open_cache
from ..runtime.config import CacheConfig, StoreConfig
from ..spec import ModelSpec, PagedSpec
from ..tiers.store.keys import KEY_BYTES
from ..tiers.store.lmdb_store import LmdbStore
from .bench import Bench
from .forest import Forest
from .pace import Figures, median_us, plain_us
from .results import Case

PAGE = 16
PREFIX = 4096
SIZES = (2048, 65_536, 1 << 20)
_OBJECTS = 64
_ROOM = 1 << 30
_TIMES = 10


async def measure(bench: Bench) -> None:
    """Measure the store's verbs, then whole fetches through a cache."""
    with tempfile.TemporaryDirectory(prefix="banyankv-bench-") as folder:
        store = await LmdbStore.open(Path(folder) / "verbs", _ROOM)
        try:
            for size in SIZES[:1] if bench.tiny else SIZES:
                await _verbs(bench, store, size)
        finally:
            await store.aclose()
        await _fetches(bench, Path(folder) / "fetches")


async def _verbs(bench: Bench, store: LmdbStore, size: int) -> None:
    times = bench.scale(_TIMES, 2)
    items = [(secrets.token_bytes(KEY_BYTES), secrets.token_bytes(size)) for _ in range(_OBJECTS)]
    samples = await bench.interleave(
        {
            "put": partial(_put, store, items, times),
            "get": partial(_get, store, [key for key, _ in items], times),
            "floor": partial(_floor, items[0][1], times),
        }
    )
    for verb in ("put", "get"):
        bench.compare({"verb": verb, "bytes": size}, samples, verb, "floor")


async def _put(store: LmdbStore, items: list[tuple[bytes, bytes]], times: int) -> Figures:
    async def step() -> None:
        if not all(await store.put(items)):
            raise BanyanError("the store refused an object")

    return {"µs": await median_us(times, step) / len(items)}


async def _get(store: LmdbStore, keys: list[bytes], times: int) -> Figures:
    async def step() -> None:
        if not all(await store.get(keys)):
            raise BanyanError("the store lost an object")

    return {"µs": await median_us(times, step) / len(keys)}


async def _floor(data: bytes, times: int) -> Figures:
    return {"µs": plain_us(times, partial(bytearray, data))}


async def _fetches(bench: Bench, folder: Path) -> None:
    """Acquire a prefix that is in the store only."""
    paged = PagedSpec(name="full", head_dim=2)
    pages = {"full": 4 * PREFIX // PAGE}
    config = CacheConfig(
        model=ModelSpec(name="fetches", components=(paged,)),
        l1=pages,
        l2=pages,
        store=StoreConfig(path=str(folder), max_bytes=_ROOM),
    )
    async with open_cache(config) as cache:
        forest = Forest(cache, PAGE, states=False)
        prompt = await forest.edge(PREFIX) + forest.fresh(PAGE)
        samples = await bench.interleave(
            {
                "ours": partial(_fetch, cache, prompt, bench.scale(_TIMES, 2)),
                "floor": partial(_floor, bytes(PREFIX * paged.token_bytes), _TIMES),
            }
        )
    case: Case = {"what": "acquire from L3", "tokens": PREFIX}
    bench.compare(case, samples, "ours", "floor")


async def _fetch(cache: Cache, prompt: bytes, times: int) -> Figures:
    async def step() -> None:
        lease = await cache.acquire(prompt)
        await lease.release()
        if lease.hit.l3 != PREFIX:
            raise BanyanError(f"not a hit on L3: {lease.hit}")

    taken: list[float] = []
    for _ in range(times):
        await cache.settle()
        await cache.flush()
        taken.append(await median_us(1, step))
    return {"µs": statistics.median(taken)}
