"""The cell: what the kernel keeps of one actor across its lives. `Ref` is its public face.

All of it runs in one thread, the one of the trio run. State moves only in `enter`/`leave` pairs around
a handler, so that at any moment the gate tells the truth.
"""

from __future__ import annotations

import contextvars
import math
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

from ..errors import ActorCrashed, ActorStopped, BanyanError, Closed, MailboxFull
from .actor import Actor, Coordinator, Down
from .dead_letters import Reason
from .envelope import Envelope
from .gate import (
    BUSY,
    DEFERRED,
    DOWN,
    FORCED,
    PARKED,
    QUEUED,
    STOPPED,
    WATCHED,
    describe,
)
from .mailbox import Mailbox
from .notices import Abandoned, Prepare, Unwanted
from .operations import Parked, beginner
from .reply import Phase, ReplyToken

if TYPE_CHECKING:
    from .observer import Trace
    from .ref import Ref
    from .system import ActorSystem


class Cell:
    """One actor as the kernel sees it: gate, handlers of the present life, mailbox, open replies."""

    __slots__ = (
        "actor",
        "answer",
        "asker",
        "context",
        "crash",
        "gate",
        "handle_ns",
        "handled",
        "handlers",
        "mailbox",
        "monitored",
        "monitors",
        "name",
        "nursery",
        "parked",
        "path",
        "refused",
        "reply",
        "restarts",
        "sleeper",
        "stopping",
        "system",
        "token",
        "tokens",
    )

    def __init__(self, system: ActorSystem, name: str, path: str, bound: int) -> None:
        self.system = system
        self.name = name
        self.path = path
        self.gate = DOWN | (FORCED if system.dispatch == "mailbox" else 0)
        if system.watch.wanted:
            self.gate |= WATCHED
        # steps, and what begins operations: each returns the answer, or the token of one that comes later
        self.handlers: dict[type[Any], Callable[[Any], Any]] = {}
        self.handled = 0
        self.handle_ns = 0
        self.restarts = 0
        self.mailbox = Mailbox(bound)
        self.actor: Actor | None = None
        # what the last operation answered; the next one's takes its place
        self.answer: Any = None
        self.asker: Cell | None = None
        self.reply: ReplyToken | None = None
        self.token: ReplyToken | None = None
        self.tokens: dict[ReplyToken, None] = {}
        self.parked: Parked | None = None
        self.crash: ActorCrashed | None = None
        # what operations of others get that ask now: they are to end, and do not wait for a new life
        self.refused: ActorCrashed | None = None
        self.stopping = False
        self.sleeper: trio.lowlevel.Task | None = None
        self.nursery: trio.Nursery | None = None
        self.context: contextvars.Context | None = None
        self.monitors: dict[Cell, None] = {}
        self.monitored: dict[Cell, None] = {}

    # -- lives ------------------------------------------------------------------------------------

    def bind(self, actor: Actor, ref: Ref[Any]) -> None:
        """Give the cell the actor of its next life."""
        if actor.life is not None and actor.life is not ref:
            raise BanyanError(f"{actor!r} runs already, as {actor.life.path}")
        actor.life = ref
        self.actor = actor
        bound = {kind: getattr(actor, name) for kind, name in type(actor).handlers.items()}
        if isinstance(actor, Coordinator):
            bound[Prepare] = actor.prepare_for
            bound = {kind: beginner(self, actor, operation) for kind, operation in bound.items()}
        self.handlers = bound

    def unbind(self) -> None:
        """Forget the actor of the life that is over, and what it wanted to hear of."""
        for other in self.monitored:
            other.monitors.pop(self, None)
        self.monitored.clear()
        self.handlers = {}
        self.actor = None
        self.nursery = None
        self.context = None

    def start_child(self, fn: Callable[..., Awaitable[None]], args: tuple[Any, ...]) -> None:
        """Start a child task in the actor's own nursery, and in the context of its own task."""
        if self.nursery is None or self.context is None:
            raise ActorStopped(f"{self.path} is not running: it can start no child task")
        name = f"{self.path} {getattr(fn, '__name__', fn)}"
        self.context.run(_start_soon, self.nursery, name, self._child, fn, args)

    @trio.lowlevel.enable_ki_protection
    async def _child(self, fn: Callable[..., Awaitable[None]], args: tuple[Any, ...]) -> None:
        self.system.child_of.set(self.path)
        try:
            await fn(*args)
        except (ActorStopped, Closed) as error:
            # a report that comes while the actor stops has nobody left to hear it
            if not self.gate & STOPPED:
                self.crashed(error)
        except Exception as error:  # noqa: BLE001 - any error of a child is a crash of its actor
            self.crashed(error)

    def monitor(self, other: Cell) -> None:
        """Have this actor told when the other goes down."""
        if other.gate & STOPPED:
            self.post_notice(Down(other.path, "stopped"))
        else:
            other.monitors[self] = None
            self.monitored[other] = None

    def tell_monitors(self, cause: BaseException | None) -> None:
        """Tell every monitor that this actor's life is over."""
        for watcher in self.monitors:
            if not watcher.gate & STOPPED:
                watcher.post_notice(Down(self.path, "" if cause is None else str(cause)))

    # -- one message ------------------------------------------------------------------------------

    def defer(self) -> ReplyToken:
        """Make the message in hand one that is answered later."""
        if self.token is not None or not self.gate & BUSY:
            raise RuntimeError(f"{self.path}: defer() is for a handler, once per message")
        token = self.reply
        if token is None:
            token = ReplyToken(self, None, self.system.trace, self.system.deadline)
        token.since = min(token.since, trio.current_time())
        self.token = token
        self.gate |= DEFERRED
        return token

    def leave(self, msg: Any, answer: Any) -> Any:
        """End a handler that returned; return its answer, or the token if it deferred."""
        self.handled += 1
        gate = self.gate & ~(BUSY | PARKED | DEFERRED)
        token, self.token = self.token, None
        self.reply = None
        self.gate = gate
        if token is None:
            return answer
        token.msg = msg
        token.defer()
        return token

    def failed(self, error: BaseException) -> BaseException:
        """End a handler that raised; return what its asker gets: a refusal itself, a crash boxed."""
        self.cut_off()
        refusals = Actor.refusals if self.actor is None else self.actor.refusals
        if isinstance(error, refusals):
            return error
        if self.gate & STOPPED and isinstance(error, (ActorStopped, Closed)):
            return error  # its last act told somebody who has stopped as well: no crash
        boxed = self.crashed(error)
        return boxed if isinstance(error, Exception) else error

    def cut_off(self) -> None:
        """End a handler that has no answer; by itself, as where it was cancelled, that is no crash."""
        self.handled += 1
        token, self.token = self.token, None
        if token is not None and token is not self.reply:
            # the error is the answer, and raised; whoever kept the token finds it answered
            token.phase = Phase.ANSWERED
        self.reply = None
        self.gate &= ~(BUSY | PARKED | DEFERRED)

    def crashed(self, error: BaseException) -> ActorCrashed:
        """Note that the actor's state can no longer be trusted; its supervisor decides what comes next."""
        boxed = box(self.path, error)
        if self.crash is None:
            self.crash = boxed
        self.gate |= DOWN
        self.wake()
        self.system.crashed(self, self.crash)
        return boxed

    def unclaimed(self, reply: ReplyToken, value: Any, error: BaseException | None) -> None:
        """Deal with an answer that nobody waits for."""
        letters = self.system.dead_letters
        if error is not None:
            reason = Reason.ASKER_GONE if reply.asked else Reason.REFUSED
            if isinstance(error, ActorCrashed):
                reason = Reason.CRASHED
            letters.add(reason, self.path, reply.msg, reply.trace, str(error))
            return
        if reply.asked:
            letters.add(Reason.ASKER_GONE, self.path, reply.msg, reply.trace)
        actor = self.actor
        if value is not None and actor is not None:
            self.run_hook(lambda: actor.orphaned(reply.msg, value), reply.trace)

    def run_hook(self, hook: Callable[[], None], trace: Trace | None) -> None:
        """Run a hook as (part of) a step of this actor; an error out of it is a crash."""
        system = self.system
        kept = system.op, system.running, system.trace, system.deadline
        system.op, system.running, system.trace, system.deadline = None, self, trace, math.inf
        busy = self.gate & BUSY
        self.gate |= BUSY
        try:
            hook()
        except Exception as error:  # noqa: BLE001 - any error of a hook is a crash of its actor
            self.crashed(error)
        finally:
            if not busy:
                self.gate &= ~BUSY
            system.op, system.running, system.trace, system.deadline = kept

    # -- the mailbox ------------------------------------------------------------------------------

    def enqueue(self, envelope: Envelope, *, may_wait: bool, exempt: bool = False) -> None:
        """Put a message into the mailbox and have the actor's task look at it."""
        try:
            self.mailbox.put(envelope, may_wait=may_wait, exempt=exempt)
        except MailboxFull as full:
            letters = self.system.dead_letters
            letters.add(Reason.MAILBOX_FULL, self.path, envelope.msg, envelope.trace)
            raise MailboxFull(f"{self.path}: {full}") from None
        self.gate |= QUEUED
        self.wake()

    def take(self) -> Envelope | None:
        """Take the next message out of the mailbox."""
        envelope = self.mailbox.take()
        if not self.mailbox:
            self.gate &= ~QUEUED
        return envelope

    def withdraw(self, envelope: Envelope) -> None:
        """Take a message out that its asker no longer wants handled."""
        self.mailbox.withdraw(envelope)
        if not self.mailbox:
            self.gate &= ~QUEUED

    def notice(self, token: ReplyToken) -> None:
        """Have the actor told, as a step, that the asker of a deferred reply left."""
        self.post_notice(Abandoned(token))

    def post_notice(self, msg: Any) -> None:
        """Queue a message of the kernel's own on the control lane, whatever the bound."""
        reply = ReplyToken(self, msg, None, math.inf, asked=False)
        envelope = Envelope(msg, reply, trace=None, deadline=math.inf, control=True)
        self.enqueue(envelope, may_wait=False, exempt=True)

    def wake(self) -> None:
        """Have the actor's own task look around."""
        sleeper, self.sleeper = self.sleeper, None
        if sleeper is not None:
            trio.lowlevel.reschedule(sleeper)

    def close_letters(self, error: Callable[[], BaseException], reason: Reason) -> None:
        """Refuse everything that is queued: nobody will handle it."""
        left = self.mailbox.clear()
        self.gate &= ~QUEUED
        for envelope in left:
            if not isinstance(envelope.msg, (Abandoned, Unwanted, Down)):
                self.system.dead_letters.add(reason, self.path, envelope.msg, envelope.trace)
                envelope.reply.dispose(error())

    def close_tokens(self, error: Callable[[], BaseException]) -> None:
        """Refuse all deferred replies: the life that knew of them is over."""
        for token in tuple(self.tokens):
            if not token.left:
                self.system.dead_letters.add(Reason.NO_REPLY, self.path, token.msg, token.trace)
            token.dispose(error())
        self.tokens.clear()

    def refuse_operations(self, error: ActorCrashed) -> None:
        """Refuse what operations of others have queued, and will ask until the next life."""
        self.refused = error
        for envelope in self.mailbox.letters():
            if envelope.asker is not None:
                self.withdraw(envelope)
                envelope.reply.dispose(error)

    def hand_over(self) -> None:
        """Queue again, ahead of all others, what a life before this one has left unanswered."""
        waiting = [token for token in self.tokens if not token.left]
        self.tokens.clear()
        for token in reversed(waiting):
            token.phase = Phase.QUEUED
            token.envelope = Envelope(token.msg, token, trace=token.trace, deadline=token.deadline)
            self.mailbox.put_first(token.envelope)
            self.gate |= QUEUED

    def describe(self) -> str:
        """Say in a few words what the actor is doing."""
        return f"{describe(self.gate)}, {self.handled} handled, {len(self.mailbox)} queued"


def _start_soon(
    nursery: trio.Nursery, name: str, fn: Callable[..., Awaitable[None]], *args: Any
) -> None:
    nursery.start_soon(fn, *args, name=name)


def box(path: str, error: BaseException) -> ActorCrashed:
    """Box an unexpected error with the path of the actor in which it arose; one that is boxed stays so."""
    if isinstance(error, ActorCrashed):
        return error  # an actor below crashed first
    boxed = ActorCrashed(
        path,
        f"{type(error).__module__}.{type(error).__qualname__}",
        str(error),
        "".join(traceback.format_exception(error)),
    )
    boxed.__cause__ = error
    return boxed
