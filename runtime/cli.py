"""The command line: `banyankv replay TRACE` and `banyankv check-store PATH`.

Exit codes: 0 all right, 1 something is wrong with the bytes, 2 wrong options or a broken trace,
130 interrupted.
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, cast

import msgspec
import trio
from cyclopts import App, CycloptsError, Group, Parameter
from rich.console import Console

from ..components.policies import POLICIES
from ..errors import BanyanError, ConfigError
from ..telemetry import configure_telemetry
from ..tiers.store_check import StoreReport, inspect
from .bench_cli import bench
from .config import CacheConfig, StoreConfig
from .demo_cli import demo
from .plots import plot_replay, require_plotting
from .presets import capacities, load_model
from .progress import show_progress
from .replay import Replay
from .report import ReplayResult
from .serve_cli import serve
from .sizes import convert_bytes
from .verify_cli import verify_layers
from .workloads import Workload, open_workload

WRONG, USAGE, INTERRUPTED = 1, 2, 130

app = App(
    name="banyankv",
    help="An embeddable prefix cache for hybrid language models.",
    version=importlib.metadata.version("banyankv"),
)
app.command(bench)
app.command(demo)
app.command(serve)
app.command(verify_layers)
_ROOM = Group("Room", sort_key=1)
_RUN = Group("Run", sort_key=2)
_RESULTS = Group("Results", sort_key=3)


@app.command
def replay(
    trace: Annotated[str, Parameter(allow_leading_hyphen=False)],
    /,
    *,
    model: Annotated[str, Parameter(group=_RUN)] = "full",
    page_size: Annotated[int | None, Parameter(group=_RUN)] = None,
    limit: Annotated[int | None, Parameter(group=_RUN)] = None,
    concurrency: Annotated[int, Parameter(group=_RUN)] = 1,
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

    Requests run one after the other, each when the copies that the one before caused are over:
    hits then do not depend on this machine's speed, and `turns per second` includes the copies.
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
        Requests under way at once.
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
    if l2_tokens < 0:
        raise ConfigError(f"--l2-tokens must be at least 0, not {l2_tokens}")
    if policy not in POLICIES:
        raise ConfigError(f"--policy {policy!r} is not one of {', '.join(POLICIES)}")
    if store is not None and not l2_tokens:
        raise ConfigError("--store needs an L2 to read into: give --l2-tokens")
    if plot is not None:
        require_plotting()
    spec = load_model(model, page_size)
    workload = open_workload(trace, limit)
    longest = max(workload.lengths)
    if l1_tokens < longest + spec.page_size:
        raise ConfigError(
            f"--l1-tokens {l1_tokens} cannot hold the longest prompt: "
            f"give at least {longest + spec.page_size}"
        )
    config = CacheConfig(
        model=spec,
        l1=capacities(spec, l1_tokens),
        l2=capacities(spec, l2_tokens) if l2_tokens else None,
        store=StoreConfig(path=str(store), max_bytes=store_bytes) if store else None,
        policy=policy,
    )
    run, result = trio.run(_replay, config, workload, concurrency)
    Console().print(result.table())
    if json is not None:
        _write(json, msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    if plot is not None:
        plot_replay(run.samples, f"{result.workload}, {result.model}", plot)
    return _outcome(result)


def _outcome(result: ReplayResult) -> int:
    if not result.sound:
        _say(result.problem or f"{result.leaked_pages} pages leaked")
        return WRONG
    if result.interrupted:
        _say(f"interrupted after {result.requests:,} requests; the figures are of those")
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


@app.command
def check_store(
    path: Path, /, *, json: Annotated[Path | None, Parameter(group=_RESULTS)] = None
) -> int:
    """Read every object of an L3 store and verify it; 1 is the exit code where one is bad.

    Parameters
    ----------
    path
        The store's folder.
    json
        Write the report to this file as one JSON object.

    """
    report = inspect(path)
    Console(highlight=False, soft_wrap=True).print(describe_store(report), markup=False)
    if json is not None:
        _write(json, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return 0 if report.sound else WRONG


def describe_store(report: StoreReport) -> str:
    """Tell a store's report in lines for people."""
    lines = [
        f"{report.path}: {report.objects:,} objects",
        f"  {report.bytes:,} bytes of intact objects, {report.file_bytes:,} bytes on disk",
    ]
    lines += [
        f"  model {content.model} component {content.component}: "
        f"{content.objects:,} objects, {content.bytes:,} bytes"
        for content in report.contents
    ]
    if report.newest:
        lines.append(f"  written from {_time(report.oldest)} to {_time(report.newest)}")
    if report.unclean:
        lines.append("  in use, or not closed by the process that used it last")
    if report.missing_bytes:
        lines.append(f"  the data file is {report.missing_bytes:,} bytes too short")
    if not report.readable:
        lines.append(f"  NOT READABLE: {report.problem}")
    lines += [f"  BAD {bad.key}: {bad.reason}: {bad.detail}" for bad in report.bad]
    if report.bad_objects > len(report.bad):
        lines.append(f"  and {report.bad_objects - len(report.bad):,} more bad objects")
    lines.append("sound" if report.sound else f"NOT SOUND: {report.bad_objects:,} bad objects")
    return "\n".join(lines)


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def _say(message: str) -> None:
    sys.stderr.write("banyankv: " + " ".join(message.split()) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and answer its exit code; `arguments` are the process's by default."""
    try:
        code = app(
            sys.argv[1:] if arguments is None else list(arguments),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    except (BanyanError, CycloptsError, KeyboardInterrupt, BaseExceptionGroup) as error:
        return _failed(error)
    return code if isinstance(code, int) else 0


def _failed(error: BaseException) -> int:
    """Answer the exit code of an error that has one, in one line; raise any other."""
    first = _first(error)
    if isinstance(first, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(first, ConfigError | CycloptsError):
        _say(str(first))
        return USAGE
    if isinstance(first, BanyanError):
        _say(str(first))
        return WRONG
    raise error


def _first(error: BaseException) -> BaseException:
    """Look through the groups that a nursery wraps errors in."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    return _first(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
