"""Restarts as in OTP: who, when, how often; ordered start and stop; the embedder's body is left alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
import trio.testing
from banyankv.actors import (
    Backoff,
    ChildSpec,
    Leaf,
    Reason,
    Restart,
    Strategy,
    Supervisor,
    SupervisorSpec,
    open_system,
)
from banyankv.errors import ActorCrashed, ActorStopped, Closed, ConfigError

from .cast import Add, Boom, Counter, End, behind
from .diary import AT_ONCE, Diary, crash, three


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Strategy.ONE_FOR_ONE, "!b +b"),
        (Strategy.ONE_FOR_ALL, "!b -c -a +a +b +c"),
        (Strategy.REST_FOR_ONE, "!b -c +b +c"),
    ],
)
async def test_who_is_restarted_with_a_child(
    dispatch: str, strategy: Strategy, expected: str
) -> None:
    diary = Diary()
    async with open_system("t", dispatch=dispatch) as system:
        _, b, c = await three(system, diary, strategy)
        assert diary.take() == "+a +b +c"
        await crash(b)
        assert diary.take() == expected
        assert await c.ask(Add()) == 1
        assert await b.ask(Add()) == 1
    assert diary.take() == "-c -b -a"


@pytest.mark.parametrize(
    ("restart", "after_crash", "after_end"),
    [
        (Restart.PERMANENT, True, True),
        (Restart.TRANSIENT, True, False),
        (Restart.TEMPORARY, False, False),
    ],
)
async def test_when_a_child_is_restarted(
    dispatch: str, restart: Restart, after_crash: bool, after_end: bool
) -> None:
    async with open_system("t", dispatch=dispatch, backoff=AT_ONCE) as system:
        for ending, again in ((Boom(), after_crash), (End(), after_end)):
            name = type(ending).__name__
            ref = await system.spawn(Counter, name=name, restart=restart)
            ref.tell(ending)
            await trio.testing.wait_all_tasks_blocked()
            assert (ref.actor is not None) == again
            assert (f"/{name}" in system.refs) == again
            if again:
                assert await ref.ask(Add()) == 1
            else:
                with pytest.raises(ActorStopped):
                    await ref.ask(Add())


async def test_an_instance_lives_once(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        counter = Counter()
        ref = await system.spawn(counter, name="once")
        assert behind(ref) is counter
        await crash(ref)
        assert "/once" not in system.refs
        with pytest.raises(ConfigError, match="can live only once"):
            await system.spawn(Counter(), name="again", restart=Restart.PERMANENT)


async def test_queued_messages_survive_a_restart(dispatch: str, autojump_clock: Any) -> None:
    backoff = Backoff(first=2.0, jitter=0.0)
    async with open_system("t", dispatch=dispatch, backoff=backoff) as system:
        ref = await system.spawn(Counter, name="c")
        await crash(ref)
        ref.tell(Add(3))
        start = trio.current_time()
        assert await ref.ask(Add(4)) == 7
        assert trio.current_time() == start + 2.0


async def test_backoff_grows_and_falls_back(dispatch: str, autojump_clock: Any) -> None:
    backoff = Backoff(first=1.0, factor=2.0, most=3.0, jitter=0.0)
    async with open_system(
        "t", dispatch=dispatch, backoff=backoff, intensity=10, period=100.0
    ) as system:
        ref = await system.spawn(Counter, name="c")
        waits = []
        for pause in (0, 0, 0, 0, 200):
            await trio.sleep(pause)
            await crash(ref)
            start = trio.current_time()
            await ref.ask(Add())
            waits.append(trio.current_time() - start)
        assert waits == [1.0, 2.0, 3.0, 3.0, 1.0]


def test_jitter_is_seeded_and_bounded() -> None:
    backoff = Backoff(first=1.0, jitter=0.5)
    drawn = [backoff.delay(0, random.Random(7)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    rng = random.Random(1)
    assert all(1.0 <= backoff.delay(0, rng) <= 1.5 for _ in range(100))
    assert backoff.delay(10_000, rng) <= 7.5
    with pytest.raises(ConfigError):
        Backoff(factor=0.5)


async def test_beyond_intensity_the_supervisor_crashes_and_is_restarted(
    dispatch: str, autojump_clock: Any
) -> None:
    diary = Diary()
    async with open_system("t", dispatch=dispatch, backoff=AT_ONCE) as system:
        _, b, _ = await three(system, diary, Strategy.ONE_FOR_ONE, intensity=2, period=10.0)
        for _ in range(2):
            await crash(b)
        await trio.sleep(11)
        for _ in range(2):
            await crash(b)
        assert diary.take() == "+a +b +c" + " !b +b" * 4
        await crash(b)
        assert diary.take() == "!b -c -a +a +b +c"
        assert await b.ask(Add()) == 1
        supervisor = system.top.children[0]
        assert isinstance(supervisor, Supervisor)
        assert system.top.restarts == 1


async def test_when_the_top_gives_up_the_body_goes_on_and_leaving_raises_closed(
    dispatch: str,
) -> None:
    reached = False
    with pytest.raises(
        Closed, match="at the crash of an actor, none of which may be started anew: /c crashed"
    ) as closed:
        async with open_system("t", dispatch=dispatch, intensity=0) as system:
            other = await system.spawn(Counter, name="other")
            ref = await system.spawn(Counter, name="c")
            with pytest.raises(ActorCrashed):
                await ref.ask(Boom())
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(Closed, match="none of which may be started anew") as late:
                await other.ask(Add())
            assert isinstance(late.value.cause, ActorCrashed)
            with pytest.raises(Closed):
                await system.spawn(Counter, name="more")
            # nobody cancelled us
            await trio.lowlevel.checkpoint()
            reached = True
    assert reached
    assert isinstance(closed.value.cause, ActorCrashed)


async def test_a_body_error_passes_unchanged(dispatch: str) -> None:
    error = KeyError("mine")
    with pytest.raises(KeyError) as raised:
        async with open_system("t", dispatch=dispatch, intensity=0) as system:
            ref = await system.spawn(Counter, name="c")
            await crash(ref)
            raise error
    assert raised.value is error


async def test_actors_serve_a_cancelled_body_until_it_has_unwound(dispatch: str) -> None:
    answers: list[int] = []
    with trio.CancelScope() as scope:
        async with open_system("t", dispatch=dispatch) as system:
            ref = await system.spawn(Counter, name="c")
            try:
                scope.cancel()
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()
                    answers.append(await ref.ask(Add()))
    assert scope.cancelled_caught
    assert answers == [1]


class Broken(Leaf):
    """Cannot start while told so."""

    broken = True

    def on_start(self) -> None:
        if type(self).broken:
            raise OSError("no disk")


async def test_an_actor_that_cannot_start_raises_at_its_spawner(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        with pytest.raises(ActorCrashed, match=r"/b crashed: builtins.OSError: no disk"):
            await system.spawn(Broken, name="b")

        def factory() -> Counter:
            raise ValueError("no parts")

        with pytest.raises(ActorCrashed, match="no parts"):
            await system.spawn(factory, name="b")
        # the name is free again, and nothing was restarted
        ref = await system.spawn(Counter, name="b")
        assert await ref.ask(Add()) == 1
        assert system.top.restarts == 0


async def test_a_restart_that_fails_to_start_is_one_more_crash(
    dispatch: str, autojump_clock: Any
) -> None:
    class Flaky(Counter):
        lives = 0

        def on_start(self) -> None:
            type(self).lives += 1
            if type(self).lives in (2, 3):
                raise OSError("not yet")

    async with open_system("t", dispatch=dispatch) as system:
        ref = await system.spawn(Flaky, name="f")
        await crash(ref)
        assert await ref.ask(Add()) == 1
        assert system.top.restarts == 3


async def test_an_actor_stopped_during_its_backoff_stays_stopped(
    dispatch: str, autojump_clock: Any
) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        ref = await system.spawn(Counter, name="c")
        with pytest.raises(ActorCrashed):
            await ref.ask(Boom())
        await trio.testing.wait_all_tasks_blocked()
        ref.tell(Add())
        await system.stop(ref)
        await trio.sleep(10)
        assert ref.actor is None
        assert system.dead_letters[Reason.STOPPED] == 1


async def test_a_wrong_supervisor_spec_leaves_nothing(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        child = ChildSpec(factory=Counter, name="same")
        with pytest.raises(ConfigError, match="/s/same exists already"):
            await system.start_children(SupervisorSpec(name="s", children=(child, child)))
        assert system.refs == {}
        assert str(system.tree()) == "/ (supervisor)"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff(first=float("nan")),
        lambda: Backoff(factor=0.5),
        lambda: Backoff(jitter=-0.1),
        lambda: ChildSpec(factory=Counter, name="c", restart="never"),
        lambda: ChildSpec(factory=Counter, name="c", stop_timeout=float("nan")),
        lambda: SupervisorSpec(name="s", strategy="one_for_all"),
        lambda: SupervisorSpec(name="s", restart="permanent"),
        lambda: SupervisorSpec(name="s", intensity=-1),
        lambda: SupervisorSpec(name="s", intensity=1.5),
        lambda: SupervisorSpec(name="s", period=float("nan")),
    ],
)
def test_a_specification_that_cannot_be_meant_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()
