"""trio as the guest of an asyncio loop: in the loop's own thread, for as long as a cache is open there."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import outcome
import trio

from ..errors import WrongHost
from .interrupts import Interrupts

T = TypeVar("T")

_HERE = threading.local()
"""The guest of this thread: trio runs once in a thread, so all caches of a loop share one guest."""


async def to_its_end(future: asyncio.Future[Any]) -> None:
    """Wait for what must not be cut short; a cancellation that came meanwhile is raised after it."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class Guest:
    """One trio run inside an asyncio loop. Made by `guest_here`; ends with the last stay."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.over: asyncio.Future[None] = loop.create_future()
        self.stays: dict[Stay[Any], None] = {}
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._ended = False
        self._enough = trio.Event()
        # the steps of trio that are due: the loop takes them from here, or `drive` where it has closed
        self._ticks: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._interrupts = Interrupts(loop)
        self._interrupts.install()
        try:
            trio.lowlevel.start_guest_run(
                self._enough.wait,
                run_sync_soon_threadsafe=self._soon_threadsafe,
                run_sync_soon_not_threadsafe=self._soon,
                done_callback=self._done,
                host_uses_signal_set_wakeup_fd=True,
            )
        except RuntimeError as error:
            self._interrupts.remove()
            raise WrongHost(
                "trio runs in this thread already, and it can only once: open the cache in that run, "
                "by banyankv.open_cache, or in another thread"
            ) from error
        _HERE.guest = self
        atexit.register(self._at_exit)

    @property
    def leaving(self) -> bool:
        """Whether it takes no further stay: it has ended, or is about to."""
        return self._enough.is_set()

    @property
    def forked(self) -> bool:
        """Whether this is another process than the one in which trio runs."""
        return os.getpid() != self._pid

    def _soon_threadsafe(self, tick: Callable[[], object]) -> None:
        self._ticks.put(tick)
        with contextlib.suppress(RuntimeError):  # the loop has closed: see `drive`
            self.loop.call_soon_threadsafe(self._tick)

    def _soon(self, tick: Callable[[], object]) -> None:
        self._ticks.put(tick)
        with contextlib.suppress(RuntimeError):  # as above
            self.loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._ticks.get()()

    def _done(self, result: outcome.Outcome[Any]) -> None:
        self._ended = True
        self._enough.set()
        self._interrupts.remove()
        del _HERE.guest
        atexit.unregister(self._at_exit)
        for stay in tuple(self.stays):  # there is one only where trio itself failed
            stay.ended(result)
        settle(self.over, result)

    async def left(self) -> None:
        """End with the last stay, and wait for that end: then no step is due and no thread waits."""
        if not self.stays:
            self._enough.set()
            await to_its_end(self.over)

    def drive(self) -> None:
        """Bring all to its end without the loop, which has closed: every stay is over then."""
        if sys.is_finalizing():
            return  # the thread in which trio sleeps has ended, and all that it held ends with the process
        for stay in self.stays:
            stay.leave()
        self._enough.set()
        while not self._ended:
            self._ticks.get()()

    def _at_exit(self) -> None:
        """Bring all to its end where a program ends without having left its block."""
        if not self.forked and self._thread == threading.get_ident():
            self.drive()


async def guest_here() -> Guest:
    """Return the guest of the running loop; start one where there is none."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError as error:
        raise WrongHost(
            "no asyncio loop is running here: open the cache in a coroutine that asyncio.run runs, or "
            "use banyankv.open_cache in a trio program"
        ) from error
    while True:
        guest: Guest | None = getattr(_HERE, "guest", None)
        if guest is None:
            return Guest(loop)
        if guest.loop is not loop:
            if not guest.loop.is_closed():
                raise WrongHost(
                    "a cache is open in another event loop of this thread: leave its block first, or "
                    "run the other loop in a thread of its own"
                )
            guest.drive()
        elif guest.leaving:
            await asyncio.wait((guest.over,))
        else:
            return guest


def settle(future: asyncio.Future[T], result: outcome.Outcome[T]) -> None:
    """Give a future its result, where somebody can still be told."""
    if not future.done() and not future.get_loop().is_closed():
        if isinstance(result, outcome.Error):
            future.set_exception(result.error)
            future.exception()  # raised for whoever waits; nobody has to
        elif isinstance(result, outcome.Value):
            future.set_result(result.value)


class Stay(Generic[T]):
    """One context manager of trio's, entered and left in a task of the guest."""

    def __init__(self, guest: Guest, context: AbstractAsyncContextManager[T]) -> None:
        self._guest = guest
        self._context = context
        self._leaving = trio.Event()
        self._opening = trio.CancelScope()
        self._opened: asyncio.Future[T] = guest.loop.create_future()
        self._over: asyncio.Future[Any] = guest.loop.create_future()
        guest.stays[self] = None
        trio.lowlevel.spawn_system_task(self._run, context=contextvars.copy_context())

    async def _run(self) -> None:
        self.ended(await outcome.acapture(self._stay))

    async def _stay(self) -> None:
        with self._opening:
            async with self._context as value:
                settle(self._opened, outcome.Value(value))
                await self._leaving.wait()

    def ended(self, result: outcome.Outcome[Any]) -> None:
        """Tell who waits that it is over, and how it ended."""
        del self._guest.stays[self]
        settle(self._opened, result)  # only where it was not entered
        settle(self._over, result)

    def leave(self) -> None:
        """Have the context left, or not entered any further."""
        self._leaving.set()
        if not self._opened.done():
            self._opening.cancel()

    async def enter(self) -> T:
        """Wait until it is entered; where that fails or is cancelled, nothing is left of it."""
        try:
            await asyncio.wait((self._opened,))
            return self._opened.result()
        except BaseException:
            self.leave()
            await self._gone()
            raise

    async def exit(self) -> None:
        """Leave it, and raise what leaving it raises; not cut short by cancellation."""
        if self._guest.forked:
            return  # all of it is the parent's
        self.leave()
        if self._guest.loop.is_closed():
            self._guest.drive()
            return
        await self._gone()
        self._over.result()

    async def _gone(self) -> None:
        try:
            await to_its_end(self._over)
        finally:
            await self._guest.left()
