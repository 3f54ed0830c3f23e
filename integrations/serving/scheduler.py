"""A small continuous-batching scheduler: how an engine embeds the cache in its own loop.

    waiting ──peek──▶ starting ──acquire, restore──▶ running ──▶ over
       ▲                                                │
       └──────────── pre-empted: publish, release ──────┘

One task runs the loop and has all leases of running requests. Each step computes one chunk of one prompt
and one token of every request that answers. Acquiring alone happens in tasks of their own, because it
waits for lower tiers; the loop gets the sequence when it is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import trio

from ...errors import BanyanError, NoCapacity
from ..sequence import Sequence
from ..transformers import TransformersEngine
from .generation import Generation

_PATIENCE = 0.02
"""Seconds to wait for room, which a copy in flight may give, before somebody is pre-empted."""

_LOOK_AHEAD = 8
"""Requests among which the cheapest goes first, and how often the oldest lets that happen."""


class Overloaded(BanyanError):
    """The queue is full; the client may come again after `retry_after` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many requests are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


class ShuttingDown(BanyanError):
    """The server ends."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests run and wait, and how many tokens of prompts may be admitted ahead of computing.

    A prompt that is mostly cached takes little of the `backlog`, so it gets in beside long ones.
    """

    running: int = 8
    waiting: int = 64
    backlog: int = 4096


