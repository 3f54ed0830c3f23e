"""The matrix: every message of every actor, crashed before, in the middle and after.

    python -m tests.model.recovery.matrix [WORD ...]

runs all cells, prints those that fail and the table of `docs/reliability.md`; with words only cells
whose name has all of them.

A world is a dispatch mode and whether tiers are full. In each the scene is played once without a crash,
to see which messages come, and once with one crash, to see those that come only after it; then
once for each cell, with a crash at one of the deliveries that were seen.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import trio
import trio.testing
from banyankv.actors import FaultPlan

from ..engine import WrongBytes
from .crashes import Aim, Place, Watcher
from .engines import Engines
from .scene import quiet_world, run

MOMENTS = ("before", "middle", "after")
WORLDS = tuple(itertools.product(("direct", "mailbox"), (False, True)))
PATIENCE = 60.0
"""Real seconds after which a scene that spins is stuck: it takes about one."""

NEVER = {
    Place("/swa", "BackupPath"): "FULL's alone",
    Place("/swa", "Dead"): "FULL's alone",
    Place("/swa", "EvictLeaves"): "FULL's alone",
    Place("/full", "Recede"): "windows' alone",
    Place("/full", "Unbacked"): "auxiliaries' alone",
    Place("/mamba", "Lacks"): "FULL's alone",
    Place("/mamba", "Unlocked"): "asked of pools that several lack",
}
"""Handlers that an actor shares with others of its class, and that nobody asks it for."""


class Cell(NamedTuple):
    """One crash to try: `first` is one that comes before it, where only that brings the message."""

    dispatch: str
    full: bool
    aim: Aim
    first: Aim | None = None

    def __str__(self) -> str:
        place, room = self.aim.place, "full" if self.full else "wide"
        return f"{place.path} {place.message} {self.aim.moment} {self.dispatch} {room}"


class Outcome(NamedTuple):
    """What came of a cell: empty `fault` where all went on. `told` engines heard of the crash."""

    cell: Cell
    told: int
    recoveries: int
    fault: str


def play(
    dispatch: str,
    *,
    full: bool,
    watcher: Watcher,
    armed: Callable[[], object] | None = None,
    faults: FaultPlan | None = None,
) -> tuple[Engines, dict[str, int]]:
    """Play the scene in a world of its own."""

    async def main() -> tuple[Engines, dict[str, int]]:
        token, scope = trio.lowlevel.current_trio_token(), trio.CancelScope()
        late = threading.Timer(PATIENCE, token.run_sync_soon, (scope.cancel,))
        late.start()
        try:
            with scope:
                return await run(dispatch, full=full, armed=armed, faults=faults)
            raise TimeoutError("the scene spins")
        finally:
            late.cancel()

    try:
        with quiet_world(1), watcher.watching():
            return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class Seen(NamedTuple):
    """What a play without the crash shows: the handlers, and the middles of each delivery of the play."""

    handlers: tuple[Place, ...]
    middles: dict[Place, dict[int, int]]
    recovering: dict[Place, tuple[int, ...]]


@functools.cache
def seen(dispatch: str, full: bool, first: Aim | None = None) -> Seen:
    """Play the scene without the crash."""
    marks: dict[Place, int] = {}
    watcher = Watcher(*([first] if first else []), counting=True)
    play(dispatch, full=full, watcher=watcher, armed=lambda: marks.update(watcher.seen()))
    middles = {
        place: dict(enumerate(counts[marks.get(place, 0) :], marks.get(place, 0) + 1))
        for place, counts in watcher.middles.items()
        if len(counts) > marks.get(place, 0)
    }
    recovering = {place: tuple(at) for place, at in watcher.recovering.items()}
    return Seen(tuple(watcher.handlers), middles, recovering)


def first_crash(dispatch: str, full: bool) -> Aim:
    """The crash that brings what only a recovery sends."""
    peek = Place("/cache", "Peek")
    return Aim(peek, min(seen(dispatch, full).middles[peek]), "before")


def cells(dispatch: str, full: bool, seed: int = 0) -> Iterator[Cell]:
    """All cells of a world; which delivery of the play is crashed is the seed's choice."""
    first = first_crash(dispatch, full)
    alone, after = seen(dispatch, full), seen(dispatch, full, first)
    for place in (*alone.handlers, *(place for place in after.middles if place.message.islower())):
        rng = random.Random(f"{seed} {dispatch} {full} {place}")
        middles, before = alone.middles.get(place), None
        if not middles:
            middles, before = after.middles.get(place), first
        if not middles:
            continue
        for moment in MOMENTS:
            number = rng.choice(sorted(middles))
            middle = rng.randint(1, middles[number] or 1) if moment == "middle" else 0
            if middle <= middles[number]:
                yield Cell(dispatch, full, Aim(place, number, moment, middle), before)


