"""The queue for room on L1: extends and acquires that wait for pages or slots, first come first served.

              .--> served
    queued ---+--> refused, where the patience is over: an extend gets NoCapacity, an acquire goes on with
              |    what the device has
              '--> left, where the asker is gone

Who waits here holds nothing that others' room depends on, but for the lease that it extends. After each
operation the first is tried, and when it is served the next. Those whose patience is over are refused
one by one, the earliest deadline first and of equal ones the first that came. Who was served or refused
gets a moment to run before the next is refused: what it gives back may serve the next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Protocol

import trio

from .alarm import Alarm

_REFUSALS = 64
"""Requests that one operation refuses at most."""


class Waiter(Protocol):
    """What may wait for room."""

    async def try_again(self) -> bool:
        """Take what it waits for, if that is there now; whether it waits no longer."""
        ...

    async def expire(self) -> bool:
        """End its waiting without the room; whether others may get some by what it does then."""
        ...


class CapacityQueue:
    """Let requests wait for room; used inside the cache actor's operations only.

    `waiting` is in the order of asking. `alarm` has `refuse_late` called at a time, `request_epilogue`
    has `serve` called from now on.
    """

    def __init__(self, alarm: Alarm, request_epilogue: Callable[[], None]) -> None:
        self._alarm = alarm
        self._request_epilogue = request_epilogue
        self._served = False
        self._number = 0
        self._deadlines: list[tuple[float, int, Waiter]] = []
        self.waiting: OrderedDict[Waiter, int] = OrderedDict()

    def is_turn_of(self, waiter: Waiter) -> bool:
        """Say whether a request may take room: it is the first that waits, or nobody does."""
        return not self.waiting or next(iter(self.waiting)) is waiter

    def join(self, waiter: Waiter, deadline: float) -> None:
        """Queue up until a time (trio time), unless it stands there already."""
        if waiter in self.waiting:
            return
        self._number += 1
        self.waiting[waiter] = self._number
        self._request_epilogue()
        if deadline < inf:
            heappush(self._deadlines, (deadline, self._number, waiter))
            self._alarm.set(deadline)

    def leave(self, waiter: Waiter) -> None:
        """Take a request out, if it waits here."""
        self.waiting.pop(waiter, None)
        if len(self._deadlines) > 2 * len(self.waiting):
            # Most are of those who have left: one who waits for long must not let them pile up.
            waits = self.waiting.get
            self._deadlines = [late for late in self._deadlines if waits(late[2]) == late[1]]
            heapify(self._deadlines)

    async def serve(self) -> None:
        """Serve who waits, in order, as far as there is room."""
        while self.waiting:
            first = next(iter(self.waiting))
            if not await first.try_again():
                return
            self.leave(first)
            self._served = True

    async def refuse_late(self) -> None:
        """Refuse those whose patience is over, as far as that can give no room to the next."""
        for _ in range(_REFUSALS):
            if self._served or self._next_deadline() > trio.current_time():
                break
            _, _, waiter = heappop(self._deadlines)
            first = next(iter(self.waiting)) is waiter
            self.leave(waiter)
            if await waiter.expire():
                break
            if first:
                await self.serve()
        self._served = False
        self._alarm.set(self._next_deadline())

    def is_watched(self) -> bool:
        """Say whether the alarm is set where somebody has a deadline."""
        return self._alarm.is_set or self._next_deadline() == inf

    def _next_deadline(self) -> float:
        """Find the earliest deadline of who still waits."""
        deadlines = self._deadlines
        while deadlines:
            deadline, number, waiter = deadlines[0]
            if self.waiting.get(waiter) == number:
                return deadline
            heappop(deadlines)
        return inf
