"""One run: the benchmarks asked for, in order, and the report on them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

from .bench import Bench
from .goals import judge
from .pace import loop_us
from .registry import BUILT, NOT_BUILT, load
from .results import Machine, Report, Spread


async def run(bench: Bench, names: Sequence[str], started: Callable[[str], None]) -> Report:
    """Run benchmarks (all by default) and report; `started` hears the name of each.

    Raises `ConfigError` for an unknown name before anything runs.
    """
    chosen = list(dict.fromkeys(names)) or [*BUILT, *NOT_BUILT]
    measures = [(name, load(name)) for name in chosen if name not in NOT_BUILT]
    bench.pace.loops.append(loop_us())
    for name, measure in measures:
        bench.name = name
        started(name)
        await measure(bench)
    notes = bench.notes + [
        f"{name}: not built: {NOT_BUILT[name]}" for name in chosen if name in NOT_BUILT
    ]
    if bench.pace.gate:
        notes.append(
            f"{bench.pace.slow_rounds} rounds ran with the loop above {bench.pace.gate:g} µs; "
            "they are left out where three others remain"
        )
    return Report(
        _machine(bench.pace.loops), bench.rows, judge(bench.rows, chosen), notes, bench.curves
    )


def _machine(loops: Sequence[float]) -> Machine:
    return Machine(
        cpu=_cpu(),
        cores=os.cpu_count() or 0,
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
        loop_us=Spread.of(loops),
    )


def _cpu() -> str:
    """Return the processor's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
