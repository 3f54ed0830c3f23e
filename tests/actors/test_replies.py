"""Deferred replies, deadlines, askers that leave: no answer is lost, none is given twice."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from banyankv.actors import (
    ActorSystem,
    Leaf,
    Reason,
    Ref,
    ReplyToken,
    handles,
    open_system,
)
from banyankv.errors import (
    ActorCrashed,
    ActorStopped,
    Closed,
    ConfigError,
    DeadlineExceeded,
    WouldWait,
)

from .cast import Add, Answer, Boom, Boss, Counter, Later, Pass, Twice, Work, behind


async def boss_and_counter(system: ActorSystem) -> tuple[Ref[Boss], Ref[Counter]]:
    counter = await system.spawn(Counter, name="counter")
    boss = await system.spawn(lambda: Boss(counter), name="boss")
    return boss, counter


async def test_a_deferred_reply_comes_later(dispatch: str, autojump_clock: Any) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        boss, counter = await boss_and_counter(system)
        start = trio.current_time()
        assert await counter.ask(Work(2.0)) == 1
        assert await boss.ask(Pass("work", 3.0)) == 2
        assert trio.current_time() == start + 5.0
        assert not counter.tokens


async def test_an_operation_may_defer_and_ask_on(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        boss, counter = await boss_and_counter(system)
        answers: list[int] = []

        async def ask() -> None:
            answers.append(await boss.ask(Later()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert await boss.ask(Answer(5)) is None
        assert answers == [5]
        assert behind(counter).total == 2


async def test_a_deferred_reply_may_be_a_refusal_or_come_at_once(dispatch: str) -> None:
    class Odd(Leaf):
        @handles(Later)
        def later(self, msg: Later) -> None:
            token = self.defer()
            if msg.who == "bad":
                token.fail(ConfigError("bad"))
            else:
                token.reply(3)

    async with open_system("t", dispatch=dispatch) as system:
        odd = await system.spawn(Odd, name="odd")
        assert await odd.ask(Later()) == 3
        with pytest.raises(ConfigError, match="bad"):
            await odd.ask(Later("bad"))
        if dispatch == "direct":
            assert odd.call(Later()) == 3


async def test_a_second_answer_is_a_crash(dispatch: str) -> None:
    class Twofold(Leaf):
        @handles(Later)
        def later(self, msg: Later) -> None:
            token = self.defer()
            token.reply(1)
            token.reply(2)

    async with open_system("t", dispatch=dispatch) as system:
        ref = await system.spawn(Twofold, name="twofold")
        asker = pytest.raises(ActorCrashed, match="has been answered before")
        if dispatch == "direct":
            with asker:
                await ref.ask(Later())
        else:
            # the first answer was on its way already
            assert await ref.ask(Later()) == 1
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(ref.crash, ActorCrashed) or ref.restarts


async def test_an_answer_outside_a_handler_is_an_error() -> None:
    async with open_system("t") as system:
        counter = await system.spawn(Counter, name="counter")
        with pytest.raises(WouldWait):
            counter.call(Later())
        token = behind(counter).abandoned_tokens[0]
        with pytest.raises(RuntimeError, match="outside a step"):
            token.reply(1)


async def test_defer_is_once_and_in_a_handler_only() -> None:
    class Greedy(Leaf):
        @handles(Later)
        def later(self, msg: Later) -> None:
            self.defer()
            self.defer()

    async with open_system("t") as system:
        greedy = await system.spawn(Greedy, name="greedy")
        with pytest.raises(ActorCrashed, match="once per message"):
            await greedy.ask(Later())
        counter = await system.spawn(Counter, name="counter")
        with pytest.raises(RuntimeError, match="for a handler"):
            behind(counter).defer()


async def test_a_handler_that_defers_and_then_refuses_or_crashes_has_answered(
    dispatch: str,
) -> None:
    class Torn(Leaf):
        @handles(Later)
        def later(self, msg: Later) -> None:
            self.defer()
            raise ConfigError("refused after all") if msg.who else ValueError("crashed after all")

    async with open_system("t", dispatch=dispatch) as system:
        torn = await system.spawn(Torn, name="torn")
        with pytest.raises(ConfigError, match="refused after all"):
            await torn.ask(Later("x"))
        assert not torn.tokens
        with pytest.raises(ActorCrashed, match="crashed after all"):
            await torn.ask(Later())


async def test_a_call_whose_handler_defers_gives_the_reply_up() -> None:
    async with open_system("t") as system:
        counter = await system.spawn(Counter, name="counter")
        with pytest.raises(WouldWait, match="answers later"):
            counter.call(Later("me"))
        actor = behind(counter)
        assert [token.msg for token in actor.abandoned_tokens] == [Later("me")]
        assert counter.call(Answer(1)) == 0
        assert actor.orphans == []


async def test_a_late_answer_to_nobody_is_given_back(dispatch: str) -> None:
    class Stubborn(Counter):
        def abandoned(self, token: ReplyToken) -> None:
            """Keep it, and answer all the same."""

    async with open_system("t", dispatch=dispatch) as system:
        ref = await system.spawn(Stubborn, name="stubborn")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ref.ask, Later("x"))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert await ref.ask(Answer(4)) == 1
        assert behind(ref).orphans == [(Later("x"), 4)]
        assert system.dead_letters[Reason.ASKER_GONE] == 1


async def test_a_cancelled_asker_of_a_deferred_reply_is_reported(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        _, counter = await boss_and_counter(system)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(counter.ask, Later("x"))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        actor = behind(counter)
        assert [token.msg for token in actor.abandoned_tokens] == [Later("x")]
        assert await counter.ask(Answer()) == 0
        assert not counter.tokens


async def test_an_asker_cancelled_from_within_a_step_is_reported_after_it() -> None:
    scopes: list[trio.CancelScope] = []

    class Canceller(Counter):
        @handles(Add)
        def add(self, msg: Add) -> int:
            scopes[0].cancel()
            return len(self.abandoned_tokens)

    async with open_system("t") as system:
        ref = await system.spawn(Canceller, name="canceller")
        async with trio.open_nursery() as nursery:
            scopes.append(nursery.cancel_scope)
            nursery.start_soon(ref.ask, Later())
            await trio.testing.wait_all_tasks_blocked()
            assert ref.call(Add()) == 0
        await trio.testing.wait_all_tasks_blocked()
        assert len(behind(ref).abandoned_tokens) == 1


async def test_a_deadline_ends_the_wait_for_a_deferred_reply(
    dispatch: str, autojump_clock: Any
) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        boss, counter = await boss_and_counter(system)
        with pytest.raises(DeadlineExceeded, match="/counter did not answer Later"):
            await counter.ask(Later(), deadline=trio.current_time() + 2)
        assert trio.current_time() == 2
        await trio.testing.wait_all_tasks_blocked()
        assert len(behind(counter).abandoned_tokens) == 1
        # an inherited deadline ends the wait of an operation, which lives on
        with pytest.raises(DeadlineExceeded, match="/counter did not answer Later"):
            await boss.ask(Pass("later"), deadline=trio.current_time() + 2)
        await trio.testing.wait_all_tasks_blocked()
        assert len(behind(counter).abandoned_tokens) == 2
        assert await boss.ask(Twice(1)) == (1, 2)
        assert (boss.restarts, counter.restarts) == (0, 0)


async def test_a_deadline_that_is_over_refuses_before_anything_happens(
    dispatch: str, autojump_clock: Any
) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        _, counter = await boss_and_counter(system)
        with pytest.raises(DeadlineExceeded):
            await counter.ask(Add(), deadline=trio.current_time())
        assert behind(counter).total == 0
        assert system.dead_letters[Reason.DEADLINE] == 1


async def test_a_queued_question_is_withdrawn_at_its_deadline_or_cancellation(
    dispatch: str, autojump_clock: Any
) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        boss, _ = await boss_and_counter(system)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(boss.ask, Pass("work", 10.0))
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(DeadlineExceeded):
                await boss.ask(Twice(), deadline=trio.current_time() + 1)
            with trio.move_on_after(1):
                await boss.ask(Twice())
            assert len(boss.mailbox) == 0
        assert system.dead_letters[Reason.DEADLINE] == 1
        assert system.dead_letters[Reason.ASKER_GONE] == 1
        assert await boss.ask(Twice(1)) == (1, 2)


async def test_the_asker_of_a_begun_operation_waits_shielded_for_its_end(
    dispatch: str, autojump_clock: Any
) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        boss, _ = await boss_and_counter(system)
        answers: list[int] = []
        with trio.move_on_after(1):
            answers.append(await boss.ask(Pass("work", 5.0)))
        assert trio.current_time() == 5
        assert answers == [1]


async def test_a_call_whose_operation_waits_is_handed_over(autojump_clock: Any) -> None:
    async with open_system("t") as system:
        boss, _ = await boss_and_counter(system)
        with pytest.raises(WouldWait, match="its operation has to wait"):
            boss.call(Pass("work", 5.0))
        with pytest.raises(WouldWait, match="busy"):
            boss.call(Twice())
        assert not boss.ready
        assert await boss.ask(Twice(1)) == (1, 2)
        assert behind(boss).orphans == [(Pass("work", 5.0), 1)]


async def test_open_replies_are_refused_at_a_crash_and_at_a_stop(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        counter = await system.spawn(Counter, name="counter")
        caught: list[type[BaseException]] = []

        async def ask() -> None:
            try:
                await counter.ask(Later())
            except (ActorCrashed, ActorStopped, Closed) as error:
                caught.append(type(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(ActorCrashed):
                await counter.ask(Boom())
        assert await counter.ask(Add()) == 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            await system.stop(counter)
        assert caught == [ActorCrashed, ActorStopped]
        assert system.dead_letters[Reason.NO_REPLY] == 2
