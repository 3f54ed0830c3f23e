"""A system that is cancelled or interrupted anywhere in its opening or closing is gone afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
import trio
from banyankv.actors import ChildSpec, SupervisorSpec, open_system

from .cast import Counter

MOST = 200
"""More checkpoints than opening and closing have: a sweep must come to its end."""


class At(trio.abc.Instrument):
    """Calls something when one task has taken its k-th step."""

    def __init__(self, task: trio.lowlevel.Task, step: int, act: Callable[[], None]) -> None:
        self._task, self._left, self._act = task, step, act

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._act()


async def open_and_close(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        await system.spawn(Counter, name="one")
        await system.start_children(
            SupervisorSpec(name="below", children=(ChildSpec(factory=Counter, name="two"),))
        )
        await trio.lowlevel.checkpoint()


async def test_cancelled_at_each_checkpoint(dispatch: str) -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    for step in range(1, MOST):
        with trio.CancelScope() as scope:
            at = At(trio.lowlevel.current_task(), step, scope.cancel)
            trio.lowlevel.add_instrument(at)
            try:
                await open_and_close(dispatch)
            finally:
                trio.lowlevel.remove_instrument(at)
        assert trio.lowlevel.current_statistics().tasks_living == before
        if not scope.cancel_called:
            return
    raise AssertionError("the sweep did not end")


async def test_cancelled_before_it_opens(dispatch: str) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await open_and_close(dispatch)
    assert scope.cancelled_caught


async def test_a_sibling_fails_while_it_opens(dispatch: str) -> None:
    with pytest.RaisesGroup(ValueError):
        async with trio.open_nursery() as nursery:

            async def fail() -> None:
                raise ValueError("no")

            nursery.start_soon(open_and_close, dispatch)
            nursery.start_soon(fail)


def test_interrupted_at_each_checkpoint(dispatch: str) -> None:
    kept = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for step in range(1, MOST):
            if not _interrupted(dispatch, step):
                return
    finally:
        signal.signal(signal.SIGINT, kept)
    raise AssertionError("the sweep did not end")


def _interrupted(dispatch: str, step: int) -> bool:
    sent = False

    def interrupt() -> None:
        nonlocal sent
        sent = True
        signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        at = At(trio.lowlevel.current_task(), step, interrupt)
        trio.lowlevel.add_instrument(at)
        await open_and_close(dispatch)

    try:
        trio.run(main)
    except KeyboardInterrupt:
        assert sent
    return sent
