"""`publish`: 512 new tokens under 4,096 that the tree has, and the same again by a second request.

The second finds every page there: its own are given back and its page table points to the first's.
"""

from __future__ import annotations

import statistics
import time
from functools import partial

from ..errors import BanyanError
from ..runtime.cache import open_cache
from ..spec import TOKEN_BYTES
from . import models
from .bench import Bench
from .forest import Forest
from .pace import Contender, Figures, plain_us
from .peers import SGLANG, Peers, find
from .results import Case

PAGE = 16
MODELS = ("FULL", "FULL+SWA+MAMBA")
PREFIX = 4096
NEW_TOKENS = 512
_TIMES = 100
_PEER_NODES = 100


async def measure(bench: Bench) -> None:
    """Measure both for each model."""
    for model in MODELS:
        await _measure(bench, model)


async def _measure(bench: Bench, model: str) -> None:
    times = bench.scale(_TIMES, 4)
    room = 2 * (PREFIX + (times + 2) * NEW_TOKENS)
    async with open_cache(models.configure(model, PAGE, room, states=4 * times + 16)) as cache:
        forest = Forest(cache, PAGE, states=models.has_states(model))
        prefix = await forest.edge(PREFIX)
        contenders: dict[str, Contender] = {
            "new": partial(_ours, forest, prefix, times, twice=False),
            "there already": partial(_ours, forest, prefix, times, twice=True),
            "floor": partial(_floor, prefix + forest.fresh(NEW_TOKENS), times),
        }
        if bench.peers:
            contenders["SGLang Rust"] = partial(_sglang, bench.peers, model)
        samples = await bench.interleave(contenders)
    for what in ("new", "there already"):
        case: Case = {"model": model, "tokens": what}
        bench.compare(case, samples, what, "floor")
    if bench.peers:
        case = {"model": model, "tokens": "new"}
        bench.row(case, "SGLang Rust", "µs", samples.spread("SGLang Rust", "µs"))
        bench.row(case, "÷ SGLang Rust", "×", samples.ratio("µs", "new", "SGLang Rust"))


async def _ours(forest: Forest, prefix: bytes, times: int, *, twice: bool) -> Figures:
    taken: list[int] = []
    for _ in range(times):
        prompt = prefix + forest.fresh(NEW_TOKENS)
        leases = [await forest.prepare(prompt) for _ in range(1 + twice)]
        lasted = 0  # of the last one is what counts
        for lease in leases:
            started = time.perf_counter_ns()
            reached = await lease.publish()
            lasted = time.perf_counter_ns() - started
            if reached != PREFIX + NEW_TOKENS:
                raise BanyanError(f"published {reached} tokens")
        taken.append(lasted)
        for lease in leases:
            await lease.release()
    return {"µs": statistics.median(taken) / 1e3}


async def _floor(prompt: bytes, times: int) -> Figures:
    """Cut the new edge out, put it under its first page, and copy its page ids."""
    children: dict[bytes, bytes] = {}
    ids = bytearray(NEW_TOKENS // PAGE * TOKEN_BYTES)

    def step() -> None:
        edge = prompt[PREFIX * TOKEN_BYTES :]
        children[edge[: PAGE * TOKEN_BYTES]] = edge
        bytes(ids)

    return {"µs": plain_us(times, step)}


async def _sglang(peers: Peers, model: str) -> Figures:
    rows = await peers.run(
        SGLANG, "micro", "--backend", "rust", "--comps", model,
        "--page", str(PAGE), "--nodes", str(_PEER_NODES),
    )  # fmt: skip
    return {"µs": float(find(rows, op="insert512@4k")["median_us"])}
