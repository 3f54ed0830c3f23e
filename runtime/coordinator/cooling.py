"""Cooling: wait for the device to pass what freed pages must wait for, while somebody wants them."""

from __future__ import annotations

import trio

from ...actors import Coordinator
from ...tiers.fences import Fences
from .. import messages as m


class Cooling:
    """Send `Cooled` to its actor when the device has passed a fence: one wait at a time, on a thread."""

    __slots__ = ("_actor", "_fences", "_passed", "_waiting")

    def __init__(self, actor: Coordinator, fences: Fences) -> None:
        self._actor = actor
        self._fences = fences
        self._waiting = False
        self._passed = 0

    def wait(self, fence: int) -> None:
        """Wait for a fence, unless the device is known to have passed it or a wait is under way."""
        if fence > self._passed and not self._waiting:
            self._waiting = True
            self._actor.start(self._wait, fence)

    def cooled(self, fence: int) -> None:
        """Note that the device has passed a fence."""
        self._waiting, self._passed = False, fence

    async def _wait(self, fence: int) -> None:
        # A device that hangs must not keep the cache from closing.
        await trio.to_thread.run_sync(self._fences.wait, fence, abandon_on_cancel=True)
        await self._actor.ref.ask(m.Cooled(fence))
