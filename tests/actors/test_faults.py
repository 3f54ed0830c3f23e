"""Fault plans: data, seeded, and each kind of fault at the edge of a message."""

from __future__ import annotations

from collections import Counter as Tally
from typing import Any

import pytest
import trio
import trio.testing
from banyankv.actors import (
    Backoff,
    Fault,
    FaultKind,
    FaultPlan,
    Faults,
    InjectedFault,
    Reason,
    open_system,
)
from banyankv.errors import ActorCrashed, ConfigError, DeadlineExceeded, WouldWait

from .cast import Add, Boss, Counter, Log, Note, Pass, Twice, Work, behind


def plan(what: FaultKind, **options: Any) -> FaultPlan:
    return FaultPlan(faults=(Fault(what=what, **options),))


def test_a_plan_is_json_and_is_checked() -> None:
    made = FaultPlan(
        seed=3, faults=(Fault(what=FaultKind.FAIL, where="copy", key="L1-*", probability=0.5),)
    )
    assert FaultPlan.from_json(made.to_json()) == made
    assert b'"where":"copy"' in made.to_json()
    with pytest.raises(ConfigError, match="not a fault plan"):
        FaultPlan.from_json(b'{"faults": [{"what": "explode"}]}')
    with pytest.raises(ConfigError, match="a message's fault is one of"):
        Fault(what=FaultKind.CORRUPT)


@pytest.mark.parametrize(
    "wrong",
    [
        {"what": "crash"},
        {"what": None},
        {"where": "store"},
        {"where": "copy", "what": FaultKind.DROP},
        {"where": "copy", "receiver": "/l1"},
        {"key": "L1-L2"},
        {"receiver": None},
        {"message": ""},
        {"nth": 0},
        {"nth": 1.5},
        {"times": -1},
        {"times": True},
        {"probability": 1.1},
        {"probability": "1"},
        {"probability": float("nan")},
        {"seconds": -1.0},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
    ],
    ids=str,
)
def test_a_fault_that_could_never_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Fault(**{"what": FaultKind.FAIL, **wrong})


def test_a_plan_holds_faults() -> None:
    with pytest.raises(ConfigError, match="a fault plan holds Faults"):
        FaultPlan(faults=("crash",))


def test_decisions_follow_nth_times_probability_and_seed() -> None:
    faults = Faults(plan(FaultKind.FAIL, where="copy", key="l1>*", nth=3, times=2))
    hits = [faults.decide("copy", "l1>l2") is not None for _ in range(6)]
    assert hits == [False, False, True, True, False, False]
    assert faults.decide("copy", "l2>l1") is None
    assert faults.decide("other", "l1>l2") is None

    def chances(seed: int, extra: tuple[Fault, ...] = ()) -> list[bool]:
        fault = Fault(what=FaultKind.HANG, where="copy", probability=0.3, times=0)
        device = Faults(FaultPlan(seed=seed, faults=(fault, *extra)))
        return [device.decide("copy", "tick") is not None for _ in range(400)]

    assert chances(1) == chances(1)
    assert chances(1) != chances(2)
    # a further fault does not shift the chances of the first
    assert chances(1, (Fault(what=FaultKind.FAIL, where="copy", key="L1-*"),)) == chances(1)
    assert 80 < sum(chances(1)) < 160
    assert Faults(None).decide("copy", "x") is None


async def test_fail_answers_in_the_actors_place(dispatch: str) -> None:
    faults = plan(FaultKind.FAIL, sender="/boss", receiver="/counter", message="Add", nth=2)
    async with open_system("t", dispatch=dispatch, faults=faults) as system:
        counter = await system.spawn(Counter, name="counter")
        boss = await system.spawn(lambda: Boss(counter), name="boss")
        with pytest.raises(InjectedFault, match="fails Add to /counter"):
            await boss.ask(Twice(5))
        assert await counter.ask(Add(0)) == 5
        assert boss.restarts == 0


