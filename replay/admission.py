"""Which requests of a replay may be under way at once: those that a server would let in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import trio

from .workloads import Turn


class Admission:
    """Lets the requests of a workload in, in their order, as long as all of them fit on L1.

    `room` is L1's in tokens. A session's next request begins when the one before is over, because
    its client waits for the answer.
    """

    def __init__(self, turns: Iterator[Turn], room: int, page_size: int) -> None:
        self._turns = turns
        self._room = room
        self._page = page_size
        self._running = 0
        self._taken = 0
        self._sessions: set[str | None] = set()
        self._door = trio.Lock()
        self._left = trio.Event()

    @asynccontextmanager
    async def next(self) -> AsyncGenerator[Turn | None]:
        """Wait until the next request may begin, and let it in for the block; None after the last."""
        async with self._door:
            turn = next(self._turns, None)
            while turn is not None and not self._fits(turn):
                await self._left.wait()
        if turn is None:
            yield None
            return
        needed = self._needed(turn)
        self._running, self._taken = self._running + 1, self._taken + needed
        self._sessions.add(turn.session)
        try:
            yield turn
        finally:
            self._running, self._taken = self._running - 1, self._taken - needed
            self._sessions.discard(turn.session)
            self._left.set()
            self._left = trio.Event()

    def _fits(self, turn: Turn) -> bool:
        """Tell whether a request may begin; alone it always may: the cache says no where it must."""
        if turn.session is not None and turn.session in self._sessions:
            return False
        return not self._running or self._taken + self._needed(turn) <= self._room

    def _needed(self, turn: Turn) -> int:
        """Count the tokens of room that a request takes at most: whole pages, and one in the making."""
        return len(turn.tokens) + 2 * self._page
