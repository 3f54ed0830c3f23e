"""`banyankv replay TRACE`: replay a workload through a cache and compare every reused byte."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import trio
from cyclopts import Group, Parameter
from rich.console import Console
from rich.table import Table

from ..components.policies import POLICIES
from ..errors import ConfigError
from ..replay.presets import load_model
from ..replay.report import ReplayResult
from ..replay.run import CONCURRENCY, Replay
from ..replay.workloads import Workload, open_workload
from ..runtime.config import CacheConfig
from ..telemetry import configure_telemetry
from .output import INTERRUPTED, WRONG, require_writable, say, write_json
from .plots import draw_replay, require_picture, require_plotting, save_figure
from .progress import show_progress
from .sizes import convert_bytes
from .tiers import TierOptions

_ROOM = Group("Room", sort_key=1)
_RUN = Group("Run", sort_key=2)
_RESULTS = Group("Results", sort_key=3)


def replay(
    trace: Annotated[str, Parameter(allow_leading_hyphen=False)],
    /,
    *,
    model: Annotated[str, Parameter(group=_RUN)] = "full",
    page_size: Annotated[int | None, Parameter(group=_RUN)] = None,
    limit: Annotated[int | None, Parameter(group=_RUN)] = None,
    concurrency: Annotated[int, Parameter(group=_RUN)] = CONCURRENCY,
    policy: Annotated[str, Parameter(group=_RUN)] = "lru",
    l1_tokens: Annotated[int, Parameter(group=_ROOM)] = 262_144,
    l2_tokens: Annotated[int, Parameter(group=_ROOM)] = 1_048_576,
    store: Annotated[Path | None, Parameter(group=_ROOM)] = None,
    store_bytes: Annotated[
        int, Parameter(group=_ROOM, converter=convert_bytes, show_default=lambda _: "1GiB")
    ] = 2**30,
    json: Annotated[Path | None, Parameter(group=_RESULTS)] = None,
    plot: Annotated[Path | None, Parameter(group=_RESULTS)] = None,
) -> int:
    """Replay a workload through a cache and compare every reused byte.

    Requests overlap, as on a server. With `--concurrency 1` they run one after the other, each when
    the copies that the one before caused are over: hits then depend on the workload alone.
    Only prompts are published, because a trace does not tell the answers. Ctrl-C stops, says what
    was done and leaves a store that can be used.

    Parameters
    ----------
    trace
        A trace file (Mooncake, LMCache, tau-bench or MT-bench; plain or gzipped), or
        `generated:multi-turn`, `generated:shared-prompt`, `generated:scattered`, with parameters
        as in `generated:multi-turn:sessions=20,turns=10,new=1024,seed=0`.
    model
        What to cache: full, full+swa, full+mamba, full+swa+mamba, or a TOML file with a model.
    page_size
        Tokens of a page; 16, or what the TOML file says.
    limit
        Run only so many requests.
    concurrency
        Requests under way at once, as far as L1 has room for them.
    policy
        What is evicted first: lru, lru_k, lfu, slru, fifo or priority.
    l1_tokens
        Room on L1, in tokens.
    l2_tokens
        Room on L2, in tokens; 0 for no L2.
    store
        Folder of the L3 store; without it there is none.
    store_bytes
        Room of the store, such as 500MB or 8GiB.
    json
        Write the figures to this file as one JSON object.
    plot
        Draw hit rate and occupancy over the requests into this file.

    """
    if concurrency < 1:
        raise ConfigError(f"--concurrency must be at least 1, not {concurrency}")
    if policy not in POLICIES:
        raise ConfigError(f"--policy {policy!r} is not one of {', '.join(POLICIES)}")
    tiers = TierOptions(
        l1_tokens=l1_tokens, l2_tokens=l2_tokens, store=store, store_bytes=store_bytes
    )
    if plot is not None:
        require_plotting()
        require_picture(plot)
    require_writable(json, plot)
    spec = load_model(model, page_size)
    workload = open_workload(trace, limit)
    longest = max(workload.lengths)
    if l1_tokens < longest + spec.page_size:
        raise ConfigError(
            f"--l1-tokens {l1_tokens} cannot hold the longest prompt: "
            f"give at least {longest + spec.page_size}"
        )
    run, result = trio.run(_replay, tiers.config(spec, policy=policy), workload, concurrency)
    Console().print(_table(result))
    write_json(json, result)
    if plot is not None:
        save_figure(draw_replay(run.samples, f"{result.workload}, {result.model}"), plot)
    return _outcome(result)


def _table(result: ReplayResult) -> Table:
    """Lay the figures out for a terminal."""
    table = Table(title=f"{result.workload}, {result.model}", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for row in _rows(result):
        table.add_row(*row)
    return table


def _rows(result: ReplayResult) -> list[tuple[str, str]]:
    hit, moved = result.hit_tokens, result.moved_bytes
    return [
        ("requests", _count(result.requests)),
        ("  at once, at most", _count(result.concurrency)),
        ("  refused for lack of room", _count(result.refused)),
        ("tokens", _count(result.tokens)),
        ("hit tokens", _count(hit.total)),
        ("  from L1", _count(hit.l1)),
        ("  from L2", _count(hit.l2)),
        ("  from L3", _count(hit.l3)),
        ("hit rate", f"{result.hit_rate:.4f}"),
        ("pages evicted", _count(result.evicted)),
        ("pages demoted", _count(result.demoted)),
        ("pages promoted", _count(result.promoted)),
        *((f"bytes moved {_arrow(way)}", _count(moved[way])) for way in moved),
        ("seconds", f"{result.seconds:.2f}"),
        ("turns per second", f"{result.turns_per_second:,.1f}"),
        ("operations per second", f"{result.operations_per_second:,.1f}"),
        ("acquire P50", f"{result.acquire_us.p50:,.1f} µs"),
        ("acquire P99", f"{result.acquire_us.p99:,.1f} µs"),
        ("nodes", _count(result.nodes)),
        ("nodes / (sequences * length)", f"{result.node_ratio:.6f}"),
        ("fingerprints checked", _count(result.fingerprints.checked)),
        ("fingerprints failed", _count(result.fingerprints.failed)),
        ("leaked pages", _count(result.leaked_pages)),
    ]


def _count(value: int) -> str:
    return f"{value:,}"


def _arrow(way: str) -> str:
    source, _, target = way.partition("_")
    return f"{source.upper()} → {target.upper()}"


def _outcome(result: ReplayResult) -> int:
    if not result.sound:
        say(result.problem or f"{result.leaked_pages} pages leaked")
        return WRONG
    if result.interrupted:
        say(f"interrupted after {result.requests:,} requests; the figures are of those")
        return INTERRUPTED
    return 0


async def _replay(
    config: CacheConfig, workload: Workload, concurrency: int
) -> tuple[Replay, ReplayResult]:
    telemetry = None
    if any(name.startswith("OTEL_") for name in os.environ):
        telemetry = configure_telemetry()
    try:
        with show_progress(len(workload)) as on_turn:
            run = Replay(config, workload, concurrency=concurrency, on_turn=on_turn)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stop_on_interrupt, run)
                result = await run.run()
                nursery.cancel_scope.cancel()
        return run, result
    finally:
        if telemetry is not None:
            with trio.CancelScope(shield=True):
                await telemetry.shutdown()


async def _stop_on_interrupt(run: Replay) -> None:
    """Stop the run at the first Ctrl-C; a second one interrupts as ever."""
    with trio.open_signal_receiver(signal.SIGINT) as signals:
        async for _ in signals:
            break
    run.stop()
