"""`banyankv bench`: measure this machine's cache, alone or beside other caches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import trio
from cyclopts import Group, Parameter
from rich.console import Console
from rich.table import Table

from ..errors import ConfigError
from .output import require_folder, require_writable, write_json
from .plots import require_plotting, save_figure

if TYPE_CHECKING:
    from ..benchmarks.results import Goal, Report

_HOW = Group("How to measure", sort_key=2)
_RESULTS = Group("Results", sort_key=3)
_LEAST_TURNS = 1000


def bench(
    *names: Annotated[str, Parameter(allow_leading_hyphen=False)],
    peers: Annotated[Path | None, Parameter(group=_HOW)] = None,
    rounds: Annotated[int, Parameter(group=_HOW)] = 5,
    gate: Annotated[float, Parameter(group=_HOW)] = 0.0,
    turns: Annotated[int, Parameter(group=_HOW)] = 1_000_000,
    tiny: Annotated[bool, Parameter(group=_HOW, negative="")] = False,
    json: Annotated[Path | None, Parameter(group=_RESULTS)] = None,
    plot: Annotated[Path | None, Parameter(group=_RESULTS)] = None,
) -> int:
    """Run benchmarks and print ratios measured in one run, with their spread, and the goals.

    What is compared takes turns, round by round, and a ratio is made of figures of one round,
    because a machine's speed changes in phases. A fixed interpreter loop is timed all along, so
    that its speeds can be told apart.

    Parameters
    ----------
    names
        Which benchmarks; all of them by default.
    peers
        A folder of harnesses that drive other caches; they run between our rounds.
    rounds
        How often each figure is measured.
    gate
        Count a figure only when the interpreter loop took at most so many µs just before and
        after it; 0 for no gate.
    turns
        Length of the long run of `memory`.
    tiny
        Shrink everything: shows that it runs, the figures mean nothing.
    json
        Write all rows and the goals to this file as one JSON object.
    plot
        Draw a picture of each benchmark into this folder.

    """
    from ..benchmarks.bench import Bench, Settings
    from ..benchmarks.peers import Peers
    from ..benchmarks.runner import run

    if rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, not {rounds}")
    if not gate >= 0:
        raise ConfigError(f"--gate must be 0 µs or more, not {gate:g}")
    if turns < _LEAST_TURNS:
        raise ConfigError(f"--turns must be at least {_LEAST_TURNS}, not {turns}")
    if plot is not None:
        require_plotting()
        require_folder(plot)
    require_writable(json)
    settings = Settings(rounds=rounds, gate=gate, turns=turns, tiny=tiny)
    console = Console()
    subject = Bench(settings, Peers(peers, gate) if peers else None)
    with console.status("") as status:

        def tell(name: str) -> None:
            status.update(f"measuring {name}")

        report = trio.run(run, subject, names, tell)
    _show(console, report)
    write_json(json, report)
    if plot is not None:
        from ..benchmarks.plots import draw_report

        for name, figure in draw_report(report):
            save_figure(figure, plot / name)
    return 0


def _show(console: Console, report: Report) -> None:
    from ..benchmarks.results import lines

    machine = report.machine
    for line in lines(report, console.width):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if report.goals:
        console.print(_goals(report.goals))
    for note in report.notes:
        console.print(note, markup=False)
    console.print(
        f"{machine.cpu}, {machine.cores} cores, Python {machine.python}, torch {machine.torch}, "
        f"interpreter loop {machine.loop_us} µs",
        markup=False,
    )


def _goals(goals: Sequence[Goal]) -> Table:
    from ..benchmarks.results import number

    table = Table("measure", "value", "goal", "met", title="goals", title_justify="left")
    for goal in goals:
        value = "not measured" if goal.value is None else number(goal.value)
        met = {None: "", True: "yes", False: "NO"}[goal.met]
        table.add_row(
            goal.measure, value + (f" [{goal.case}]" if goal.case else ""), goal.goal, met
        )
    return table
