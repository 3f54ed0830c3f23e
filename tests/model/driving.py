"""What stands around a cache in a test: a thread of its own, and a gate before its copies."""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
from banyankv import TierUnavailable

T = TypeVar("T")


class Gate:
    """Stands before the copy engine: lets batches through, holds them, or makes them fail."""

    def __init__(self) -> None:
        self._open = trio.Event()
        self._open.set()
        self.failing = 0
        self.failed = 0
        self.waiting = 0

    @property
    def stalled(self) -> bool:
        """Whether copies are held."""
        return not self._open.is_set()

    def stall(self) -> None:
        """Hold every copy that has not started."""
        if self._open.is_set():
            self._open = trio.Event()

    def let_go(self) -> None:
        """Let all copies go."""
        self._open.set()

    async def __call__(self, *_: object) -> None:
        self.waiting += 1
        try:
            await self._open.wait()
        finally:
            self.waiting -= 1
        if self.failing:
            self.failing -= 1
            self.failed += 1
            raise TierUnavailable("the test lets this copy fail")


class TrioThread:
    """Runs one async main in a thread; `call` runs functions in it and brings back what they raise."""

    def __init__(self, main: Callable[[Callable[[Any], None]], Awaitable[None]]) -> None:
        self._ready = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = threading.Thread(target=self._run, args=(main,), daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def _run(self, main: Callable[[Callable[[Any], None]], Awaitable[None]]) -> None:
        async def run() -> None:
            self._token = trio.lowlevel.current_trio_token()
            await main(self._started)

        try:
            trio.run(run)
        except BaseException as error:  # noqa: BLE001 - raised again by `join`
            self._error = error
        finally:
            self._ready.set()

    def _started(self, value: Any) -> None:
        self._value = value
        self._ready.set()

    @property
    def value(self) -> Any:
        """What main handed over when it had started."""
        return self._value

    def call(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Run an async function in the thread and wait for it."""
        bound = functools.partial(function, *args, **kwargs)
        return trio.from_thread.run(bound, trio_token=self._token)

    def join(self) -> None:
        """Wait for the end of main; raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
