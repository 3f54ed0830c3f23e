"""Dispatch: how a message gets to its handler, off the hot path (which is in `Ref`).

A message runs in its sender's stack where its actor is free, after what is queued there; otherwise it
is queued and the actor's own task runs it. Handlers never see the difference.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import trio

from ..errors import ActorStopped, ConfigError, DeadlineExceeded, Reentry, WouldWait
from .actor import Coordinator, Down
from .cell import Cell
from .dead_letters import Reason
from .envelope import Envelope
from .gate import (
    BLOCKED,
    BUSY,
    DOWN,
    FORCED,
    PARKED,
    QUEUED,
    STOPPED,
    WATCHED,
    describe,
)
from .notices import Abandoned, Prepare, Unwanted
from .operations import Parked, park
from .reply import Phase, ReplyToken

if TYPE_CHECKING:
    from .observer import Trace

# -- from the sender's side -------------------------------------------------------------------------


def begin(cell: Cell, msg: Any, deadline: float | None, trace: Trace | None) -> Any:
    """Ask: return the answer, or the ReplyToken to wait on. Raises what the handler raises."""
    system = cell.system
    given = math.inf if deadline is None else deadline
    deadline = min(given, system.deadline)
    if trace is None:
        trace = system.trace
    if cell.gate & STOPPED:
        raise stopped(cell)
    if given != math.inf and trio.current_time() >= given:
        system.dead_letters.add(Reason.DEADLINE, cell.path, msg, trace)
        raise DeadlineExceeded(f"the deadline for {type(msg).__name__} was over before it was sent")
    if cell.gate & WATCHED:
        return system.watch.begin(cell, msg, given=given, deadline=deadline, trace=trace)
    if can_run(cell):
        return run(cell, msg, trace, deadline, asker=system.op, reply=None)
    envelope = question(cell, msg, given, deadline, trace)
    cell.enqueue(envelope, may_wait=True)
    return envelope.reply


def question(cell: Cell, msg: Any, given: float, deadline: float, trace: Trace | None) -> Envelope:
    """Make the envelope of a question that must be queued. Raises Reentry, or that the actor stopped."""
    if cell.gate & STOPPED:
        raise stopped(cell)
    op = cell.system.op
    check_cycle(cell, op)
    if op is not None and cell.refused is not None:
        raise cell.refused
    firm = op is not None and given == math.inf
    reply = ReplyToken(cell, msg, trace, deadline, firm=firm)
    reply.since = trio.current_time()
    envelope = Envelope(msg, reply, trace=trace, deadline=deadline, asker=op)
    reply.envelope = envelope
    reply.phase = Phase.QUEUED
    return envelope


def call(cell: Cell, msg: Any, trace: Trace | None) -> Any:
    """Run a step or operation in the caller's stack, or raise WouldWait."""
    system = cell.system
    if trace is None:
        trace = system.trace
    if cell.gate & STOPPED:
        raise stopped(cell)
    if cell.gate & BUSY and not cell.gate & PARKED and not cell.gate & FORCED:
        raise Reentry(" -> ".join([*stack(), cell.path]))
    check_cycle(cell, system.op)
    if not can_run(cell):
        raise WouldWait(f"{cell.path} cannot answer now: {reason_to_wait(cell)}")
    if cell.gate & WATCHED:
        answer = system.watch.call(cell, msg, trace)
    else:
        answer = run(cell, msg, trace, system.deadline, asker=system.op, reply=None)
    return settled(cell, answer)


def settled(cell: Cell, answer: Any) -> Any:
    """Return what a call returns; a reply that comes later is given up, and WouldWait raised."""
    if type(answer) is not ReplyToken:
        return answer
    if answer.phase is Phase.ANSWERED:
        return answer.result()
    parked = answer.phase is Phase.BEGUN
    answer.left = True
    if not parked and cell.actor is not None:
        actor = cell.actor
        cell.run_hook(lambda: actor.abandoned(answer), answer.trace)
        cell.tokens.pop(answer, None)
    why = "its operation has to wait" if parked else "it answers later"
    raise WouldWait(f"{cell.path} cannot answer {type(answer.msg).__name__} now: {why}")


