"""The clock of a system: trio's own, so that a test's MockClock governs every deadline and backoff."""

from __future__ import annotations

import trio


class Clock:
    """Tells the time of the trio run, in seconds of `trio.current_time()`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<Clock of the trio run>"

    def now(self) -> float:
        """Answer the present time. Needs to be within a trio run."""
        return trio.current_time()
