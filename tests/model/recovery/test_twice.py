"""Two crashes at once, a crash during a recovery, a crash while closing, and crashes without end."""

from __future__ import annotations

import os
import random

import pytest
import trio
import trio.testing
from banyankv import ActorCrashed, Closed, open_cache
from banyankv.actors import Fault, FaultKind, FaultPlan

from ..driving import Gate
from ..history_store import Held
from .crashes import Aim, Crash, Watcher
from .engines import Engines
from .matrix import MOMENTS, Cell, cells, first_crash, play, seen, try_cell
from .scene import LIMIT, Scene, config, quiet_world

SAMPLE = int(os.environ.get("BANYANKV_CRASHES", "3"))
ACTORS = ("/tree", "/full", "/swa", "/mamba", "/l1", "/l2", "/controller", "/cache")


@pytest.mark.parametrize("full", [False, True], ids=["wide", "full"])
def test_two_actors_that_crash_at_once_are_one_recovery(dispatch, full):
    every = [cell for cell in cells(dispatch, full) if cell.aim.place.path in ACTORS]
    rng = random.Random(f"{dispatch} {full} twice")
    for cell in rng.sample(every, SAMPLE or len(every)):
        other = rng.choice([path for path in ACTORS if path != cell.aim.place.path])
        aims = [cell.aim] if cell.first is None else [cell.first, cell.aim]
        watcher = Watcher(*aims, along=other)
        engines, recoveries = play(dispatch, full=full, watcher=watcher)
        assert watcher.fired == aims
        assert sum(recoveries.values()) in (1, len(aims)), (cell, other, recoveries)
        assert len(engines.told) <= 2 * len(aims), engines.told


@pytest.mark.parametrize("full", [False, True], ids=["wide", "full"])
def test_a_crash_of_a_recovery_makes_it_begin_again(dispatch, full):
    first = first_crash(dispatch, full)
    known = seen(dispatch, full, first)
    rng = random.Random(f"{dispatch} {full} again")
    again = {
        place: [number for number in numbers if number in known.middles.get(place, {})]
        for place, numbers in known.recovering.items()
    }
    places = sorted(place for place in again if again[place])
    faults: list[str] = []
    for place in rng.sample(places, min(SAMPLE or len(places), len(places))):
        number, moment = rng.choice(again[place]), rng.choice(MOMENTS)
        middle = min(2, known.middles[place][number])
        moment = "after" if moment == "middle" and not middle else moment
        aim = Aim(place, number, moment, middle if moment == "middle" else 0)
        outcome = try_cell(Cell(dispatch, full, aim, first))
        if outcome.fault:
            faults.append(f"{outcome.cell} {aim}: {outcome.fault}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("actor", ["/tree", "/l2", "/controller", "/cache", "/store/l3"])
@pytest.mark.parametrize("steps", [0, 1, 3, 10])
def test_a_crash_while_closing_leaves_nobody_waiting(dispatch, actor, steps):
    """Who waits is told that the cache has closed; leaving the block raises nothing, or that."""

    async def main() -> None:
        ends: list[type] = []
        store, gate = Held(), Gate()
        opened = open_cache(config(dispatch, full=True), store=store, before_copy=gate)
        with trio.fail_after(LIMIT):
            try:
                async with trio.open_nursery() as nursery:
                    async with opened as cache:
                        scene = Scene(Patient(cache, nursery, ends), gate, store, full=True)
                        await scene.stage()
                        cache._assembled.system.find(actor).condemn(Crash("while closing"))
                        for _ in range(steps):
                            await trio.lowlevel.checkpoint()
                    for turn in scene.engines.turns:
                        await turn.lease.release()  # never raises
            except* Closed:
                pass
        assert set(ends) <= {Closed, ActorCrashed}, ends

    with quiet_world(1):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("message", ["Walk", "Restore"])
def test_beyond_its_patience_the_supervisor_closes_the_cache_and_nobody_hangs(dispatch, message):
    async def main() -> None:
        ends: list[type] = []
        store, gate = Held(), Gate()
        plan = FaultPlan(faults=(Fault(what=FaultKind.CRASH, message=message, times=0),))
        opened = open_cache(config(dispatch, full=True), store=store, before_copy=gate, faults=plan)
        with trio.fail_after(LIMIT), pytest.raises(Closed) as caught:
            async with opened as cache:
                if message == "Restore":  # sent by recoveries only: each of them crashes
                    cache._assembled.system.find("/l1").condemn(Crash("for once"))
                while True:
                    try:
                        async with await cache.acquire([1, 2, 3]):
                            pass
                    except ActorCrashed as error:
                        ends.append(type(error))
        cause = caught.value.cause
        assert isinstance(cause, ActorCrashed)
        assert "InjectedCrash" in cause.traceback
        assert len(ends) <= 7

    with quiet_world(1):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


class Patient(Engines):
    """Engines whose requests may end with the cache."""

    def __init__(self, cache, nursery, ends: list[type]) -> None:
        super().__init__(cache, nursery)
        self._ends = ends

    def _waits(self, call):
        async def until_closed() -> None:
            try:
                await call()
            except (Closed, ActorCrashed) as error:
                self._ends.append(type(error))

        return super()._waits(until_closed)