async def test_crash_crashes_the_receiver(dispatch: str) -> None:
    faults = plan(FaultKind.CRASH, receiver="/counter", message="Add")
    async with open_system(
        "t", dispatch=dispatch, faults=faults, backoff=Backoff(first=0.0)
    ) as system:
        counter = await system.spawn(Counter, name="counter")
        with pytest.raises(
            ActorCrashed, match=r"InjectedCrash: the fault plan crashes /counter at Add"
        ):
            await counter.ask(Add())
        assert await counter.ask(Add()) == 1
        assert counter.restarts == 1


async def test_drop_loses_a_message(dispatch: str, autojump_clock: Any) -> None:
    faults = plan(FaultKind.DROP, message="Add", times=4)
    async with open_system("t", dispatch=dispatch, faults=faults) as system:
        counter = await system.spawn(Counter, name="counter")
        boss = await system.spawn(lambda: Boss(counter), name="boss")
        with pytest.raises(DeadlineExceeded):
            await counter.ask(Add(), deadline=trio.current_time() + 2)
        assert trio.current_time() == 2
        # without a deadline the asker would never hear
        with pytest.raises(InjectedFault, match="it had no deadline"):
            await counter.ask(Add())
        counter.tell(Add())
        with pytest.raises(DeadlineExceeded):
            await boss.ask(Twice(), deadline=trio.current_time() + 2)
        assert trio.current_time() == 4
        assert await boss.ask(Twice(1)) == (1, 2)
        assert system.dead_letters[Reason.INJECTED_DROP] == 4


async def test_delay_holds_a_message_and_all_behind_it(dispatch: str, autojump_clock: Any) -> None:
    faults = plan(FaultKind.DELAY, message="Note", seconds=3.0)
    async with open_system("t", dispatch=dispatch, faults=faults) as system:
        counter = await system.spawn(Counter, name="counter")
        boss = await system.spawn(lambda: Boss(counter), name="boss")
        assert not counter.ready
        counter.tell(Note(0, 0))
        assert await boss.ask(Twice(1)) == (1, 2)
        assert trio.current_time() == 3
        assert behind(counter).notes == [Note(0, 0)]
        # what is delayed is over: calls are possible again
        assert counter.ready == (dispatch == "direct")


async def test_a_delayed_call_would_wait(autojump_clock: Any) -> None:
    faults = plan(FaultKind.DELAY, receiver="/counter", seconds=1.0)
    async with open_system("t", faults=faults) as system:
        counter = await system.spawn(Counter, name="counter")
        with pytest.raises(WouldWait, match="the fault plan delays it"):
            counter.call(Add())
        assert counter.call(Add()) == 1


async def test_duplicate_delivers_twice_and_gives_the_second_answer_back(dispatch: str) -> None:
    faults = plan(FaultKind.DUPLICATE, message="Add")
    async with open_system("t", dispatch=dispatch, faults=faults) as system:
        counter = await system.spawn(Counter, name="counter")
        assert await counter.ask(Add(2)) == 2
        assert await counter.ask(Add(0)) == 4
        assert behind(counter).orphans == [(Add(2), 4)]


async def test_hops_tell_who_handled_what_for_whom(dispatch: str, autojump_clock: Any) -> None:
    log = Log(hops=True)
    async with open_system("t", dispatch=dispatch, observer=log) as system:
        counter = await system.spawn(Counter, name="counter")
        boss = await system.spawn(lambda: Boss(counter), name="boss")
        await boss.ask(Twice())
        with pytest.raises(ConfigError):
            await boss.ask(Pass("refuse"))
        with pytest.raises(ActorCrashed):
            await boss.ask(Pass("boom"))
        await counter.ask(Work(1.0))
        seen = Tally((hop.sender, hop.receiver, hop.message, hop.outcome) for hop in log.seen)
        assert seen[("/boss", "/counter", "Add", "ok")] == 2
        assert seen[("/boss", "/counter", "Refuse", "refused")] == 1
        assert seen[("/boss", "/counter", "Boom", "crashed")] == 1
        assert seen[("", "/counter", "Work", "deferred")] == 1
        assert seen[("/counter", "/counter", "Worked", "ok")] == 1
        via = {hop.via for hop in log.seen if hop.message in ("Add", "Refuse")}
        assert via == {"direct" if dispatch == "direct" else "mailbox"}
        assert all(hop.handled_ns >= 0 and hop.waited_ns >= 0 for hop in log.seen)
        assert counter.handle_ns > 0