def post(cell: Cell, msg: Any, *, control: bool, trace: Trace | None, needed: bool = False) -> None:
    """Tell: queue a message that nobody waits for. It inherits the trace, never the deadline.

    Raises InjectedFault where a fault plan loses one that is `needed`.
    """
    system = cell.system
    if trace is None:
        trace = system.trace
    if cell.gate & STOPPED:
        system.dead_letters.add(Reason.STOPPED, cell.path, msg, trace)
        raise stopped(cell)
    reply = ReplyToken(cell, msg, trace, math.inf, asked=False)
    envelope = Envelope(msg, reply, trace=trace, deadline=math.inf, control=control)
    if cell.gate & WATCHED:
        system.watch.post(cell, envelope, needed=needed)
    else:
        cell.enqueue(envelope, may_wait=False)


def can_run(cell: Cell) -> bool:
    """Say whether a message can run now; runs what is queued before it."""
    return not cell.gate & BLOCKED and (not cell.gate & QUEUED or drain(cell))


def drain(cell: Cell) -> bool:
    """Run what is queued, in the caller's stack; return whether the actor is free after it."""
    while cell.gate & QUEUED:
        if cell.gate & WATCHED and not cell.system.watch.is_due(cell):
            return False
        envelope = cell.take()
        if envelope is None:
            break
        deliver(cell, envelope)
        if cell.gate & BLOCKED:
            return False
    return True


def stopped(cell: Cell) -> Exception:
    """Make the error that whoever asks a stopped actor gets."""
    return cell.system.closing_error() or ActorStopped(f"{cell.path} has stopped")


def reason_to_wait(cell: Cell) -> str:
    """Say why a message cannot run in its sender's stack."""
    if cell.gate & FORCED:
        return "mailbox dispatch"
    if cell.gate & DOWN:
        return "not started, or restarting"
    return describe(cell.gate)


def check_cycle(cell: Cell, asker: Cell | None) -> None:
    """Raise Reentry if the operation that asks is itself waited for by the actor it asks."""
    chain: list[str] = []
    while asker is not None:
        chain.append(asker.path)
        if asker is cell:
            raise Reentry(" -> ".join([*reversed(chain), cell.path]))
        asker = asker.asker


HANDLING: dict[CodeType, str] = {}
"""Code that runs handlers -> its local name of the cell: the call chain is read off the stack, when an
error wants it named, so that the hot path need not keep it."""


def stack() -> list[str]:
    """Name the actors that are handling messages in this stack, outermost first."""
    paths: list[str] = []
    frame: FrameType | None = inspect.currentframe()
    for _ in range(3):  # ours, `call`'s and `Ref.call`'s: the call that failed is handling nothing
        frame = None if frame is None else frame.f_back
    while frame is not None:
        name = HANDLING.get(frame.f_code)
        if name is not None:
            path = frame.f_locals[name].path
            if not paths or paths[-1] != path:
                paths.append(path)
        frame = frame.f_back
    return paths[::-1]


# -- from the actor's side --------------------------------------------------------------------------


def handle_next(cell: Cell) -> None:
    """Handle the next queued message, if any, in the actor's own task."""
    envelope = cell.take()
    if envelope is not None:
        deliver(cell, envelope)


def deliver(cell: Cell, envelope: Envelope) -> None:
    """Handle a queued message, under its own trace and deadline; its reply gets the outcome."""
    msg = envelope.msg
    if type(msg) is Abandoned:
        token = msg.token
        if token.phase is Phase.DEFERRED and cell.actor is not None:
            actor = cell.actor
            cell.tokens.pop(token, None)
            cell.run_hook(lambda: actor.abandoned(token), token.trace)
        return
    if type(msg) is Unwanted:
        cell.unclaimed(msg.token, *msg.token.given())
        return
    if type(msg) is Down and cell.actor is not None:
        watcher = cell.actor
        cell.run_hook(lambda: watcher.on_down(msg), None)
        return
    reply = envelope.reply
    expires = envelope.deadline != math.inf and not reply.firm
    if expires and trio.current_time() >= envelope.deadline:
        cell.system.dead_letters.add(Reason.DEADLINE, cell.path, msg, envelope.trace)
        reply.dispose(DeadlineExceeded(f"{type(msg).__name__} waited too long at {cell.path}"))
        return
    reply.phase = Phase.BEGUN
    try:
        if cell.gate & WATCHED:
            answer = cell.system.watch.run(cell, envelope)
        else:
            answer = run(
                cell, msg, envelope.trace, envelope.deadline, asker=envelope.asker, reply=reply
            )
    except BaseException as error:
        if reply.phase is not Phase.ANSWERED:
            reply.settle(None, error if isinstance(error, Exception) else cell.crash)
        if isinstance(error, Exception):
            return
        raise
    if answer is not reply and reply.phase is not Phase.ANSWERED:
        reply.settle(answer)


