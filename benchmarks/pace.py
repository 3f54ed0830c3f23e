"""Interleaved rounds, and the machine's speed while they ran.

Virtual machines run at several speeds, in phases of seconds to minutes. So contenders take turns,
A B A B ..., a ratio is made of figures of the same round, and a fixed interpreter loop says how
fast the machine was. With a gate, a figure counts only when the loop was fast just before and
after it: that selects on the machine's state, never on the result.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping

from .results import Spread

Figures = dict[str, float]
"""What one contender measured in one round, by measure."""

Contender = Callable[[], Awaitable[Figures]]

_LOOP = 20_000
_LOOPS = 5
_TRIES = 3
_ENOUGH = 3


def loop_us() -> float:
    """Time a fixed interpreter loop, in µs: the median of seven."""
    times: list[int] = []
    for _ in range(7):
        started = time.perf_counter_ns()
        total = 0
        for number in range(_LOOP):
            total += number
        times.append(time.perf_counter_ns() - started)
    return statistics.median(times) / 1e3


async def median_us(times: int, step: Callable[[], Awaitable[object]]) -> float:
    """Time an async step, each call by itself; the median in µs."""
    now = time.perf_counter_ns
    taken: list[int] = []
    for _ in range(times):
        started = now()
        await step()
        taken.append(now() - started)
    return statistics.median(taken) / 1e3


def plain_us(times: int, step: Callable[[], object]) -> float:
    """Time a short plain step, a loop of calls at once; the median of several loops, in µs a call."""
    now = time.perf_counter_ns
    taken: list[float] = []
    for _ in range(_LOOPS):
        started = now()
        for _ in range(times):
            step()
        taken.append((now() - started) / times)
    return statistics.median(taken) / 1e3


async def async_us(times: int, step: Callable[[], Awaitable[object]]) -> float:
    """Time a short async step as `plain_us` does a plain one."""
    now = time.perf_counter_ns
    taken: list[float] = []
    for _ in range(_LOOPS):
        started = now()
        for _ in range(times):
            await step()
        taken.append((now() - started) / times)
    return statistics.median(taken) / 1e3


class Samples:
    """The figures of all rounds that count."""

    def __init__(self, rounds: list[dict[str, Figures]]) -> None:
        self._rounds = rounds

    def measures(self, name: str) -> list[str]:
        """List what a contender measured."""
        return list(self._rounds[0][name])

    def spread(self, name: str, measure: str) -> Spread:
        """Sum up one figure of one contender."""
        return Spread.of([figures[name][measure] for figures in self._rounds])

    def ratio(self, measure: str, name: str, to: str) -> Spread:
        """Sum up the ratios of two contenders' figures, each within a round."""
        return Spread.of([f[name][measure] / f[to][measure] for f in self._rounds])

    def difference(self, measure: str, name: str, minus: str) -> Spread:
        """Sum up the differences of two contenders' figures, each within a round."""
        return Spread.of([f[name][measure] - f[minus][measure] for f in self._rounds])


class Pace:
    """How often to measure, and when to believe it.

    `gate` is the loop's limit in µs, 0 for none. `loops` collects every look at the speed.
    """

    def __init__(self, rounds: int, gate: float = 0.0) -> None:
        self.rounds = rounds
        self.gate = gate
        self.loops: list[float] = []
        self.slow_rounds = 0
        """Rounds in which some figure was never taken at full speed."""

    async def interleave(self, contenders: Mapping[str, Contender]) -> Samples:
        """Let the contenders take turns for all rounds.

        Rounds that ran slow in spite of retries are left out where at least three others remain.
        """
        every: list[dict[str, Figures]] = []
        quiet: list[dict[str, Figures]] = []
        for _ in range(self.rounds):
            figures: dict[str, Figures] = {}
            fast = True
            for name, contender in contenders.items():
                figures[name], ran_fast = await self._measure(contender)
                fast = fast and ran_fast
            every.append(figures)
            if fast:
                quiet.append(figures)
            else:
                self.slow_rounds += 1
        return Samples(quiet if len(quiet) >= min(_ENOUGH, self.rounds) else every)

    async def _measure(self, contender: Contender) -> tuple[Figures, bool]:
        """Return one contender's figures, and whether the machine was fast all the while."""
        tries = 0
        while True:
            before = loop_us()
            figures = await contender()
            slowest = max(before, loop_us())
            self.loops.append(slowest)
            tries += 1
            fast = not self.gate or slowest <= self.gate
            if fast or tries == _TRIES:
                return figures, fast
