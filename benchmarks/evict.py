"""`evict`: one leaf of one page, at 1,000 and at 100,000 leaves.

Each eviction is a call of the public API. The trees are filled up again between rounds, and the
two sizes take turns, so that their ratio says whether a step grows with the cache.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
import time
from contextlib import AsyncExitStack
from functools import partial

from ..errors import BanyanError
from ..runtime.cache import Cache, open_cache
from . import models
from .bench import Bench
from .forest import Forest
from .pace import Contender, Figures
from .peers import SGLANG, Peers, find
from .results import Case

PAGE = 16
MODELS = ("FULL", "FULL+SWA+MAMBA")
LEAVES = (1_000, 100_000)
PEER_NODES = 100_000
_EVICTIONS = 100


class Tree:
    """A cache with so many leaves, of which a round evicts some and puts as many back."""

    def __init__(self, cache: Cache, forest: Forest, evictions: int) -> None:
        self._cache = cache
        self._forest = forest
        self._evictions = evictions

    async def evict(self) -> Figures:
        """Evict one leaf at a time; the median in µs."""
        taken: list[int] = []
        for _ in range(self._evictions):
            started = time.perf_counter_ns()
            report = await self._cache.evict("full", 1)
            taken.append(time.perf_counter_ns() - started)
            if report.nodes != 1:
                raise BanyanError(f"one page was {report.nodes} leaves")
        await self._forest.leaves(self._evictions)
        return {"µs": statistics.median(taken) / 1e3}


async def measure(bench: Bench) -> None:
    """Measure both sizes for each model."""
    for model in MODELS:
        await _measure(bench, model)


async def _measure(bench: Bench, model: str) -> None:
    sizes = (20, 60) if bench.tiny else LEAVES
    evictions = bench.scale(_EVICTIONS, 5)
    contenders: dict[str, Contender] = {}
    async with AsyncExitStack() as stack:
        for leaves in sizes:
            room = 4 * (leaves + evictions)
            config = models.configure(model, PAGE, room * PAGE, states=room)
            cache = await stack.enter_async_context(open_cache(config))
            forest = Forest(cache, PAGE, states=models.has_states(model))
            await forest.fill(leaves)
            contenders[f"{leaves}"] = Tree(cache, forest, evictions).evict
            contenders[f"floor {leaves}"] = partial(_floor, leaves, evictions)
        if bench.peers:
            contenders["SGLang Rust"] = partial(_sglang, bench.peers, model)
        samples = await bench.interleave(contenders)
    small, large = sizes
    for leaves in sizes:
        case: Case = {"model": model, "leaves": leaves}
        bench.row(case, "one leaf", "µs", samples.spread(f"{leaves}", "µs"))
        bench.row(case, "floor", "µs", samples.spread(f"floor {leaves}", "µs"))
        bench.row(case, "÷ floor", "×", samples.ratio("µs", f"{leaves}", f"floor {leaves}"))
    case = {"model": model, "leaves": large}
    bench.row(case, "÷ fewest leaves", "×", samples.ratio("µs", f"{large}", f"{small}"))
    if bench.peers:
        bench.row(case, "SGLang Rust", "µs", samples.spread("SGLang Rust", "µs"))
        bench.row(case, "÷ SGLang Rust", "×", samples.ratio("µs", f"{large}", "SGLang Rust"))


async def _floor(leaves: int, evictions: int) -> Figures:
    """Take the least of a heap, and a dictionary's entry, and put others in their place."""
    heap = [(number, 0, number) for number in range(leaves)]
    nodes = dict.fromkeys(range(leaves))
    fresh = itertools.count(leaves)
    taken: list[int] = []
    for _ in range(evictions):
        number = next(fresh)
        started = time.perf_counter_ns()
        del nodes[heapq.heappop(heap)[0]]
        taken.append(time.perf_counter_ns() - started)
        heapq.heappush(heap, (number, 0, number))
        nodes[number] = None
    return {"µs": statistics.median(taken) / 1e3}


async def _sglang(peers: Peers, model: str) -> Figures:
    rows = await peers.run(
        SGLANG, "micro", "--backend", "rust", "--comps", model,
        "--page", str(PAGE), "--nodes", str(PEER_NODES),
    )  # fmt: skip
    return {"µs": float(find(rows, op="evict1pages")["median_us"])}
