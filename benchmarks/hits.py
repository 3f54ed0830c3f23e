"""`hits`: acquire and release of a prefix that is there, page tables included.

4,096, 32,768 and 131,072 reused tokens and 512 new ones behind them, in trees of 100 and 100,000
nodes; short edges (2,048 tokens) and one long edge. What the peers' harness does for the same is
match, indices, lock and unlock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import BanyanError
from ..runtime.cache import Cache, open_cache
from . import models
from .bench import Bench
from .floors import BarePath, cut
from .forest import SHORT_EDGE, Forest
from .pace import Contender, Figures
from .peers import SGLANG, Peers, find
from .results import Case

PAGE = 16
MODELS = ("FULL", "FULL+SWA+MAMBA")
NODES = (100, 100_000)
LENGTHS = (4096, 32_768, 131_072)
NEW_TOKENS = 512
_QUERIES = 4
_SHAPES = {"short": "chain", "long": "one"}
"""Our words for edges, and the harness's."""


class Hit:
    """One prefix to be hit, and queries that go on differently behind it."""

    def __init__(self, forest: Forest, edges: str, prefix: bytes, length: int) -> None:
        self.edges = edges
        self.length = length
        self.queries = [prefix + forest.fresh(NEW_TOKENS) for _ in range(_QUERIES)]
        self.path = BarePath(cut(prefix, SHORT_EDGE if edges == "short" else length), PAGE)


async def measure(bench: Bench) -> None:
    """Measure hits in trees of every size, ours and the peers'."""
    for model in MODELS:
        for nodes in (100,) if bench.tiny else NODES:
            await _measure(bench, model, nodes)


async def _measure(bench: Bench, model: str, nodes: int) -> None:
    room = nodes * PAGE + 2 * (max(LENGTHS) + sum(LENGTHS))
    config = models.configure(model, PAGE, room, states=nodes + 64)
    async with open_cache(config) as cache:
        forest = Forest(cache, PAGE, states=models.has_states(model))
        await forest.fill(nodes - max(LENGTHS) // SHORT_EDGE - len(LENGTHS))
        chain = await forest.chain(max(LENGTHS))
        hits = [Hit(forest, "short", chain[: length * 4], length) for length in LENGTHS]
        hits += [Hit(forest, "long", await forest.edge(length), length) for length in LENGTHS]
        components = models.paged(model)
        ours = partial(_ours, cache, components, hits, bench.scale(300, 5))
        contenders: dict[str, Contender] = {
            "ours": ours,
            "floor": partial(_floors, hits, bench.scale(300, 5)),
        }
        if bench.peers:
            contenders["SGLang Rust"] = partial(_sglang, bench.peers, model, nodes)
        samples = await bench.interleave(contenders)
    for hit in hits:
        case: Case = {
            "model": model,
            "nodes": nodes,
            "edges": f"{hit.edges} edges",
            "hit": hit.length,
        }
        measured = _name(hit.edges, hit.length)
        bench.row(case, "acquire+release", "µs", samples.spread("ours", measured))
        bench.row(case, "floor", "µs", samples.spread("floor", measured))
        bench.row(case, "÷ floor", "×", samples.ratio(measured, "ours", "floor"))
        if bench.peers:
            bench.row(case, "SGLang Rust", "µs", samples.spread("SGLang Rust", measured))
            bench.row(case, "÷ SGLang Rust", "×", samples.ratio(measured, "ours", "SGLang Rust"))


async def _ours(cache: Cache, components: tuple[str, ...], hits: list[Hit], times: int) -> Figures:
    figures: Figures = {}
    now = time.perf_counter_ns
    for hit in hits:
        taken: list[int] = []
        for number in range(times):
            query = hit.queries[number % _QUERIES]
            started = now()
            lease = await cache.acquire(query)
            for component in components:
                lease.pages(component)
            length = lease.length
            await lease.release()
            taken.append(now() - started)
            if length != hit.length:
                raise BanyanError(f"a hit of {hit.length} tokens was one of {length}")
        figures[_name(hit.edges, hit.length)] = statistics.median(taken) / 1e3
    return figures


async def _floors(hits: list[Hit], times: int) -> Figures:
    return {_name(hit.edges, hit.length): _floor(hit, times, time.perf_counter_ns) for hit in hits}


def _floor(hit: Hit, times: int, now: Callable[[], int]) -> float:
    taken: list[int] = []
    for number in range(times):
        started = now()
        hit.path.walk(hit.queries[number % _QUERIES])
        taken.append(now() - started)
    return statistics.median(taken) / 1e3


async def _sglang(peers: Peers, model: str, nodes: int) -> Figures:
    rows = await peers.run(
        SGLANG, "micro", "--backend", "rust", "--comps", model,
        "--page", str(PAGE), "--nodes", str(nodes),
    )  # fmt: skip
    return {
        _name(edges, length): _sum(rows, length, shape)
        for length in LENGTHS
        for edges, shape in _SHAPES.items()
    }


def _sum(rows: list[dict[str, Any]], length: int, shape: str) -> float:
    return sum(
        float(find(rows, op=operation, L=length, shape=shape)["median_us"])
        for operation in ("match+indices", "lock+unlock")
    )


def _name(edges: str, length: int) -> str:
    return f"{edges} {length}"
