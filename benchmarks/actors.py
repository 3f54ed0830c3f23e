"""`actors`: what a message costs, beside the method call that it stands for."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..actors import Coordinator, Leaf, Message, Ref, handles, open_system
from .bench import Bench
from .pace import Figures, async_us, plain_us

_TIMES = 5000
_SLOW = 10
"""An ask by mailbox takes two task switches: so many times fewer are enough."""


class Step(Message[int], frozen=True):
    """Do next to nothing."""


class Operation(Message[None], frozen=True):
    """Ask for so many steps."""

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


async def measure(bench: Bench) -> None:
    """Measure calls, asks and operations by direct dispatch, and an ask by mailbox."""
    times = bench.scale(_TIMES, 10)
    step = Step()
    async with (
        open_system("direct") as direct,
        open_system("mailbox", dispatch="mailbox") as mailbox,
    ):
        below = await direct.spawn(Below, name="below")
        above = await direct.spawn(lambda: Above(below), name="above")
        boxed = await mailbox.spawn(Below, name="below")
        contenders = {
            "call": partial(_plain, times, partial(below.call, step)),
            "ask": partial(_async, times, partial(below.ask, step)),
            "operation of no step": partial(_async, times, partial(above.ask, Operation(0))),
            "operation of 8 steps": partial(_async, times, partial(above.ask, Operation(8))),
            "ask by mailbox": partial(_async, max(1, times // _SLOW), partial(boxed.ask, step)),
            "floor": partial(_plain, times, partial(Below().step, step)),
        }
        samples = await bench.interleave(contenders)
    for name in list(contenders)[:-1]:
        bench.compare({"message": name}, samples, name, "floor")


async def _plain(times: int, step: Any) -> Figures:
    return {"µs": plain_us(times, step)}


async def _async(times: int, step: Any) -> Figures:
    return {"µs": await async_us(times, step)}
