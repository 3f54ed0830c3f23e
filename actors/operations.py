"""Operations: the handlers of coordinators, driven by hand.

What an operation yields is the token that it must wait for, never anything of trio's, so it can begin
in anybody's stack and end in its actor's task.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from .gate import PARKED
from .reply import Phase, ReplyToken

if TYPE_CHECKING:
    from .actor import Coordinator
    from .cell import Cell
    from .observer import Trace

Operation = Coroutine[ReplyToken, None, Any]


class Parked:
    """An operation that waits: its coroutine, the answer it needs, and who waits for its own."""

    __slots__ = ("deadline", "msg", "operation", "reply", "trace", "waits_for")

    def __init__(
        self,
        operation: Operation,
        waits_for: ReplyToken,
        msg: Any,
        *,
        reply: ReplyToken,
        trace: Trace | None,
        deadline: float,
    ) -> None:
        self.operation = operation
        self.waits_for = waits_for
        self.msg = msg
        self.reply = reply
        self.trace = trace
        self.deadline = deadline


def beginner(
    cell: Cell, actor: Coordinator, operation: Callable[[Any], Operation]
) -> Callable[[Any], Any]:
    """Make what begins an operation look like a step: it returns the token where the end comes later."""
    system, refusals = cell.system, actor.refusals

    async def conduct(msg: Any) -> None:
        # The answer goes into the cell: to return it would cost an exception.
        try:
            answer = await operation(msg)
        except refusals:
            if actor.epilogue_due:
                await epilogue()
            raise
        if actor.epilogue_due:
            await epilogue()
        cell.answer = answer

    async def epilogue() -> None:
        try:
            await actor.epilogue()
        except Exception as error:  # noqa: BLE001 - any error of an epilogue is a crash of its actor
            cell.crashed(error)

    def begin(msg: Any) -> Any:
        outer = system.op
        cell.asker = outer
        system.op = cell
        coroutine = conduct(msg)
        try:
            for waits_for in coroutine.__await__():
                return park(cell, coroutine, waits_for, msg)
        finally:
            system.op = outer
        return cell.answer

    return begin


def park(cell: Cell, operation: Operation, waits_for: object, msg: Any) -> ReplyToken:
    """Hand an operation that must wait over to its actor's task; return the token of its reply."""
    if type(waits_for) is not ReplyToken:
        misuse = RuntimeError(
            f"{cell.path}: the operation for {type(msg).__name__} awaited something that is not an "
            f"ask; await it in a child task (self.start) that tells the actor"
        )
        with contextlib.suppress(StopIteration):
            operation.throw(misuse)
        operation.close()
        raise misuse
    system = cell.system
    reply = cell.reply or cell.token
    if reply is None:
        reply = ReplyToken(cell, msg, system.trace, system.deadline)
    reply.msg = msg
    reply.phase = Phase.BEGUN if reply.phase is not Phase.ANSWERED else reply.phase
    cell.reply = reply
    cell.parked = Parked(
        operation,
        waits_for,
        msg,
        reply=reply,
        trace=system.trace,
        deadline=system.deadline,
    )
    cell.gate |= PARKED
    cell.wake()
    return reply