class Scheduler:
    """Runs generations on one engine: `run` is its loop, `submit` is called from other tasks.

    `first_token` hears after how many seconds each request got its first token.
    """

    def __init__(
        self, engine: TransformersEngine, limits: Limits, first_token: Callable[[float], object]
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._first_token = first_token
        self.waiting: deque[Generation] = deque()
        self.starting: set[Generation] = set()
        self.running: list[Generation] = []
        """By admission: the last is the first to be pre-empted."""
        self.preempted = 0
        self.closing = False
        self._short = False
        self._seconds = 1.0  # that requests took, a running mean
        self._news, self._ended = trio.Event(), trio.Event()

    @asynccontextmanager
    async def submit(self, generation: Generation) -> AsyncGenerator[None]:
        """Queue a request for the length of a block; leaving the block gives it up.

        Raises Overloaded where the queue is full, ShuttingDown at the end.
        """
        if self.closing:
            raise ShuttingDown
        if len(self.waiting) >= self._limits.waiting:
            rounds = 1 + len(self.waiting) / self._limits.running
            raise Overloaded(max(1, round(self._seconds * rounds)))
        self.waiting.append(generation)
        self._news.set()
        try:
            yield
        finally:
            generation.gone = True
            generation.scope.cancel()
            self._news.set()

    def close(self) -> None:
        """Refuse new requests and those that wait; running ones go on."""
        self.closing = True
        while self.waiting:
            self._over(self.waiting.popleft(), ShuttingDown())

    async def drained(self) -> None:
        """Wait until no request waits or runs."""
        while self.waiting or self.starting or self.running:
            await self._ended.wait()

    async def run(self) -> None:
        """Schedule until cancelled; everything is given back then."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    self._news = trio.Event()
                    await self._drop_gone()
                    await self._admit(nursery)
                    prefilled = await self._prefill()
                    if not await self._decode() and not prefilled:
                        await self._news.wait()
        finally:
            self.close()
            for generation in list(self.running):
                await self._end(generation, ShuttingDown())

    async def _drop_gone(self) -> None:
        for generation in [g for g in self.waiting if g.gone]:
            self.waiting.remove(generation)
            self._over(generation)
        for generation in [g for g in self.running if g.gone]:
            await self._end(generation)

    # -- admission ------------------------------------------------------------------------------------

    async def _admit(self, nursery: trio.Nursery) -> None:
        """Start those who wait, cheapest first, while there are places and the backlog is short."""
        while self.waiting and len(self.running) + len(self.starting) < self._limits.running:
            busy = self.running or self.starting
            if self._short and busy:
                return  # whoever was pre-empted would be again: first somebody must end
            generation, missing = await self._cheapest()
            if busy and self._backlog() + missing > self._limits.backlog:
                return
            self._short = False
            self.waiting.remove(generation)
            for other in self.waiting:
                other.passed_over += other.submitted < generation.submitted
            self.starting.add(generation)
            nursery.start_soon(self._start, generation)

    async def _cheapest(self) -> tuple[Generation, int]:
        """Find who has the fewest tokens to compute, or the oldest where it was passed over enough."""
        first = self.waiting[0]
        candidates = [first] if first.passed_over >= _LOOK_AHEAD else list(self.waiting)
        costs: list[tuple[Generation, int]] = []
        for generation in candidates[:_LOOK_AHEAD]:
            peeked = await self._engine.cache.peek(
                generation.tokens, namespace=generation.namespace
            )
            costs.append((generation, len(generation.tokens) - peeked.length))
        return min(costs, key=lambda cost: cost[1])

    def _backlog(self) -> int:
        sequences = [_sequence(generation) for generation in self.running]
        missing = sum(max(0, sequence.prompt - sequence.position) for sequence in sequences)
        return missing + sum(len(generation.tokens) for generation in self.starting)

    async def _start(self, generation: Generation) -> None:
        """Acquire and restore, in a task of its own; then the loop has the sequence."""
        # What its client is told where nothing else is known: this task was cancelled or has crashed.
        error: BanyanError = ShuttingDown()
        try:
            with trio.CancelScope() as generation.scope:
                if generation.gone:  # since its admission, so that nobody has cancelled this scope
                    return
                generation.sequence = await self._engine.start(
                    generation.tokens, keep=[generation.fork], namespace=generation.namespace
                )
                if generation.hit is None:
                    generation.hit = generation.sequence.lease.hit
                self.running.append(generation)
        except BanyanError as refused:
            error = refused
        finally:
            self.starting.remove(generation)
            if generation.sequence is None:
                self._over(generation, error)
            self._news.set()

    # -- computing ------------------------------------------------------------------------------------

    async def _prefill(self) -> bool:
        """Compute a chunk of the oldest prompt that is not through; return whether there was one."""
        for generation in self.running:
            sequence = _sequence(generation)
            if not sequence.ready:
                if await self._with_room(generation, sequence.prefill) and sequence.ready:
                    if not generation.answered:
                        self._first_token(trio.current_time() - generation.submitted)
                    await self._emit(generation)
                return True
        return False

    async def _decode(self) -> bool:
        """Compute a token of everybody who answers; return whether there was anybody."""
        batch: list[Generation] = []
        for generation in list(self.running):  # oldest first: only those behind can be pre-empted
            sequence = generation.sequence
            if sequence is not None and sequence.ready:
                push = partial(sequence.push, generation.tokens[-1])
                if await self._with_room(generation, push):
                    batch.append(generation)
        await self._engine.step([_sequence(generation) for generation in batch])
        for generation in batch:
            await self._emit(generation)
        return bool(batch)

    async def _emit(self, generation: Generation) -> None:
        sequence = _sequence(generation)
        if sequence.logits is not None:
            generation.emit(sequence.logits)
        if generation.answered == generation.length:
            await sequence.finish()
            self._seconds += (trio.current_time() - generation.submitted - self._seconds) / 8
            await self._end(generation)

    async def _with_room(self, mine: Generation, work: Callable[..., Awaitable[object]]) -> bool:
        """Do what takes room, pre-empting the youngest for it; False where `mine` had to stop."""
        while not mine.gone:
            alone = self.running == [mine] and not self.starting
            try:
                with trio.CancelScope() as mine.scope:
                    await work(deadline=None if alone else _PATIENCE)
                    return True
            except NoCapacity as error:
                if alone:
                    await self._end(mine, error)
                    return False
                youngest = self.running[-1]
                await self._preempt(youngest)
                if youngest is mine:
                    return False
        return False

    async def _preempt(self, generation: Generation) -> None:
        """Give a request's room up; what is computed is published, so that coming back is cheap."""
        sequence, layout = _sequence(generation), self._engine.layout
        position = sequence.position
        whole = position % layout.spec.page_size == 0 and position > sequence.lease.published
        if whole and layout.states and not sequence.ready:
            await sequence.keep_state(position)
        await sequence.finish()
        await sequence.release()
        generation.sequence = None
        self.running.remove(generation)
        self.waiting.appendleft(generation)
        self.preempted += 1
        self._short = True

    async def _end(self, generation: Generation, error: BanyanError | None = None) -> None:
        """End a request that runs: its answer is complete, or there is an error."""
        await _sequence(generation).release()
        self.running.remove(generation)
        self._over(generation, error)

    def _over(self, generation: Generation, error: BanyanError | None = None) -> None:
        generation.close(error)
        self._short = False
        self._ended.set()
        self._ended = trio.Event()


def _sequence(generation: Generation) -> Sequence:
    if generation.sequence is None:
        raise RuntimeError("a request that runs has a sequence")
    return generation.sequence
