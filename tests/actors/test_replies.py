"""Deferred replies, deadlines, askers that leave: no answer is lost, none is given twice."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from banyankv.actors import (
    ActorSystem,
    Leaf,
    Message,
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


class Held(Leaf):
    """Counts what its answers hold; each must be taken or given back."""

    def __init__(self) -> None:
        super().__init__()
        self.out = 0
        self.tokens: list[ReplyToken] = []

    @handles(Add)
    def take(self, msg: Add) -> int:
        self.out += 1
        return 1

    @handles(Work)
    def take_later(self, msg: Work) -> None:
        self.tokens.append(self.defer())
        self.start(self._soon, msg.seconds)

    async def _soon(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.ref.tell(Answer())

    @handles(Answer)
    def answer(self, msg: Answer) -> None:
        if self.tokens:
            self.out += 1
            self.tokens.pop(0).reply(1)

    @handles(Later)
    def give_back(self, msg: Later) -> None:
        self.out -= 1

    def abandoned(self, token: ReplyToken) -> None:
        if token in self.tokens:
            self.tokens.remove(token)

    def orphaned(self, msg: Any, result: Any) -> None:
        self.out -= 1


class CancelAt(trio.abc.Instrument):
    """Cancels a scope at the k-th step of one task."""

    def __init__(self, task: trio.lowlevel.Task, scope: trio.CancelScope, k: int) -> None:
        self.task, self.scope, self.left = task, scope, k

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()


async def test_a_request_cancelled_at_any_checkpoint_leaves_nothing_behind(
    dispatch: str, autojump_clock: Any
) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        held = await system.spawn(Held, name="held")
        boss = await system.spawn(lambda: Boss(held), name="boss")

        async def request(scope: trio.CancelScope, k: int) -> bool:
            instrument = CancelAt(trio.lowlevel.current_task(), scope, k)
            trio.lowlevel.add_instrument(instrument)
            taken = 0
            try:
                with scope:
                    for msg in (Add(), Work(0.1)):
                        taken += await held.ask(msg)
                    taken += await boss.ask(Pass("work", 0.1))
                    taken += sum(await boss.ask(Twice()))
            finally:
                trio.lowlevel.remove_instrument(instrument)
            with trio.CancelScope(shield=True):
                for _ in range(taken):
                    await held.ask(Later())
            return not scope.cancel_called

        k, finished = 0, False
        while not finished:
            k += 1
            finished = await request(trio.CancelScope(), k)
            await trio.sleep(1)
            assert behind(held).out == 0, f"cancelled at step {k}"
        assert k >= (3 if dispatch == "direct" else 5)


class GiveBack(Message[int], frozen=True):
    withdrawable = False


class Shelf(Counter):
    """Takes back what somebody had, whether or not that one waits for it."""

    @handles(GiveBack)
    def give_back(self, msg: GiveBack) -> int:
        self.total += 1
        return self.total


async def test_what_is_not_withdrawable_is_handled_when_its_asker_has_left() -> None:
    async with open_system("t", dispatch="mailbox") as system:
        shelf = await system.spawn(Shelf, name="shelf")
        for message in (Add(10), GiveBack()):
            with trio.CancelScope() as scope:
                scope.cancel()
                await shelf.ask(message)
            assert scope.cancelled_caught
        assert await shelf.ask(Add(0)) == 1
        assert behind(shelf).orphans == [(GiveBack(), 1)]
        assert system.dead_letters[Reason.ASKER_GONE] == 2
