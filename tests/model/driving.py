"""What stands around a cache in a test: a gate before its copies, and a world without threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import trio
from banyankv import TierUnavailable
from banyankv.testing import seeded_scheduler


class Gate:
    """Stands before the copy engine: lets batches through, holds them, or makes them fail."""

    def __init__(self) -> None:
        self.stalled = False
        """Whether copies are held."""
        self.failing = 0
        self.failed = 0
        self._held: list[trio.Event] = []

    @property
    def waiting(self) -> int:
        """How many batches are held."""
        return len(self._held)

    def stall(self) -> None:
        """Hold every copy that has not started."""
        self.stalled = True

    def let_one_go(self, index: int, *, ok: bool) -> None:
        """Let one batch go that is held, in whatever order, or make it fail."""
        if not ok:
            self.failing += 1
        self._held.pop(index % len(self._held)).set()

    def let_go(self) -> None:
        """Let all copies go."""
        self.stalled = False
        for event in self._held:
            event.set()
        self._held.clear()

    async def __call__(self, *_: object) -> None:
        if self.stalled:
            event = trio.Event()
            self._held.append(event)
            try:
                await event.wait()
            finally:
                if event in self._held:
                    self._held.remove(event)
        if self.failing:
            self.failing -= 1
            self.failed += 1
            raise TierUnavailable("the test lets this copy fail")


class Rounds(trio.abc.Instrument):
    """Counts the rounds of the event loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        """Begin another round."""
        self.count += 1


async def _at_once(work: Callable[..., Any], *args: Any, **_: object) -> Any:
    await trio.lowlevel.checkpoint()
    return work(*args)


@contextmanager
def simulated(seed: int, chunk: int) -> Iterator[None]:
    """Make a history repeatable: no threads, no look at the real clock, tasks in an order by `seed`.

    Callers yield at every call or never; objects of the store hold `chunk` tokens. A slice of an audit
    looks at very little, so that a round meets many changes.
    """
    with (
        seeded_scheduler(seed),
        mock.patch("trio.to_thread.run_sync", _at_once),
        mock.patch("banyankv.runtime.assembly.chunk_tokens", return_value=chunk),
        mock.patch.multiple("banyankv.runtime.coordinator.audit_round", NODES=2, STEPS=2),
        mock.patch.multiple("banyankv.runtime.coordinator.lease_audit", _LEASES=1),
        mock.patch("banyankv.telemetry.facade.warn_of"),  # crashes are on purpose
        mock.patch("banyankv.runtime.port.YIELD_SECONDS", -1.0 if seed % 2 else 1e9),
    ):
        yield