def try_cell(cell: Cell) -> Outcome:
    """Crash at a cell; everything else must go on."""
    aims = [cell.aim] if cell.first is None else [cell.first, cell.aim]
    watcher = Watcher(*aims)
    told = recoveries = 0
    try:
        engines, recovered = play(cell.dispatch, full=cell.full, watcher=watcher)
        told, recoveries = len(engines.told), sum(recovered.values())
        assert watcher.fired == aims, f"fired {watcher.fired}"
        assert told <= len(aims), [str(error) for error in engines.told]
        for error in engines.told:
            assert error.path in {aim.place.path for aim in aims}, error
            assert "crashes.Crash" in error.cause_type, error.cause_type
            assert "_raise" in error.traceback
        # The actor of L3 and the auditor are made anew alone; and what crashes a recovery makes it begin again.
        # But if one cannot even begin, its supervisor gives up, and all are made anew once more.
        path, message = cell.aim.place
        alone = path in ("/store/l3", "/audit/auditor") and message != "prepare"
        most = len(aims) - alone
        assert min(most, 1) <= recoveries <= most, recovered
    except Exception as error:  # noqa: BLE001 - whatever it is, that is the finding
        return Outcome(cell, told, recoveries, f"{type(error).__name__}: {error}"[:400])
    return Outcome(cell, told, recoveries, "")


def kind_of(fault: str) -> str:
    """Name the column that a fault belongs to."""
    if fault.startswith(WrongBytes.__name__):
        return "wrong bytes"
    if fault.startswith("TimeoutError"):
        return "hangs"
    return "leaks" if "left behind" in fault or "IntegrityError" in fault else "other"


def table(outcomes: Iterable[Outcome]) -> str:
    """The table of all outcomes, as Markdown: one row a message of an actor."""
    rows: defaultdict[Place, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        row = rows[outcome.cell.aim.place]
        row[outcome.cell.aim.moment] += 1
        row["recovered"] += not outcome.fault
        row["told"] += outcome.told
        row[kind_of(outcome.fault) if outcome.fault else "fine"] += 1
    columns = (*MOMENTS, "recovered", "told", "wrong bytes", "leaks", "hangs", "other")
    total: Counter[str] = Counter()
    lines = [
        f"| actor | message | {' | '.join(columns)} |",
        f"|---|---|{'--:|' * len(columns)}",
    ]
    for place, row in rows.items():
        total.update(row)
        name = f"({place.message})" if place.message.islower() else f"`{place.message}`"
        figures = " | ".join(str(row[column]) for column in columns)
        lines.append(f"| {place.path} | {name} | {figures} |")
    figures = " | ".join(f"**{total[column]}**" for column in columns)
    lines.append(f"| **all** | {len(rows)} | {figures} |")
    return "\n".join(lines)


def main(words: list[str]) -> int:
    """Run the matrix; return the number of cells that failed."""
    began = time.monotonic()
    todo = [c for world in WORLDS for c in cells(*world) if all(w in str(c) for w in words)]
    outcomes: list[Outcome] = []
    with multiprocessing.Pool(2) as pool:
        for outcome in pool.imap(try_cell, todo, chunksize=8):
            outcomes.append(outcome)
            if outcome.fault:
                print(f"--- {outcome.cell} {outcome.cell.aim}\n    {outcome.fault}", flush=True)
    order = {place: number for number, place in enumerate(seen(*WORLDS[0]).handlers)}
    outcomes.sort(key=lambda outcome: order.get(outcome.cell.aim.place, len(order)))
    print(table(outcomes))
    wrong = sum(bool(outcome.fault) for outcome in outcomes)
    print(f"\n{len(outcomes)} cells in {time.monotonic() - began:.0f} s, {wrong} failed")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
