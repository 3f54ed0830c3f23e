"""The reply token: what an asker waits on, and what a handler keeps that answers later."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from ..errors import BanyanError, DeadlineExceeded
from .dead_letters import Reason
from .gate import BUSY, STOPPED
from .notices import Unwanted

if TYPE_CHECKING:
    from .cell import Cell
    from .envelope import Envelope
    from .observer import Trace


class Phase(enum.Enum):
    """How far a question has come; it decides what becomes of it when its asker leaves."""

    QUEUED = "queued"  # can be withdrawn
    BEGUN = "begun"  # the asker waits for the end, shielded, so that no answer is lost
    DEFERRED = "deferred"  # the asker may leave; the actor is told
    ANSWERED = "answered"


class ReplyToken:
    """The answer to one message, to be given exactly once by a step or operation of its actor.

    A handler gets it from `self.defer()`, keeps it, and answers later with `reply` or `fail`. When the
    asker leaves first, the actor hears `abandoned(token)`; an answer given after that goes to its
    `orphaned(msg, result)`.
    """

    __slots__ = (
        "_error",
        "_unwelcome",
        "_value",
        "_wake",
        "asked",
        "cell",
        "deadline",
        "envelope",
        "firm",
        "left",
        "msg",
        "phase",
        "seq",
        "since",
        "trace",
        "waiter",
    )

    def __init__(
        self,
        cell: Cell,
        msg: Any,
        trace: Trace | None,
        deadline: float,
        *,
        asked: bool = True,
        firm: bool = False,
    ) -> None:
        self.cell = cell
        self.msg = msg
        self.trace = trace
        self.deadline = deadline
        self.phase = Phase.BEGUN
        self.asked = asked
        self.left = not asked
        # the trio time from which the asker waits, once it does; it outlasts the lives that hear it
        self.since = math.inf
        # an operation's own steps are not cut short by the deadline that it inherited, only a deferred
        # answer is: a queued step that expired would leave the operation half done
        self.firm = firm
        self.envelope: Envelope | None = None
        # the coordinator whose own task waits, finishing its operation; when it is being cancelled it
        # leaves whatever it waits for, or nobody could stop above somebody who hangs
        self.waiter: Cell | None = None
        # the message's number in the journal; 0 where nothing is recorded
        self.seq = 0
        self._value: Any = None
        self._error: BaseException | None = None
        self._wake: Callable[[], object] | None = None
        self._unwelcome = False

    def __repr__(self) -> str:
        gone = ", asker gone" if self.left and self.asked else ""
        return (
            f"<ReplyToken {type(self.msg).__name__} at {self.cell.path}: {self.phase.value}{gone}>"
        )

    # -- for handlers -----------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether the answer has been given."""
        return self.phase is Phase.ANSWERED

    def reply(self, value: Any) -> None:
        """Give the answer. Raises RuntimeError when answered before, or outside the actor's own handlers."""
        self._check()
        self.settle(value)

    def fail(self, error: BanyanError) -> None:
        """Refuse: the asker gets the error raised. Raises RuntimeError as `reply` does."""
        self._check()
        self.settle(None, error)

    def _check(self) -> None:
        if self.phase is Phase.ANSWERED:
            raise RuntimeError(f"{self!r} has been answered before")
        if not self.cell.gate & BUSY:
            raise RuntimeError(
                f"{self!r} answered outside a step of {self.cell.path}: "
                f"let the child task tell the actor, and answer from the handler"
            )

    # -- for the kernel ---------------------------------------------------------------------------

    def settle(self, value: Any, error: BaseException | None = None) -> None:
        """Give the answer to the asker, or to nobody."""
        self._answer(value, error)
        if self.left:
            self.cell.unclaimed(self, value, error)

    def _answer(self, value: Any, error: BaseException | None) -> None:
        self.phase = Phase.ANSWERED
        self.cell.tokens.pop(self, None)
        self._value = value
        self._error = error
        if self.seq:
            self.cell.system.watch.answered(self)
        if not self.left:
            self.rouse()

    def dispose(self, error: BaseException) -> None:
        """Refuse in the actor's place, where no handler will answer any more."""
        if self.phase is not Phase.ANSWERED:
            self._answer(None, error)

    def defer(self) -> None:
        """Note that the handler is over and the answer comes later: from here the asker may leave."""
        if self.phase is Phase.ANSWERED:
            return
        self.phase = Phase.DEFERRED
        self.cell.tokens[self] = None
        if self._unwelcome or self.firm:
            self.rouse()

    def leave(self) -> None:
        """Note that the asker is gone: withdraw the question, or have the actor told."""
        self.left = True
        if self.seq:
            self.cell.system.watch.left(self)
        if self.phase is Phase.QUEUED and self.envelope is not None and self.msg.withdrawable:
            self.phase = Phase.ANSWERED
            self.cell.withdraw(self.envelope)
        elif self.phase is Phase.DEFERRED:
            self.cell.notice(self)

    def given(self) -> tuple[Any, BaseException | None]:
        """Tell what was answered: a value, or an error."""
        return self._value, self._error

    def result(self) -> Any:
        """Return what was answered, or raise it."""
        if self._error is not None:
            raise self._error
        return self._value

    async def wait(self) -> None:
        """Wait in the current trio task until `result` can be asked.

        Cancellation and the deadline end the wait unless the message has been begun and not deferred.
        Raises DeadlineExceeded.
        """
        if self.phase is Phase.ANSWERED:
            return
        waiting = self.phase is Phase.QUEUED
        try:
            if self.deadline == math.inf:
                await self._sleep()
                return
            if self.firm:
                await self._sleep(Phase.DEFERRED)
            with trio.CancelScope(deadline=self.deadline) as scope:
                await self._sleep()
            if not scope.cancelled_caught:
                return
        except BaseException:
            if waiting:
                self.lost(Reason.ASKER_GONE)
            raise
        if waiting:
            self.lost(Reason.DEADLINE)
        raise self.expired()

    async def _sleep(self, until: Phase = Phase.ANSWERED) -> None:
        while self.phase is not Phase.ANSWERED and self.phase is not until:
            self.rouses(partial(trio.lowlevel.reschedule, trio.lowlevel.current_task()))
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, raise_cancel: object) -> trio.lowlevel.Abort:
        return trio.lowlevel.Abort.SUCCEEDED if self.give_up() else trio.lowlevel.Abort.FAILED

    # -- for whoever waits in a way of its own ----------------------------------------------------

    def rouses(self, wake: Callable[[], object]) -> None:
        """Have `wake` called once, when there is something to look at: who waits need be no trio task."""
        self._wake = wake

    def rouse(self) -> None:
        """Have whoever waits look again."""
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def expired(self) -> DeadlineExceeded:
        """Make the error for an asker whose deadline is over."""
        return DeadlineExceeded(
            f"{self.cell.path} did not answer {type(self.msg).__name__} before its deadline"
        )

    def lost(self, reason: Reason) -> None:
        """Note that an asker left that found its message queued: if it still was, the message is dead."""
        if self.phase is Phase.ANSWERED and self.msg.withdrawable:
            self.cell.system.dead_letters.add(reason, self.cell.path, self.msg, self.trace)

    def unwanted(self) -> None:
        """Have the actor told that the answer, which was given, reached nobody: it takes it back."""
        self.left = True
        if not self.cell.gate & STOPPED:
            self.cell.post_notice(Unwanted(self))

    def give_up(self) -> bool:
        """Leave, if the asker may; where not, who waits is roused when it may, or has its answer.

        It may not while its message is being handled: what that takes would be lost.
        """
        dying = self.waiter is not None and self.waiter.stopping
        if self.phase is Phase.BEGUN and not dying:
            self._unwelcome = True
            return False
        self._wake = None
        self.leave()
        return True


class Suspension:
    """What an operation yields to its driver while an ask of it must wait: the token it waits on."""

    __slots__ = ("_reply",)

    def __init__(self, reply: ReplyToken) -> None:
        self._reply = reply

    def __await__(self) -> Generator[ReplyToken, None, None]:
        yield self._reply
