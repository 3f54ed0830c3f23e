"""Ctrl-C on a host that is not trio: it never tears a step of the cache."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType

_ROOMS = ("actors", "components", "hosts", "runtime", "telemetry", "tiers")
_ROOT = __name__.removesuffix("hosts.interrupts")
_OURS = ("trio.", *(f"{_ROOT}{room}." for room in _ROOMS))
"""Modules whose code an interrupt must not tear."""


class Interrupts:
    """Keeps Ctrl-C out of steps of the cache: there it waits until the loop's next turn.

    Who handles SIGINT goes on to do so: asyncio.run by cancelling its task, a loop that was started
    by hand by KeyboardInterrupt. trio's own protection works in trio's tasks only.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._before: Callable[[int, FrameType | None], object] | None = None

    def install(self) -> None:
        """Stand before whoever handles SIGINT, where that is Python code."""
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                self._before = before
                signal.signal(signal.SIGINT, self._interrupted)

    def remove(self) -> None:
        """Let who handled it before do so again, if nobody else has taken it over."""
        if self._before is not None and signal.getsignal(signal.SIGINT) == self._interrupted:
            signal.signal(signal.SIGINT, self._before)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._loop.is_running() and _inside(frame):
            self._loop.call_soon_threadsafe(self._pass_on, number, None)
        else:
            self._pass_on(number, frame)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self._before is not None:
            self._before(number, frame)


def _inside(frame: FrameType | None) -> bool:
    """Say whether code of the cache, or of trio, is running in this stack."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_OURS):
            return True
        frame = frame.f_back
    return False
