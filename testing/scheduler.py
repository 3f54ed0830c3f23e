"""What makes runs repeatable: trio's scheduler with a seed of its own."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import trio

_SWITCH = "_ALLOW_DETERMINISTIC_SCHEDULING"
_RANDOM = "_r"


class _Order:
    """Stands in for trio's generator: orders tasks that may run by their names and a seed.

    So two actors' tasks that may run at the same moment run in the same order in any run with the
    seed, whatever else there is to run; a shuffle would depend on that.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._ranks: dict[str, bytes] = {}

    def shuffle(self, batch: list[trio.lowlevel.Task]) -> None:
        batch.sort(key=lambda task: self._rank(task.name))

    def uniform(self, low: float, high: float) -> float:
        """Say where trio's clock starts."""
        return low

    def _rank(self, name: str) -> bytes:
        rank = self._ranks.get(name)
        if rank is None:
            rank = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
            self._ranks[name] = rank
        return rank


@contextmanager
def seeded_scheduler(seed: int) -> Generator[None, None, None]:
    """Have trio runs inside the block order their tasks by names and this seed.

    trio changes the order of runnable tasks at random, on purpose. Its switch for Hypothesis makes the
    order depend on one private generator alone, for which this puts in its own. Not for several
    threads.
    """
    # the switch is private and typed Final: the one place that knows of it goes by name
    core: Any = sys.modules["trio._core._run"]
    before = getattr(core, _SWITCH), getattr(core, _RANDOM)
    setattr(core, _SWITCH, True)
    setattr(core, _RANDOM, _Order(seed))
    try:
        yield
    finally:
        setattr(core, _SWITCH, before[0])
        setattr(core, _RANDOM, before[1])
