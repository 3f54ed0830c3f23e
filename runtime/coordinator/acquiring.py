"""Acquiring where it may have to wait: for the store, for copies from L2, for room on L1.

                        .------> searching ------.    the store is asked; nothing is held
                        |                        |
    (came) --> planning +------> queued ---------+    room on L1 is coming; nothing is held
                ^       |                        |
                |       +------> copying --------|    claimed, with room taken; copies run
                |       |           |            |
                |       '-> leased <'            |
                '--------------------------------'    with what the device has where a copy failed, or
                                                      where only a release can make the room

Who waits for room holds no lock, so that no two wait for each other, and plans again when its turn in
the queue comes. It waits only for what comes by itself: where only live leases hold the room, it goes
on at once with the boundary on the device.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import trio

from ...actors import Trace
from ...spec import TOKEN_BYTES, Tier
from .. import messages as m
from .cache_actors import CacheActors
from .capacity import Capacity, PagesWanted, Shortage
from .capacity_queue import CapacityQueue
from .claiming import Claiming, Lacking
from .counters import Counters
from .flights import Flight
from .lease_book import LeaseBook
from .leases import LeaseRecord
from .planning import Planner, reusable_tokens
from .promoting import Promoting
from .reporting import Reporter
from .transfers import Transfer, Transfers

if TYPE_CHECKING:
    from .prefetching import Prefetch, Prefetching

_ITS_TURN_WILL_COME = Shortage(coming=True)


class Acquiring(msgspec.Struct, kw_only=True, eq=False):
    """What acquires in flight have in common; used inside the cache actor's operations only.

    `ready` are those that have nothing more to wait for: the end of the operation lets them go on.
    """

    actors: CacheActors
    capacity: Capacity
    queue: CapacityQueue
    planner: Planner
    claiming: Claiming
    transfers: Transfers
    promoting: Promoting
    prefetching: Prefetching
    book: LeaseBook
    counters: Counters
    report: Reporter
    request_epilogue: Callable[[], None]
    prefetch_threshold: int
    patience: float
    ready: deque[AcquireFlight]

    def let_go_on(self, flight: AcquireFlight) -> None:
        """Have a flight go on at the end of the operation."""
        self.ready.append(flight)
        self.request_epilogue()

    def answered(
        self, msg: m.Acquire, acquired: m.Acquired, trace: Trace | None, started: int
    ) -> None:
        """Count and report an acquire that is answered."""
        counters, length, hit = self.counters, acquired.length, acquired.hit
        counters.requests += 1
        counters.tokens += len(msg.tokens) // TOKEN_BYTES
        counters.reused += length
        if hit.l1 != length:
            counters.lower[0] += hit.l2
            counters.lower[1] += hit.l3
        if trace is not None:
            self.report.acquired(msg, acquired, trace, started)

    def worth_a_search(self, msg: m.Acquire, boundary: int) -> bool:
        """Say whether so much of a prompt is on no tier above that the store is asked for it."""
        if self.actors.store is None:
            return False
        left = reusable_tokens(msg.tokens, self.actors.page) - boundary
        return left >= self.prefetch_threshold


class State(enum.Enum):
    """What an acquire is doing: see the figure."""

    PLANNING = enum.auto()
    SEARCHING = enum.auto()
    QUEUED = enum.auto()
    COPYING = enum.auto()


class AcquireFlight(Flight, eq=False):
    """One acquire on its way.

    `searched` says that the store was asked for it, `full` how far FULL reaches there, `started` is
    when it came (ns) where its `trace` is sampled.
    """

    by: Acquiring
    msg: m.Acquire
    trace: Trace | None
    started: int
    _uses_l2: bool  # whether lower tiers are worth waiting for
    state: State = State.PLANNING
    searched: bool = False
    full: int = 0
    _deadline: float = -1.0  # until when it waits for room, from its first wish on
    _want: PagesWanted = ()
    _record: LeaseRecord | None = None
    _search: Prefetch | None = None
    _transfers: dict[Transfer, None] = {}  # noqa: RUF012 - msgspec makes each its own
    # The boundaries at its first look.
    _device: int = -1
    _host: int = -1
    _store: int = 0  # up to where prefetches that it waited for have lifted its reuse

    # -- planning -------------------------------------------------------------------------------------

    async def attempt(self) -> m.Acquired | None:
        """Go as far as possible without waiting; None where something must come first."""
        by, msg, self.state = self.by, self.msg, State.PLANNING
        if self._record is not None:
            acquired = await self._complete()
            if acquired is not None:
                return acquired
        limit: int | None = None
        while True:
            walked = await by.actors.tree.ask(by.planner.walk_of(msg))
            record, lacking = await by.claiming.claim(msg, walked, limit, host=self._uses_l2)
            boundary = record.published
            if self._device < 0:
                self._host = boundary
                self._device = await self._on_device() if lacking else boundary
            if not self.searched and by.worth_a_search(msg, boundary):
                await by.book.release(record)
                self.state = State.SEARCHING
                self._search = await by.prefetching.find(self, boundary)
                self._wait_for(self._search)
                return None
            if lacking:
                shortage = await self._bring(record, lacking)
                if shortage is None:
                    self.state = State.COPYING
                    return None
            else:
                shortage = await by.claiming.copy_states(record, msg.stream)
                if shortage is None:
                    return self._leased(record)
                self._want = tuple((part.name, 1) for part in by.actors.snapshots)
            await by.book.release(record)
            if shortage.coming and self._may_wait():
                self.state = State.QUEUED
                by.queue.join(self, self._deadline)
                return None
            if lacking and not self._lacks_slots(shortage):
                self._uses_l2 = False
            else:  # the next shallower boundary, at last 0
                limit = boundary - by.actors.page

    async def _complete(self) -> m.Acquired | None:
        """Return what was claimed, when its copies are over; None where they did not all come."""
        by, record, self._record = self.by, self._record, None
        if record is None:
            return None
        by.book.live.to_change(record.id)
        if await by.claiming.complete(record, self.msg.stream):
            return self._leased(record)
        await by.book.release(record)
        self._uses_l2 = False
        return None

    async def _on_device(self) -> int:
        """Find how far L1 alone reaches: a claim may have split the edge in which the walk ended."""
        by = self.by
        walked = await by.actors.tree.ask(by.planner.walk_of(self.msg))
        return (await by.planner.agree(walked, host=False)).boundary

    async def _bring(self, record: LeaseRecord, lacking: Lacking) -> Shortage | None:
        """Start to bring to L1 what it lacks, with slots for the copies of states; or what lacks for it.

        All of it is asked for at once, so that nothing is evicted for a part.
        """
        by, snapshots = self.by, self.by.actors.snapshots
        missing = [(part, locked.missing) for part, locked in lacking if locked.missing]
        want = [(part.name, 1) for part in snapshots]
        want += [(part.name, sum([pages for _, pages in nodes])) for part, nodes in missing]
        self._want = tuple(want)
        pages: tuple[bytes, ...] = ()
        await by.claiming.lock_states(record)
        if want:
            if not by.queue.is_turn_of(self):
                return _ITS_TURN_WILL_COME
            got = await by.capacity.allocate(Tier.L1, self._want)
            if isinstance(got, Shortage):
                return got
            pages = got
        for part, slot in zip(snapshots, pages, strict=False):
            record.shares[part.index].slot = slot
        self._record = record
        for _, locked in lacking:
            for op in locked.joins:
                self._wait_for(by.transfers.running[op])
        if missing:
            self._wait_for(await by.promoting.promote(missing, pages[len(snapshots) :]))
        return None

    def _lacks_slots(self, shortage: Shortage) -> bool:
        """Say whether only slots for states can never be had."""
        names = [part.name for part in self.by.actors.snapshots]
        return bool(shortage.pools) and all(pool in names for pool in shortage.pools)

    def _leased(self, record: LeaseRecord) -> m.Acquired:
        """Return the lease, with where its tokens were when the request came.

        What others have published while it waited counts as on L1.
        """
        acquired = self.by.claiming.answer(record)
        length, full = acquired.length, max(acquired.full, self.full)
        hit = acquired.hit
        if self._device < length:
            host = min(self._host, length)
            l2, l3 = host - self._device, max(0, min(self._store, length) - host)
            hit = m.HitTokens(length - l2 - l3, l2, l3)
        elif full == acquired.full:
            return acquired
        return m.Acquired(acquired.lease, length, full, hit)

    # -- waiting --------------------------------------------------------------------------------------

    def _may_wait(self) -> bool:
        """Say whether it may wait for room: so long in all, however often it has to queue up."""
        now = trio.current_time()
        if self._deadline < 0:
            self._deadline = now + self.by.patience
        return now < self._deadline

    def _wait_for(self, transfer: Transfer) -> None:
        self._transfers[transfer] = None
        transfer.join(self)

    def transfer_over(self, transfer: Transfer) -> None:
        """Hear that a transfer is over; go on when it was the last."""
        del self._transfers[transfer]
        search, self._search = self._search, None
        if search is not None:
            self._store = max(self._store, search.brought_for(self))
            full = search.answer_for(self)
            self.searched, self.full = full is not None, full or 0
        if not self._transfers:
            self.by.let_go_on(self)

    def is_awaited(self) -> bool:
        """Say whether something will let it go on: its turn, or each of the transfers it waits for."""
        if self.state is State.QUEUED:
            return self in self.by.queue.waiting
        if self in self.by.ready:
            return True
        running = self.by.transfers.running
        return bool(self._transfers) and all(
            running.get(transfer.id) is transfer and self in transfer.waiting
            for transfer in self._transfers
        )

    async def let_go(self) -> None:
        """Let go of what a failed copy was to complete; what L1 has must do."""
        self._leave_transfers()
        await self._release()
        self._uses_l2 = False
        self.by.let_go_on(self)

    async def go_on(self) -> None:
        """Plan again, and answer if that was all."""
        acquired = await self.attempt()
        if acquired is not None:
            self.by.answered(self.msg, acquired, self.trace, self.started)
            self.answer(acquired)

    async def try_again(self) -> bool:
        """Plan again, when its turn has come and room is not just coming; whether it waits no longer."""
        if await self.by.capacity.is_coming(self._want):
            return False
        await self.go_on()
        return self.state is not State.QUEUED

    async def expire(self) -> bool:
        """Go on with what the device has, for which nothing need come."""
        await self.go_on()
        return False

    async def leave(self) -> None:
        """Give back everything, wherever it waits."""
        self._leave_transfers()
        self.by.queue.leave(self)
        await self._release()

    def _leave_transfers(self) -> None:
        for transfer in self._transfers:
            transfer.leave(self)
        self._transfers.clear()

    async def _release(self) -> None:
        record, self._record = self._record, None
        if record is not None:
            await self.by.book.release(record)
