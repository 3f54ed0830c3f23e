"""`turns`: the multi-turn workload, whole turns through the public API.

200 sessions of 10 turns with 1,024 new tokens each, and a pool of 30 % of the working set. A turn
is acquire, extend, (snapshot,) publish and release; its time is the sum of theirs, as the peers'
harness sums its own operations.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..errors import BanyanError
from ..runtime.cache import Cache, open_cache
from ..runtime.config import CacheConfig
from ..runtime.lease import Lease
from ..spec import TOKEN_BYTES
from . import workload
from .bench import Bench
from .floors import BarePath, cut
from .models import MODELS, configure, has_states
from .pace import Contender, Figures
from .peers import SGLANG, VLLM, Peers, find
from .results import Case, Spread

PAGES = (1, 16, 64)
PEER_PAGE = 16
ORDERS = ("uniform", "rolling")
OPERATIONS = ("acquire", "extend", "snapshot", "publish", "release")
PEERED = ("FULL", "FULL+SWA+MAMBA")
_P99 = 0.99
_HIT_DIGITS = 4
"""As many as the harnesses print: equal hits are then equal rates."""


class Run:
    """One pass of the workload through a fresh cache; `hits` are the reused tokens of each turn."""

    def __init__(self, order: Sequence[int], tokens: Sequence[bytes], *, states: bool) -> None:
        self._order = order
        self._views = [memoryview(each) for each in tokens]
        self._turns = [0] * len(tokens)
        self._states = states
        self.hits: list[int] = []
        self.asked = 0
        self.times = {name: array("q") for name in OPERATIONS}

    async def through(self, cache: Cache, *, at_once: bool) -> Figures:
        """Run all turns; `at_once` acquires by `try_acquire`."""
        started = time.thread_time_ns()
        await self.more(cache, self._order, at_once=at_once)
        used = time.thread_time_ns() - started
        busy = sum(sum(times) for times in self.times.values())
        figures = {
            "turns/s": len(self._order) / busy * 1e9,
            "turns/s of CPU time": len(self._order) / used * 1e9,
            "hit rate": round(sum(self.hits) / self.asked, _HIT_DIGITS),
        }
        for name, times in self.times.items():
            if times:
                ranked = sorted(times)
                figures[name] = statistics.median(ranked) / 1e3
                figures[f"{name} p99"] = ranked[int(len(ranked) * _P99)] / 1e3
        return figures

    async def more(self, cache: Cache, order: Sequence[int], *, at_once: bool = False) -> None:
        """Run these turns after those that have been run."""
        for session in order:
            self._turns[session] += 1
            length = self._turns[session] * workload.NEW_TOKENS
            # A copy, as requests bring them: a slice of a whole bytes object is that object again.
            prompt = bytes(self._views[session][: length * TOKEN_BYTES])
            self.asked += length
            self.hits.append(await self._turn(cache, prompt, length, at_once))

    async def _turn(self, cache: Cache, prompt: bytes, length: int, at_once: bool) -> int:
        now, times = time.perf_counter_ns, self.times
        before = now()
        lease: Lease | None
        lease = cache.try_acquire(prompt) if at_once else await cache.acquire(prompt)
        acquired = now()
        if lease is None:
            raise BanyanError("try_acquire found an actor busy that nobody else uses")
        await lease.extend(length - lease.length)
        extended = now()
        snapped = extended
        if self._states:
            await lease.snapshot(at=length)
            snapped = now()
            times["snapshot"].append(snapped - extended)
        await lease.publish()
        published = now()
        await lease.release()
        released = now()
        times["acquire"].append(acquired - before)
        times["extend"].append(extended - acquired)
        times["publish"].append(published - snapped)
        times["release"].append(released - published)
        return lease.length


class Subject:
    """One model, page size and order: what a round of it is, for us and for peers."""

    def __init__(self, bench: Bench, model: str, page: int, order: str) -> None:
        sessions, turns = bench.scale(workload.SESSIONS, 6), bench.scale(workload.TURNS, 4)
        self.model, self.page = model, page
        self.kind = order
        self._order = workload.turn_order(order, sessions, turns)
        self._tokens = workload.session_tokens(sessions, turns)
        self._config: CacheConfig = configure(
            model,
            page,
            workload.pool_tokens(sessions, turns),
            workload.pool_states(sessions, turns),
        )
        self._hits: list[int] = []

    def _run(self) -> Run:
        return Run(self._order, self._tokens, states=has_states(self.model))

    async def ours(self, *, at_once: bool) -> Figures:
        """Run the workload through a fresh cache."""
        run = self._run()
        async with open_cache(self._config) as cache:
            figures = await run.through(cache, at_once=at_once)
        self._hits = run.hits
        return figures

    async def floor(self) -> Figures:
        """Compare and copy the bytes that the turns before this compared and copied."""
        edges = [cut(tokens, workload.NEW_TOKENS) for tokens in self._tokens]
        paths = [BarePath(each, self.page) for each in edges]
        turn = [0] * len(paths)
        new: dict[bytes, bytes] = {}
        busy = 0
        for session, hit in zip(self._order, self._hits, strict=True):
            turn[session] += 1
            prompt = self._tokens[session][: turn[session] * workload.NEW_TOKENS * TOKEN_BYTES]
            started = time.perf_counter_ns()
            paths[session].walk(prompt, hit // workload.NEW_TOKENS)
            edge = prompt[hit * TOKEN_BYTES :]
            new[edge[: self.page * TOKEN_BYTES]] = edge
            bytes(len(edge) // self.page)
            busy += time.perf_counter_ns() - started
        return {"turns/s": len(self._order) / busy * 1e9}

    async def bookkeeping(self) -> Figures:
        """Trace every allocation of one pass; answer what is left of them, a token and a node."""
        async with open_cache(self._config) as cache:
            tracemalloc.start()
            try:
                before, _ = tracemalloc.get_traced_memory()
                run = self._run()
                await run.through(cache, at_once=False)
                del run
                after, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            stats = await cache.stats()
        full = stats.pools["l1"][0]
        cached = (full.capacity - full.free) * self.page
        return {"token": (after - before) / cached, "node": (after - before) / stats.nodes}


async def measure(bench: Bench) -> None:
    """Measure every model, page size and order."""
    for page in (PEER_PAGE,) if bench.tiny else PAGES:
        for model in MODELS:
            for order in ORDERS:
                await _measure(bench, Subject(bench, model, page, order))


async def _measure(bench: Bench, subject: Subject) -> None:
    contenders: dict[str, Contender] = {
        "acquire": partial(subject.ours, at_once=False),
        "try_acquire": partial(subject.ours, at_once=True),
        "floor": subject.floor,
    }
    if bench.peers and subject.page == PEER_PAGE and subject.model in PEERED:
        contenders |= _peers(bench.peers, subject)
    samples = await bench.interleave(contenders)
    for name in contenders:
        case: Case = {
            "model": subject.model,
            "page": subject.page,
            "order": subject.kind,
            "by": name,
        }
        for measured in samples.measures(name):
            unit = "" if measured in ("turns/s", "turns/s of CPU time", "hit rate") else "µs"
            bench.row(case, measured, unit, samples.spread(name, measured))
        if name not in ("acquire", "try_acquire"):
            continue
        bench.row(case, "÷ floor", "×", samples.ratio("turns/s", name, "floor"))
        for peer in list(contenders)[3:]:
            bench.row(case, f"÷ {peer}", "×", samples.ratio("turns/s", name, peer))
            if peer.startswith("SGLang"):
                difference = samples.difference("hit rate", name, peer)
                bench.row(case, f"hit rate − {peer}", "", difference)
    if subject.kind == "uniform":
        case = {"model": subject.model, "page": subject.page, "order": "uniform", "by": "acquire"}
        for per, figure in (await subject.bookkeeping()).items():
            bench.row(case, f"bookkeeping a {per}", "bytes", Spread.of([figure]))


def _peers(peers: Peers, subject: Subject) -> dict[str, Contender]:
    contenders: dict[str, Contender] = {
        "SGLang Rust": partial(_sglang, peers, "rust", subject),
        "SGLang Python": partial(_sglang, peers, "python", subject),
    }
    if subject.model == "FULL" and peers.has_vllm:
        contenders["vLLM without hashing"] = partial(_vllm, peers, subject)
    return contenders


async def _sglang(peers: Peers, backend: str, subject: Subject) -> Figures:
    row = find(
        await peers.run(
            SGLANG, "replay", "--backend", backend, "--comps", subject.model,
            "--page", str(subject.page), "--trace", subject.kind, "--repeats", "1",
        ),
        op="replay",
    )  # fmt: skip
    return _figures(row, "turns_s")


async def _vllm(peers: Peers, subject: Subject) -> Figures:
    rows = await peers.run(
        VLLM, "replay", "--comps", subject.model, "--trace", subject.kind, "--repeats", "1"
    )
    return _figures(find(rows, op="replay"), "turns_s_nohash")


def _figures(row: dict[str, Any], speed: str) -> Figures:
    return {"turns/s": row[speed], "hit rate": row["hit_rate"]}
