"""Askers that leave: what they asked for is withdrawn, done or given back, at whatever moment they go."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing
from banyankv.actors import (
    Leaf,
    Message,
    Reason,
    ReplyToken,
    handles,
    open_system,
)

from .cast import Add, Answer, Boss, Counter, Later, Pass, Twice, Work, behind


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
