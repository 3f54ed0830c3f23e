"""A request cancelled at each checkpoint it passes gives everything back.

An instrument counts the steps of the request's task; at the end of its k-th step, that is at its k-th
checkpoint, wherever that is, the request is cancelled. Copies are stalled, room is short, and what the
request waits for comes only when nothing else moves.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing
from banyankv import NoCapacity

from .engine import Turn, config_of, model_of
from .harness import NOBODY, Bench, bench_of

PROMPT = tuple(range(16))
MOST = 400
"""More checkpoints than any of these requests has: a sweep must come to its end."""


class CancelAt(trio.abc.Instrument):
    """Cancels a scope when one task has taken its k-th step."""

    def __init__(self, task: trio.lowlevel.Task, scope: trio.CancelScope, step: int) -> None:
        self._task, self._scope, self._left = task, scope, step

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


async def whole_request(bench: Bench) -> None:
    """Reuse from L2, compute with snapshots, decode into short room, publish, leave."""
    tokens = [*PROMPT, 20, 21, 22, 23]
    async with await bench.cache.acquire(tokens) as lease:
        turn = Turn(bench.cache, lease, NOBODY, tokens)
        turn.verify()
        while turn.computed < len(tokens):
            await turn.extend(min(2, len(tokens) - turn.computed), keep=True)
        await turn.publish()
        for token in range(30, 36):
            turn.tokens.append(token)
            lease.append([token])
            await turn.extend(1, keep=True)
        await turn.publish()
        turn.verify()


async def prepared(bench: Bench) -> Turn:
    """L2 holds the prompt, L1 holds other things, and a running request holds much of its room."""
    await bench.serve(PROMPT, keep=(8, 16))
    holder = await bench.start(range(100, 116))
    await bench.publish(holder, 8)
    await bench.settled()
    return holder


@pytest.mark.parametrize("failing", [0, 1])
async def test_request_cancelled_at_each_checkpoint(failing: int) -> None:
    """Nothing of the request is left, whatever it was doing; the sweep ends when it got through."""
    model = model_of(2, window=4, states=True)
    config = config_of(model, {"full": 20, "swa": 14, "mamba": 4}, 64)
    for step in range(1, MOST):
        async with bench_of(config) as bench:
            holder = await prepared(bench)
            bench.gate.stall()
            bench.gate.failing = failing
            scope, over = trio.CancelScope(), trio.Event()

            async def request(
                bench: Bench = bench,
                scope: trio.CancelScope = scope,
                over: trio.Event = over,
                step: int = step,
            ) -> None:
                instrument = CancelAt(trio.lowlevel.current_task(), scope, step)
                trio.lowlevel.add_instrument(instrument)
                try:
                    with scope:
                        await whole_request(bench)
                except NoCapacity:
                    assert failing
                finally:
                    trio.lowlevel.remove_instrument(instrument)
                    over.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(request)
                await trio.testing.wait_all_tasks_blocked()
                await bench.cache.check()
                bench.gate.let_go()
                await bench.cache.settle()
                await trio.testing.wait_all_tasks_blocked()
                await bench.cache.check()
                await bench.release(holder)
                await over.wait()
            await bench.settled()
            assert not any((await bench.look()).locks.values())
            if not scope.cancel_called:
                return
    raise AssertionError(f"a request with {MOST} checkpoints")
