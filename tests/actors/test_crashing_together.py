"""Actors that are started anew together: from the step of a crash on, nobody begins an operation."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from banyankv.actors import (
    Coordinator,
    Leaf,
    Message,
    Ref,
    Strategy,
    handles,
    open_system,
)
from banyankv.errors import ActorCrashed, ActorStopped


class Work(Message[str], frozen=True):
    """Ask both hands in turn."""


class Step(Message[str], frozen=True):
    """One step of a hand."""


class Wait(Message[str], frozen=True):
    """Be answered by a later life."""


class Hand(Leaf):
    @handles(Step)
    def step(self, msg: Step) -> str:
        return self.path


class Head(Coordinator):
    """Work with two hands; remembers from when on its waiters wait."""

    hands_over = True

    def __init__(self, left: Ref[Hand], right: Ref[Hand], since: list[float]) -> None:
        super().__init__()
        self.left, self.right, self.waits_since = left, right, since

    @handles(Work)
    async def work(self, msg: Work) -> str:
        return await self.left.ask(Step()) + await self.right.ask(Step())

    @handles(Wait)
    async def wait(self, msg: Wait) -> None:
        token = self.defer()
        self.waits_since.append(token.since)
        if len(self.waits_since) > 1:
            token.reply("heard again")


async def cast(system, since):
    left = await system.spawn(Hand, name="left")
    right = await system.spawn(Hand, name="right")
    head = await system.spawn(lambda: Head(left, right, since), name="head")
    return left, right, head


async def test_no_operation_begins_between_a_crash_and_the_restart(dispatch, autojump_clock):
    """Who asks right after the crash of another is not cut off: the next life answers."""
    async with open_system("t", dispatch=dispatch, strategy=Strategy.ONE_FOR_ALL) as system:
        left, _, head = await cast(system, [])
        left.crashed(RuntimeError("on purpose"))
        assert await head.ask(Work()) == "/left/right"
        assert head.restarts == 1


async def test_an_operation_in_hand_at_a_crash_ends_at_once(autojump_clock):
    """It asks who has crashed, also after that is known: it is refused, and waits for no timeout."""
    async with open_system("t", dispatch="mailbox", strategy=Strategy.ONE_FOR_ALL) as system:
        for rounds in range(12):
            right, head = [system.refs.get(f"/{name}") for name in ("right", "head")]
            if head is None:
                _, right, head = await cast(system, [])
            heard: list[object] = []

            async def ask(head: Ref[Head] = head, heard: list[object] = heard) -> None:
                try:
                    heard.append(await head.ask(Work()))
                except (ActorCrashed, ActorStopped) as error:
                    heard.append(error)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                for _ in range(rounds):
                    await trio.lowlevel.checkpoint()
                right.crashed(RuntimeError("on purpose"))
                began = trio.current_time()
            assert trio.current_time() - began < 1, "an operation was waited for"
            (answer,) = heard
            assert answer == "/left/right" or isinstance(answer, ActorCrashed), answer
            await trio.sleep(20)


async def test_who_waits_has_waited_since_it_asked(dispatch, autojump_clock):
    """A message that a second life hears again says when its asker began to wait."""
    since: list[float] = []
    async with open_system("t", dispatch=dispatch, strategy=Strategy.ONE_FOR_ALL) as system:
        left, _, head = await cast(system, since)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(head.ask, Wait())
            await trio.testing.wait_all_tasks_blocked()
            left.crashed(RuntimeError("on purpose"))
    assert trio.current_time() > began
    assert since == [began, began]


async def test_operations_begin_again_where_the_crashed_is_stopped_for_good(dispatch):
    """Nobody is started anew for it, so nobody waits for that."""
    async with open_system("t", dispatch=dispatch, strategy=Strategy.ONE_FOR_ALL) as system:
        left, right, head = await cast(system, [])
        extra = await system.spawn(Hand, name="extra")
        extra.crashed(RuntimeError("on purpose"))
        await system.stop(extra)
        assert await head.ask(Work()) == "/left/right"
        assert not (left.restarts or right.restarts or head.restarts)


@pytest.mark.parametrize("strategy", list(Strategy))
async def test_who_is_not_started_anew_goes_on(dispatch, autojump_clock, strategy):
    """The crash of a last child keeps only those from operations that it takes along."""
    async with open_system("t", dispatch=dispatch, strategy=strategy) as system:
        _, _, head = await cast(system, [])
        extra = await system.spawn(Hand, name="extra")
        extra.crashed(RuntimeError("on purpose"))
        assert await head.ask(Work()) == "/left/right"
        assert (head.restarts == 1) == (strategy is Strategy.ONE_FOR_ALL)
