"""A process of its own that measures memory: reads what to do from stdin, answers JSON on stdout."""

from __future__ import annotations

import gc
import os
import random
import statistics
import sys
import time
from pathlib import Path

import msgspec
import trio

from ..runtime.cache import Cache, open_cache
from ..spec import TOKEN_BYTES
from . import models, workload
from .pace import loop_us


class Workload(msgspec.Struct, frozen=True, tag=True):
    """Run the multi-turn workload once and answer a `Use`."""

    model: str
    page: int
    tiny: bool = False


class LongRun(msgspec.Struct, frozen=True, tag=True):
    """Run so many turns of ever new sessions; answer the `Growth` after the first tenth and at the end."""

    model: str
    page: int
    turns: int


class Use(msgspec.Struct, frozen=True):
    """Resident bytes at their peak above the empty cache's, and what is cached at the end."""

    peak_bytes: int
    tokens: int
    nodes: int


class Growth(msgspec.Struct, frozen=True):
    """A moment of a long run: the median turn of the stretch before it, and resident bytes."""

    turn_us: float
    loop_us: float
    resident_bytes: int


_LOOK_EVERY = 16
"""Turns between two looks at the memory."""

_STRETCH = 20
"""The stretch before a moment is the run's twentieth; as often is the loop timed in it."""

_LOOP_TURNS = 10
"""The loop takes as long as several turns: so many lie between two of them at least."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Return this process's resident bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


async def serve(cache: Cache, prompt: bytes, *, states: bool) -> None:
    """Run one whole turn."""
    length = len(prompt) // TOKEN_BYTES
    lease = await cache.acquire(prompt)
    await lease.extend(length - lease.length)
    if states:
        await lease.snapshot(at=length)
    await lease.publish()
    await lease.release()


async def use(order: Workload) -> Use:
    """Measure the memory that the multi-turn workload takes."""
    sessions, turns = (8, 4) if order.tiny else (workload.SESSIONS, workload.TURNS)
    tokens = workload.session_tokens(sessions, turns)
    config = models.configure(
        order.model,
        order.page,
        workload.pool_tokens(sessions, turns),
        workload.pool_states(sessions, turns),
    )
    states = models.has_states(order.model)
    turn = [0] * sessions
    async with open_cache(config) as cache:
        gc.collect()
        before = peak = resident()
        for number, session in enumerate(workload.turn_order("uniform", sessions, turns)):
            turn[session] += 1
            length = turn[session] * workload.NEW_TOKENS
            prompt = bytes(memoryview(tokens[session])[: length * TOKEN_BYTES])
            await serve(cache, prompt, states=states)
            if number % _LOOK_EVERY == 0:
                peak = max(peak, resident())
        peak = max(peak, resident())
        stats = await cache.stats()
    full = stats.pools["l1"][0]
    return Use(peak - before, (full.capacity - full.free) * order.page, stats.nodes)


class _Sessions:
    """Ever new sessions, a limited number open at once."""

    def __init__(self) -> None:
        self._source = random.Random(1)
        self._open = [self._new() for _ in range(workload.OPEN_SESSIONS)]
        self._turn = [0] * workload.OPEN_SESSIONS

    def _new(self) -> bytes:
        return workload.random_tokens(self._source, workload.TURNS * workload.NEW_TOKENS)

    def next(self) -> bytes:
        """Return the next prompt, of any open session."""
        place = self._source.randrange(len(self._open))
        self._turn[place] += 1
        length = self._turn[place] * workload.NEW_TOKENS
        prompt = bytes(memoryview(self._open[place])[: length * TOKEN_BYTES])
        if self._turn[place] == workload.TURNS:
            self._open[place], self._turn[place] = self._new(), 0
        return prompt


async def long_run(order: LongRun) -> tuple[Growth, Growth]:
    """Measure what turns and memory become in a long run."""
    config = models.configure(
        order.model, order.page, workload.pool_tokens(), workload.pool_states()
    )
    states = models.has_states(order.model)
    stretch = order.turns // _STRETCH
    moments: list[Growth] = []
    async with open_cache(config) as cache:
        sessions = _Sessions()
        gc.collect()
        before = resident()
        taken: list[int] = []
        loops: list[float] = []
        for number in range(1, order.turns + 1):
            prompt = sessions.next()
            started = time.perf_counter_ns()
            await serve(cache, prompt, states=states)
            taken.append(time.perf_counter_ns() - started)
            if number % max(_LOOP_TURNS, stretch // _STRETCH) == 0:
                loops.append(loop_us())
            if number % stretch == 0:
                if number in (2 * stretch, _STRETCH * stretch):
                    gc.collect()
                    middle = statistics.median(taken) / 1e3
                    moments.append(Growth(middle, statistics.median(loops), resident() - before))
                taken.clear()
                loops.clear()
    return moments[0], moments[1]


def main() -> None:
    """Do what stdin says."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Workload | LongRun)
    measured: object
    match order:
        case Workload():
            measured = trio.run(use, order)
        case LongRun():
            measured = trio.run(long_run, order)
    sys.stdout.buffer.write(msgspec.json.encode(measured))


if __name__ == "__main__":
    main()
