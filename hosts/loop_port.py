"""The port of a cache on asyncio: how its callers, who are no trio tasks, wait for answers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import NoReturn, TypeVar

import trio

from ..actors import Message, Phase, Reason, ReplyToken, Trace
from ..errors import WrongHost
from ..runtime.assembly import Assembled
from ..runtime.port import FORKED, YIELD_SECONDS, Port
from ..spec import ModelSpec
from .guest import to_its_end

T = TypeVar("T")


class LoopPort(Port):
    """Ask the cache actor from tasks of one asyncio loop, in whose thread trio is a guest."""

    __slots__ = ("_loop",)

    def __init__(self, model: ModelSpec, assembled: Assembled) -> None:
        super().__init__(model, assembled)
        self._loop = asyncio.get_running_loop()
        self.answer = self._answer

    def yield_if_due(self) -> Awaitable[None]:
        """Check for cancellation, and yield where the caller has run for a millisecond."""
        self.require_host()
        now = time.monotonic()
        if now > self._yield_due:
            self._yield_due = now + YIELD_SECONDS
            return asyncio.sleep(0)
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return asyncio.sleep(0)  # raises what has not been raised yet
        return _AT_ONCE

    def require_host(self) -> None:
        """Raise WrongHost where the running loop is not that of this cache."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if not here:
            self._refuse_host()

    def require_thread(self) -> None:
        """Raise WrongHost as `require_host` does: a callback of the loop may call, too."""
        self.require_host()

    def _refuse_host(self) -> NoReturn:
        self.refuse_closed()
        if not self._thread:
            raise WrongHost(FORKED)
        raise WrongHost(
            "the cache was opened in an asyncio loop that is not running here: call it from a task of "
            "that loop, by asyncio.run_coroutine_threadsafe from another thread, or open it with "
            "banyankv.threads.open_cache"
        )

    async def _answer(
        self, msg: Message[T], *, deadline: float | None = None, trace: Trace | None = None
    ) -> T:
        answer = self.ref.begin(msg, deadline=deadline, trace=trace)
        if not isinstance(answer, ReplyToken):
            return answer
        await self._wait(answer)
        result: T = answer.result()
        return result

    async def shielded(self, call: Callable[[], Awaitable[None]]) -> None:
        """Await what must come to its end even for a cancelled caller, which hears of that after it."""
        task = asyncio.ensure_future(call())
        try:
            await to_its_end(task)
        finally:
            task.exception()  # looked at, also where the cancellation is what is raised
        task.result()

    async def _wait(self, token: ReplyToken) -> None:
        """Wait for an answer, as `ReplyToken.wait` does on trio.

        asyncio can also cancel a task that has its answer and has not run since. Then the answer is
        taken back, too.
        """
        queued = token.phase is Phase.QUEUED
        deadline = _Deadline(self._loop, token)
        cancelled: asyncio.CancelledError | None = None
        try:
            while not token.done:
                if (cancelled or deadline.over) and token.give_up():
                    if queued:
                        token.lost(Reason.ASKER_GONE if cancelled else Reason.DEADLINE)
                    raise cancelled or token.expired()
                cancelled = await self._roused(token) or cancelled
        finally:
            deadline.forget()
        if cancelled is not None:
            token.unwanted()
            raise cancelled

    async def _roused(self, token: ReplyToken) -> asyncio.CancelledError | None:
        """Wait until there is something to look at; return the cancellation that ended the wait, if one did."""
        future: asyncio.Future[None] = self._loop.create_future()
        token.rouses(partial(_wake, future))
        try:
            await future
        except asyncio.CancelledError as error:
            return error
        return None


class _Deadline:
    """Rouses who waits for an answer when its deadline is over."""

    __slots__ = ("_timer", "_token", "over")

    def __init__(self, loop: asyncio.AbstractEventLoop, token: ReplyToken) -> None:
        self._token = token
        self.over = False
        self._timer: asyncio.TimerHandle | None = None
        if token.deadline != math.inf:
            left = max(0.0, token.deadline - trio.current_time())
            self._timer = loop.call_later(left, self._passed)

    def _passed(self) -> None:
        self.over = True
        self._token.rouse()

    def forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not (future.done() or future.get_loop().is_closed()):
        future.set_result(None)


class _AtOnce:
    """What is awaited where there is nothing to wait for."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return iter(())  # type: ignore[return-value]


_AT_ONCE = _AtOnce()
