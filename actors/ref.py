"""References: how anybody reaches an actor. The hot path of the kernel is here, all else elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from . import dispatch
from .cell import Cell
from .gate import BLOCKED, BUSY, QUEUED, STOPPED, WATCHED
from .message import Message
from .reply import ReplyToken, Suspension

if TYPE_CHECKING:
    from .actor import Actor
    from .observer import Trace

A_co = TypeVar("A_co", bound="Actor", covariant=True)
Answer = TypeVar("Answer")


class Ref(Cell, Generic[A_co]):
    """The address of one actor, good across its restarts. To be used in the thread of its trio run.

    Messages of one sender to one actor are handled in the order in which they were sent, whichever
    way they were sent; nothing stronger is promised. Besides `path`, the attributes are the kernel's.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        kind = type(self.actor).__name__ if self.actor is not None else "no actor"
        return f"<Ref {self.path} ({kind}): {self.describe()}>"

    @property
    def ready(self) -> bool:
        """Whether `call` can run a message now (it may still defer its reply)."""
        if not self.gate:
            return True
        if self.gate & BLOCKED:
            return False
        return not self.gate & WATCHED or self.system.watch.may_call(self)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued and nothing runs: who asks next is handled next."""
        return not self.gate & (BUSY | QUEUED)

    @property
    def stopped(self) -> bool:
        """Whether the actor has stopped for good: it refuses all that comes."""
        return bool(self.gate & STOPPED)

    @trio.lowlevel.enable_ki_protection
    def call(self, msg: Message[Answer], trace: Trace | None = None) -> Answer:
        """Handle a message in the caller's stack, after what is queued, and return its answer.

        Never waits and needs no running trio task, so an asyncio callback in guest mode may use it.
        Raises WouldWait where it cannot (busy, not started, restarting, mailbox dispatch, an injected
        delay), and also where the handler defers or its operation must wait: the actor is then told
        that the asker left. Raises Reentry when the actor is further up in the same stack, the
        handler's refusal as it is, ActorCrashed for its crash, ActorStopped or Closed.
        """
        answer: Answer
        if self.gate or trace is not None:
            answer = dispatch.call(self, msg, trace)
            return answer
        try:
            handler = self.handlers[type(msg)]
        except KeyError:
            raise dispatch.unhandled(self, msg, self.system.trace) from None
        self.gate = BUSY
        try:
            answer = handler(msg)
        except BaseException as error:
            failure = self.failed(error)
            if failure is error:
                raise
            raise failure from error
        if self.gate == BUSY:
            self.gate = 0
            self.handled += 1
            return answer
        answer = dispatch.settled(self, dispatch.end(self, msg, answer))
        return answer

    @trio.lowlevel.enable_ki_protection
    async def ask(
        self, msg: Message[Answer], *, deadline: float | None = None, trace: Trace | None = None
    ) -> Answer:
        """Have a message handled and return its answer: at once where `call` can, else waiting.

        `deadline` is a trio time; nested asks inherit it, and `trace`. It is no checkpoint where the
        message runs at once. A queued message is withdrawn (if it is `withdrawable`) when its asker is
        cancelled or its deadline passes; from when it is begun the asker waits for the end, shielded;
        a deferred reply may be left again, and the actor is told. Where the mailbox is full the
        message waits for room. Raises DeadlineExceeded, and otherwise what `call` raises but WouldWait.
        """
        answer: Answer
        if self.gate or trace is not None or deadline is not None:
            answer = dispatch.begin(self, msg, deadline, trace)
        else:
            try:
                handler = self.handlers[type(msg)]
            except KeyError:
                raise dispatch.unhandled(self, msg, self.system.trace) from None
            self.gate = BUSY
            try:
                answer = handler(msg)
            except BaseException as error:
                failure = self.failed(error)
                if failure is error:
                    raise
                raise failure from error
            if self.gate == BUSY:
                self.gate = 0
                self.handled += 1
                return answer
            answer = dispatch.end(self, msg, answer)
        if not isinstance(answer, ReplyToken):
            return answer
        if self.system.op is None:
            await answer.wait()
        elif not answer.done:
            await Suspension(answer)
        answer = answer.result()
        return answer

    def begin(
        self, msg: Message[Answer], *, deadline: float | None = None, trace: Trace | None = None
    ) -> Answer | ReplyToken:
        """Ask, as `ask` does, but return the token of an answer that must be waited for.

        For whoever is no trio task: it waits by the token's `rouses` and `give_up`.
        """
        answer: Answer | ReplyToken = dispatch.begin(self, msg, deadline, trace)
        return answer

    def condemn(self, error: Exception) -> None:
        """Have the actor crash by an error that another has found: its state cannot be trusted."""
        if not self.gate & STOPPED:
            self.crashed(error)

    @trio.lowlevel.enable_ki_protection
    def tell(
        self,
        msg: Message[Any],
        *,
        control: bool = False,
        needed: bool = False,
        trace: Trace | None = None,
    ) -> None:
        """Queue a message that nobody waits for; never waits, never runs it in the caller's stack.

        `control` messages are handled before others. Of what is `needed` somebody waits for what it
        tells: that a fault plan loses it is an InjectedFault. The message inherits the trace of the message
        being handled, never its deadline. Raises MailboxFull where the mailbox is full,
        ActorStopped or Closed. A refusal of the handler becomes a dead letter.
        """
        dispatch.post(self, msg, control=control, trace=trace, needed=needed)


dispatch.HANDLING[Ref.call.__code__] = "self"
dispatch.HANDLING[Ref.ask.__code__] = "self"
