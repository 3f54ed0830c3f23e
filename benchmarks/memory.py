"""`memory`: bytes of bookkeeping a cached token and a node, and what a million turns leave behind.

Each figure comes from a process of its own, as the peers' do: resident bytes at their peak in the
multi-turn workload above those with the empty cache, by the tokens that are cached at the end.
"""

from __future__ import annotations

import sys
from functools import partial

import msgspec
import trio

from ..errors import BanyanError
from ..spec import PAGE_ID_BYTES, TOKEN_BYTES
from .bench import Bench
from .pace import Contender, Figures
from .peers import SGLANG, Peers, find
from .probe import Growth, LongRun, Use, Workload
from .results import Case, Spread

PAGE = 16
MODELS = ("FULL", "FULL+SWA+MAMBA")


async def measure(bench: Bench) -> None:
    """Measure memory in use for each model, then growth."""
    for model in MODELS:
        await _use(bench, model)
    await _growth(bench)


async def _use(bench: Bench, model: str) -> None:
    contenders: dict[str, Contender] = {"ours": partial(_ours, model, tiny=bench.tiny)}
    if bench.peers:
        contenders["SGLang Rust"] = partial(_sglang, bench.peers, model)
    samples = await bench.interleave(contenders)
    case: Case = {"model": model, "page": PAGE}
    paged = model.count("+") + 1 - model.count("MAMBA")
    bench.row(case, "a cached token", "bytes", samples.spread("ours", "token"))
    bench.row(case, "a node", "bytes", samples.spread("ours", "node"))
    floor = TOKEN_BYTES + paged * PAGE_ID_BYTES / PAGE
    bench.row(case, "floor: the token and its page ids", "bytes", Spread.of([floor]))
    if bench.peers:
        bench.row(case, "SGLang Rust, a token", "bytes", samples.spread("SGLang Rust", "token"))
        bench.row(case, "÷ SGLang Rust", "×", samples.ratio("token", "ours", "SGLang Rust"))


async def _ours(model: str, *, tiny: bool) -> Figures:
    use = msgspec.json.decode(await _probe(Workload(model, PAGE, tiny=tiny)), type=Use)
    return {"token": use.peak_bytes / use.tokens, "node": use.peak_bytes / use.nodes}


async def _sglang(peers: Peers, model: str) -> Figures:
    rows = await peers.run(
        SGLANG, "replay", "--backend", "rust", "--comps", model,
        "--page", str(PAGE), "--trace", "uniform", "--repeats", "1",
    )  # fmt: skip
    return {"token": float(find(rows, op="replay")["bytes_per_cached_token"])}


async def _growth(bench: Bench) -> None:
    turns = bench.scale(bench.settings.turns, 400)
    answer = await _probe(LongRun("FULL+SWA+MAMBA", PAGE, turns))
    tenth, end = msgspec.json.decode(answer, type=tuple[Growth, Growth])
    case: Case = {"model": "FULL+SWA+MAMBA", "turns": turns}
    for when, growth in (("after the first tenth", tenth), ("at the end", end)):
        bench.row(case, f"turn {when}", "µs", Spread.of([growth.turn_us]))
        bench.row(case, f"loop {when}", "µs", Spread.of([growth.loop_us]))
        bench.row(case, f"memory {when}", "bytes", Spread.of([growth.resident_bytes]))
    slowed = end.turn_us / end.loop_us / (tenth.turn_us / tenth.loop_us)
    grown = end.resident_bytes / tenth.resident_bytes
    bench.row(case, "latency, end ÷ first tenth", "×", Spread.of([slowed]))
    bench.row(case, "memory, end ÷ first tenth", "×", Spread.of([grown]))
    bench.note("latencies of the long run are in units of the interpreter loop beside them")


async def _probe(order: Workload | LongRun) -> bytes:
    """Have a fresh process measure; answer what it printed."""
    done = await trio.run_process(
        [sys.executable, "-m", "banyankv.benchmarks.probe"],
        stdin=msgspec.json.encode(order),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    if done.returncode:
        complaint = done.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
        raise BanyanError(f"the memory probe failed: {complaint[-1]}")
    return done.stdout
