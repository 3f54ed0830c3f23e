"""Engines that go on after a crash: each asks again where its own operation crashed, and only there.

What they compute and compare is what `tests/model/engine.py` does: bytes that tell for which tokens they
were made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio
from banyankv import ActorCrashed, Cache, Lease, Namespace, NoCapacity
from banyankv.actors import InjectedFault

from ..engine import Turn

T = TypeVar("T")

NOBODY = Namespace()
TRIES = 4
"""Crashes in a row that an engine bears with one operation."""


class Engines:
    """The engines of one cache, their turns, and the crashes that they were told of."""

    def __init__(self, cache: Cache, nursery: trio.Nursery) -> None:
        self.cache = cache
        self.nursery = nursery
        self.turns: list[Turn] = []
        self.told: list[ActorCrashed | InjectedFault] = []
        self.refused = 0
        self._waiting = 0
        self._over = trio.Event()

    async def do(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask, and again where that crashed: the lease must be whole then."""
        for _ in range(TRIES):
            try:
                return await call()
            except (ActorCrashed, InjectedFault) as error:
                self.told.append(error)
                self.verify()
        return await call()

    def verify(self) -> int:
        """Compare all bytes of all live leases, but for those that an extend is just to lengthen."""
        return sum(turn.verify() for turn in self.turns if not turn.busy)

    # -- turns --------------------------------------------------------------------------------------

    async def acquire(self, tokens: Sequence[int], deadline: float | None = None) -> Turn:
        """Lease a prompt."""
        lease = await self.do(lambda: self.cache.acquire(list(tokens), deadline=deadline))
        return self.adopt(lease, tokens)

    def adopt(self, lease: Lease, tokens: Sequence[int]) -> Turn:
        """Take a lease in hand."""
        turn = Turn(self.cache, lease, NOBODY, tokens)
        turn.verify()
        self.turns.append(turn)
        return turn

    async def extend(
        self, turn: Turn, upto: int, *, keep: bool = False, deadline: float | None = None
    ) -> bool:
        """Have room up to a token and compute it; False where there is none."""

        async def ask() -> None:
            # A crash behind its last change leaves the lease as after it: the rest is asked for.
            if turn.lease.extent < upto:
                await turn.lease.extend(upto - turn.lease.extent, deadline=deadline)

        turn.busy = True
        try:
            await self.do(ask)
        except NoCapacity:
            self.refused += 1
            return False
        finally:
            turn.busy = False
        await self.do(lambda: turn.computed_room(keep))
        return True

    async def generate(self, turn: Turn, count: int) -> None:
        """Generate tokens behind all that are known: room, bytes, ids. Nothing where there is no room."""
        known = len(turn.tokens)
        if not await self.extend(turn, known, deadline=0.0):
            return
        more = [turn.tokens[0] * 7 + 100 + known + index for index in range(count)]
        turn.lease.append(more)
        turn.tokens += more
        if not await self.extend(turn, len(turn.tokens), deadline=0.0):
            del turn.tokens[known:]
            await self.do(lambda: turn.lease.trim(0))

    async def publish(self, turn: Turn, upto: int | None = None) -> int:
        """Publish; a lease goes on whole from there."""
        reached = await self.do(lambda: turn.publish(upto))
        turn.verify()
        return reached

    async def trim(self, turn: Turn, to: int) -> None:
        """Give room back that was not computed."""
        await self.do(lambda: turn.lease.trim(max(0, turn.lease.extent - to)))

    async def release(self, turn: Turn) -> None:
        """Leave: it never raises."""
        self.turns.remove(turn)
        await turn.lease.release()

    async def serve(
        self, tokens: Sequence[int], *, keep: Sequence[int] = (), deadline: float | None = None
    ) -> int:
        """Run one whole turn; return the tokens it reused."""
        turn = await self.acquire(tokens, deadline)
        for at in sorted({*(k for k in keep if k > turn.computed), len(tokens)}):
            if at > turn.computed:
                await self.extend(turn, at, keep=at in keep)
        await self.publish(turn)
        length = turn.lease.length
        await self.release(turn)
        return length

    # -- requests that wait ---------------------------------------------------------------------------

    def acquires(self, tokens: Sequence[int], deadline: float | None = None) -> trio.CancelScope:
        """Acquire in a task of its own, and leave when it is served."""
        return self._waits(lambda: self._acquire_and_leave(tokens, deadline))

    async def _acquire_and_leave(self, tokens: Sequence[int], deadline: float | None) -> None:
        turn = await self.acquire(tokens, deadline)
        await self.extend(turn, len(tokens), deadline=0.0)
        await self.publish(turn, turn.publishable)
        await self.release(turn)

    async def nobody_waits(self) -> None:
        """Wait until all of them are over."""
        while self._waiting:
            self._over = trio.Event()
            await self._over.wait()

    def extends(self, turn: Turn, upto: int, deadline: float | None = None) -> trio.CancelScope:
        """Extend in a task of its own."""
        return self._waits(lambda: self.extend(turn, upto, deadline=deadline))

    def _waits(self, call: Callable[[], Awaitable[object]]) -> trio.CancelScope:
        scope = trio.CancelScope()

        async def run() -> None:
            try:
                with scope:
                    await call()
            finally:
                self._waiting -= 1
                self._over.set()

        self._waiting += 1
        self.nursery.start_soon(run)
        return scope
