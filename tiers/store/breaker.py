"""A circuit breaker: what fails again and again is left alone for a while."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from typing import NamedTuple

import trio


class BreakerState(enum.Enum):
    """Closed: calls pass. Open: none does. Half-open: one does, to see."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Permit(NamedTuple):
    """Leave to make one call; give it back with `Breaker.settle`."""

    generation: int
    trial: bool


class Breaker:
    """Opens after `threshold` failures in a row, for a pause that doubles with each failed trial.

    A pause is half to all of `base`, `2 * base`, ... seconds, `ceiling` at most, drawn by a
    generator seeded with `seed`, so that many breakers do not try at the same moment. Then one call
    is let through: its success closes the breaker, its failure opens it again. A call that was let
    through before the breaker last opened or closed decides nothing any more. `opened` counts;
    `retry_at` is when an open one lets a trial through, in its clock's seconds.
    """

    def __init__(
        self,
        *,
        threshold: int = 3,
        base: float = 0.5,
        ceiling: float = 60.0,
        seed: int = 0,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._threshold = threshold
        self._base = base
        self._ceiling = ceiling
        self._random = random.Random(seed)  # noqa: S311 - spreads trials, guards no secret
        self._clock = clock
        self._failures = 0
        self._pause = base
        self._generation = 0
        self.retry_at = 0.0
        self._open = False
        self._trying = False
        self.opened = 0

    def __repr__(self) -> str:
        return f"<Breaker {self.state.value}, opened {self.opened} times>"

    @property
    def state(self) -> BreakerState:
        """What the next call meets."""
        if not self._open:
            return BreakerState.CLOSED
        if self._trying or self._clock() < self.retry_at:
            return BreakerState.OPEN
        return BreakerState.HALF_OPEN

    def admit(self) -> Permit | None:
        """Ask for leave to make a call; None says no. Every permit must be settled, once."""
        state = self.state
        if state is BreakerState.OPEN:
            return None
        self._trying = state is BreakerState.HALF_OPEN
        return Permit(self._generation, self._trying)

    def settle(self, permit: Permit, ok: bool | None) -> None:
        """Say how a call went; None where it tells nothing (it was cancelled, say)."""
        if permit.generation != self._generation:
            return
        if permit.trial:
            self._trying = False
        if ok:
            self._failures = 0
            if permit.trial:
                self._close()
        elif ok is False:
            self._failures += 1
            if permit.trial or self._failures >= self._threshold:
                self._trip()

    def _close(self) -> None:
        self._open = False
        self._pause = self._base
        self._generation += 1

    def _trip(self) -> None:
        pause = self._pause * self._random.uniform(0.5, 1.0)
        self.retry_at = self._clock() + pause
        self._open = True
        self._failures = 0
        self._pause = min(self._ceiling, 2 * self._pause)
        self._generation += 1
        self.opened += 1
