"""The hosts that a cache can be used from, as scenarios see them: written once, a scenario runs on each.

A scenario is an async function of a `Host`. It may await calls of the cache and what the host gives, and
nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import banyankv
import outcome
import trio
import uvloop
from banyankv import Cache, CacheConfig

Call = Callable[[], Awaitable[Any]]


class Task(Protocol):
    """Something that runs beside the scenario."""

    def cancel(self) -> None:
        """Have it cancelled, as its host does that."""

    async def end(self) -> outcome.Outcome[Any] | None:
        """Wait for its end; return how it ended, None where it was cancelled."""


class Host(Protocol):
    """One way to run a program that uses a cache."""

    name: str

    def run(self, scenario: Callable[[Host], Awaitable[Any]]) -> Any:
        """Run a scenario to its end."""

    def open(self, config: CacheConfig, **parts: Any) -> AbstractAsyncContextManager[Cache]:
        """Open a cache."""

    async def sleep(self, seconds: float) -> None:
        """Let others run for a while."""

    def start(self, call: Call) -> Task:
        """Run a call beside the scenario; within `beside`."""

    def beside(self) -> AbstractAsyncContextManager[None]:
        """Make room for what `start` starts; all of it is over when the block is left."""

    async def cancelled_at(self, step: int, call: Call) -> bool:
        """Run a call and cancel it where it waits for the n-th time; say whether it came so far."""

    async def timed(self, seconds: float, call: Call) -> bool:
        """Run a call with the host's own timeout; say whether that cut it short."""


MOST = 400
"""More waits than any call of a scenario has: a sweep must come to its end."""


async def until(host: Host, true: Callable[[], Any]) -> None:
    """Wait until something is so."""
    for _ in range(5000):
        if true():
            return
        await host.sleep(0.001)
    raise AssertionError("it does not come to be so")


# -- trio -----------------------------------------------------------------------------------------


class TrioTask:
    def __init__(self, call: Call) -> None:
        self._call = call
        self._scope = trio.CancelScope()
        self._over = trio.Event()
        self._outcome: outcome.Outcome[Any] | None = None

    async def run(self) -> None:
        with self._scope:
            try:
                self._outcome = outcome.Value(await self._call())
            except Exception as error:  # noqa: BLE001 - told by `end`
                self._outcome = outcome.Error(error)
        self._over.set()

    def cancel(self) -> None:
        self._scope.cancel()

    async def end(self) -> outcome.Outcome[Any] | None:
        await self._over.wait()
        return self._outcome


class At(trio.abc.Instrument):
    """Cancels a scope when one task has taken its n-th step."""

    def __init__(self, step: int, scope: trio.CancelScope) -> None:
        self._task, self._left, self._scope = trio.lowlevel.current_task(), step, scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


class Trio:
    name = "trio"

    def run(self, scenario: Callable[[Host], Awaitable[Any]]) -> Any:
        return trio.run(scenario, self)

    def open(self, config: CacheConfig, **parts: Any) -> AbstractAsyncContextManager[Cache]:
        return banyankv.open_cache(config, **parts)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as self._nursery:
            yield

    def start(self, call: Call) -> Task:
        task = TrioTask(call)
        self._nursery.start_soon(task.run)
        return task

    async def cancelled_at(self, step: int, call: Call) -> bool:
        with trio.CancelScope() as scope:
            at = At(step, scope)
            trio.lowlevel.add_instrument(at)
            try:
                await call()
            finally:
                trio.lowlevel.remove_instrument(at)
        return scope.cancel_called

    async def timed(self, seconds: float, call: Call) -> bool:
        with trio.move_on_after(seconds) as scope:
            await call()
        return scope.cancelled_caught


# -- asyncio --------------------------------------------------------------------------------------


class AsyncioTask:
    def __init__(self, call: Call) -> None:
        self.task = asyncio.ensure_future(self._run(call))

    async def _run(self, call: Call) -> Any:
        return await call()

    def cancel(self) -> None:
        self.task.cancel()

    async def end(self) -> outcome.Outcome[Any] | None:
        await asyncio.wait((self.task,))
        if self.task.cancelled():
            return None
        return outcome.capture(self.task.result)


class Asyncio:
    name = "asyncio"
    late = False
    """Cancel a task not while it waits but when what it waits for has come, and it has not run since."""

    def run(self, scenario: Callable[[Host], Awaitable[Any]]) -> Any:
        with asyncio.Runner(loop_factory=self.loop) as runner:
            return runner.run(self._whole(scenario))

    async def _whole(self, scenario: Callable[[Host], Awaitable[Any]]) -> Any:
        return await scenario(self)

    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    def open(self, config: CacheConfig, **parts: Any) -> AbstractAsyncContextManager[Cache]:
        return banyankv.asyncio.open_cache(config, **parts)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        self._tasks: list[AsyncioTask] = []
        try:
            yield
        finally:
            for task in self._tasks:
                await task.end()

    def start(self, call: Call) -> Task:
        task = AsyncioTask(call)
        self._tasks.append(task)
        return task

    async def cancelled_at(self, step: int, call: Call) -> bool:
        task: asyncio.Task[Any]
        reached = False

        def cancel(_: object = None) -> None:
            nonlocal reached
            reached = True
            task.cancel()

        @types.coroutine
        def stepped() -> Generator[Any, Any, None]:
            coroutine, left = outcome_of(call), step
            error: BaseException | None = None
            while True:
                try:
                    future = coroutine.send(None) if error is None else coroutine.throw(error)
                except StopIteration:
                    return
                left -= 1
                if left == 0 and self.late and future is not None:
                    future.add_done_callback(cancel)
                elif left == 0:
                    cancel()
                error = None
                try:
                    yield future
                except BaseException as raised:  # noqa: BLE001 - the call's own to deal with
                    error = raised

        async def whole() -> None:
            await stepped()

        task = asyncio.ensure_future(whole())
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return reached

    async def timed(self, seconds: float, call: Call) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await call()
        except TimeoutError:
            return True
        return False


async def outcome_of(call: Call) -> None:
    await call()


class Late(Asyncio):
    name = "asyncio, cancelled late"
    late = True


class Uvloop(Asyncio):
    name = "uvloop"

    def loop(self) -> asyncio.AbstractEventLoop:
        return uvloop.new_event_loop()


IN_TASKS: tuple[type[Host], ...] = (Trio, Asyncio, Late, Uvloop)
"""The hosts whose caches are awaited in the caller's own thread."""