def run(
    cell: Cell,
    msg: Any,
    trace: Trace | None,
    deadline: float,
    *,
    asker: Cell | None,
    reply: ReplyToken | None,
) -> Any:
    """Run the handler of a message now, on a free actor.

    Returns its answer, or the token of a reply that comes later (because the handler deferred, or its
    operation must wait). Raises a refusal as it is and a crash boxed.
    """
    system = cell.system
    handler = cell.handlers.get(type(msg))
    if handler is None:
        raise unhandled(cell, msg, trace)
    kept = system.op, system.running, system.trace, system.deadline
    system.running, system.trace, system.deadline = cell, trace, deadline
    # a step's asks are nobody's: it has none, and its calls must not look like its caller's
    system.op = asker if isinstance(cell.actor, Coordinator) else None
    cell.gate |= BUSY
    cell.reply = reply
    try:
        answer = handler(msg)
    except BaseException as error:
        failure = cell.failed(error)
        if failure is error:
            raise
        raise failure from error
    finally:
        system.op, system.running, system.trace, system.deadline = kept
    return end(cell, msg, answer)


def unhandled(cell: Cell, msg: Any, trace: Trace | None) -> Exception:
    """Make the error for a message that the actor has no handler for."""
    cell.system.dead_letters.add(Reason.NO_HANDLER, cell.path, msg, trace)
    return ConfigError(
        f"{cell.path} ({type(cell.actor).__qualname__}) has no handler for {type(msg).__qualname__}"
    )


def end(cell: Cell, msg: Any, answer: Any) -> Any:
    """End a handler that returned; return its answer, or the token of one that comes later."""
    return answer if cell.gate & PARKED else cell.leave(msg, answer)


async def prepare(cell: Cell) -> None:
    """Have a coordinator do the first operation of its life, in its own task; nobody else gets in."""
    reply = ReplyToken(cell, None, None, math.inf, asked=False)
    with contextlib.suppress(Exception):  # a crash is noted in the cell
        run(cell, Prepare(), None, math.inf, asker=None, reply=reply)
    while cell.parked is not None and cell.crash is None:
        await finish(cell)


async def finish(cell: Cell) -> None:
    """Bring a parked operation to its end, in the actor's own task."""
    while cell.parked is not None:
        parked = cell.parked
        error: BaseException | None = None
        parked.waits_for.waiter = cell
        try:
            await parked.waits_for.wait()
        except (DeadlineExceeded, trio.Cancelled) as reason:
            error = reason
        resume(cell, parked, error)


def resume(cell: Cell, parked: Parked, error: BaseException | None) -> None:
    """Let a parked operation run on; `error` is what its ask raises instead of looking at the answer."""
    system = cell.system
    kept = system.op, system.running, system.trace, system.deadline
    system.op = system.running = cell
    system.trace, system.deadline = parked.trace, parked.deadline
    operation, reply = parked.operation, parked.reply
    cell.parked = None
    try:
        waits_for = operation.send(None) if error is None else operation.throw(error)
        park(cell, operation, waits_for, parked.msg)
        return  # noqa: TRY300 - to wait again is the usual way out
    except StopIteration:
        answer = cell.answer
    except trio.Cancelled:
        cell.cut_off()
        reply.dispose((cell.gate & DOWN and system.crash) or stopped(cell))
        raise
    except BaseException as raised:
        failure = cell.failed(raised)
        if reply.phase is not Phase.ANSWERED:
            reply.settle(None, failure)
        if isinstance(raised, Exception):
            return
        raise
    finally:
        system.op, system.running, system.trace, system.deadline = kept
    outcome = cell.leave(parked.msg, answer)
    if outcome is not reply and reply.phase is not Phase.ANSWERED:
        reply.settle(answer)


HANDLING[run.__code__] = "cell"
HANDLING[resume.__code__] = "cell"
