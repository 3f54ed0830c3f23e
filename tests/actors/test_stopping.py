"""Stops in order and their timeouts; who is cancelled or crashes leaves nothing and nobody waiting."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from banyankv.actors import (
    Reason,
    SupervisorSpec,
    open_system,
)
from banyankv.errors import ActorCrashed, ActorStopped, Closed

from .cast import Add, Boss, Counter, Later, Pass, Work, behind, tasks
from .diary import AT_ONCE, crash


async def test_a_stop_finishes_what_is_queued_and_in_hand(
    dispatch: str, autojump_clock: Any
) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        counter = await system.spawn(Counter, name="counter")
        boss = await system.spawn(lambda: Boss(counter), name="boss")
        counter.tell(Add(5))
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await boss.ask(Pass("work", 3.0)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            await system.stop(boss)
        assert answers == [1]
        actor = behind(counter)
        await system.stop(counter)
        assert actor.total == 5


async def test_a_stop_that_takes_too_long_cancels(dispatch: str, autojump_clock: Any) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        counter = await system.spawn(Counter, name="counter")
        boss = await system.spawn(lambda: Boss(counter), name="boss", stop_timeout=2.0)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def ask() -> None:
                with pytest.raises(ActorStopped, match="/boss has stopped"):
                    await boss.ask(Pass("work", 1000.0))

            await trio.testing.wait_all_tasks_blocked()
            await system.stop(boss)
            assert trio.current_time() == 2.0
        await trio.testing.wait_all_tasks_blocked()
        # whom the cancelled operation asked has been told
        assert len(behind(counter).abandoned_tokens) == 1


async def test_a_stop_does_not_wait_for_whom_a_cancelled_operation_asked(
    dispatch: str, autojump_clock: Any
) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        counter = await system.spawn(Counter, name="counter")
        middle = await system.spawn(lambda: Boss(counter), name="middle", stop_timeout=3.0)
        top = await system.spawn(lambda: Boss(middle), name="top", stop_timeout=2.0)
        top.tell(Pass("deep", 1e6))
        await trio.testing.wait_all_tasks_blocked()
        await system.stop(top)
        assert trio.current_time() == 2.0
        await system.stop(middle)
        assert trio.current_time() == 5.0


async def test_a_spawn_that_is_cancelled_leaves_nothing(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        with trio.CancelScope() as scope:

            class Slow(Counter):
                def on_start(self) -> None:
                    scope.cancel()
                    raise ValueError("too late")

            with pytest.raises(ActorCrashed):
                await system.spawn(Slow, name="slow")
        with trio.CancelScope() as scope:
            scope.cancel()
            await system.spawn(Counter, name="cancelled")
        assert scope.cancelled_caught
        assert system.refs == {}
        assert system.top.children == []


async def test_stopping_is_over_when_the_block_is_left(dispatch: str, autojump_clock: Any) -> None:
    before = len(tasks())
    async with open_system("t", dispatch=dispatch) as system:
        ref = await system.spawn(Counter, name="c")
        ref.tell(Work(1000.0))
        await trio.testing.wait_all_tasks_blocked()
        assert len(tasks()) > before
    assert len(tasks()) == before
    assert system.dead_letters[Reason.NO_REPLY] == 0


class Slow(Counter):
    """Its child task takes long to end, whatever cancels it."""

    def on_start(self) -> None:
        self.start(self._slow)

    async def _slow(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(100)


async def test_who_waits_for_a_crashed_actor_is_refused_before_its_child_tasks_end(
    dispatch: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_system("t", dispatch=dispatch, backoff=AT_ONCE) as system:
        slow = await system.spawn(Slow, name="slow")
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(ActorCrashed):
                    await slow.ask(Later())

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            begun = trio.current_time()
            await crash(slow)
        assert trio.current_time() == begun
        assert await slow.ask(Add()) == 1, "the next life begins when all of the last is over"
        assert trio.current_time() == begun + 100


@pytest.mark.parametrize("deep", [False, True])
async def test_when_the_top_gives_up_nobody_waits_for_what_is_being_stopped(
    dispatch: str, autojump_clock: trio.testing.MockClock, *, deep: bool
) -> None:
    closed = False
    try:
        async with open_system("t", dispatch=dispatch, intensity=0) as system:
            parent: Any = None
            if deep:
                (parent,) = await system.start_children(SupervisorSpec(name="below", intensity=0))
            slow = await system.spawn(Slow, name="slow", parent=parent)
            other = await system.spawn(Counter, name="other", parent=parent)
            begun = trio.current_time()
            refused = []

            async def wait(message: Any) -> None:
                try:
                    await other.ask(message)
                except (ActorStopped, Closed):
                    refused.append(trio.current_time())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, Later())
                await trio.testing.wait_all_tasks_blocked()
                await crash(slow)
                nursery.start_soon(wait, Add())
            assert refused == [begun, begun]
    except Closed:
        closed = True
    assert closed
