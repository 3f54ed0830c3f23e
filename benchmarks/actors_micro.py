"""What a message costs: a bare method call, a call, an ask, an operation, a mailbox ask, in ns.

Run it as `python benchmarks/actors_micro.py`. The figure is the best of several rounds, because
everything else on the machine only ever adds to it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio
from banyankv.actors import Coordinator, Leaf, Ref, handles, open_system

ROUNDS = 15


class Step(msgspec.Struct, frozen=True, gc=False):
    """Does next to nothing."""


class Operation(msgspec.Struct, frozen=True, gc=False):
    """Asks for that many steps."""

    steps: int


class Below(Leaf):
    """The leaf."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @handles(Step)
    def step(self, msg: Step) -> int:
        """Count."""
        self.count += 1
        return self.count


class Above(Coordinator):
    """The coordinator above it."""

    def __init__(self, below: Ref[Below]) -> None:
        super().__init__()
        self.below = below

    @handles(Operation)
    async def operation(self, msg: Operation) -> None:
        """Ask for the steps."""
        step = Step()
        for _ in range(msg.steps):
            await self.below.ask(step)


def best_of(times: int, run: Callable[[], Any]) -> float:
    """Answer the nanoseconds of one of `times` runs of a plain function."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(times):
            run()
        best = min(best, (time.perf_counter_ns() - start) / times)
    return best


async def best_of_async(times: int, run: Callable[[], Awaitable[Any]]) -> float:
    """Answer the nanoseconds of one of `times` runs of an async function."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(times):
            await run()
        best = min(best, (time.perf_counter_ns() - start) / times)
    return best


async def main() -> None:
    """Measure and print."""
    step = Step()
    async with open_system("bench") as system:
        below = await system.spawn(Below, name="below")
        above = await system.spawn(lambda: Above(below), name="above")
        bare = Below().step
        rows = [
            ("bare method call", best_of(20_000, lambda: bare(step))),
            ("call of a leaf", best_of(20_000, lambda: below.call(step))),
            ("ask of a leaf", await best_of_async(20_000, lambda: below.ask(step))),
        ]
        for steps in (0, 1, 8):
            msg = Operation(steps)
            cost = await best_of_async(5_000, lambda msg=msg: above.ask(msg))  # type: ignore[misc]
            rows.append((f"operation of {steps} steps", cost))
    async with open_system("bench", dispatch="mailbox") as system:
        below = await system.spawn(Below, name="below")
        rows.append(("ask by mailbox", await best_of_async(500, lambda: below.ask(step))))
    for name, cost in rows:
        print(f"{name:24} {cost:10.0f} ns")


if __name__ == "__main__":
    trio.run(main)
