"""UnifiedRadixCache: the actor that coordinates a cache. It owns leases, waiters and the order of changes.

Every handler is one operation: it plans by read-only asks (an acquire: by claims that it can take
back), then commits by steps that can only fail through a bug. What takes long (copies, the store,
waiting for room) happens outside and comes back as a message; its asker is answered then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ...actors import Coordinator, Message, ReplyToken, handles
from ...errors import ConfigError, NoCapacity, StaleLease
from ...tiers.fences import Fences
from ...tiers.store.messages import StoreTierStatistics
from .. import messages as m
from .acquiring import AcquireFlight, Acquiring
from .alarm import Alarm
from .auditing import Auditing
from .backups import Backups
from .batching import Batching
from .cache_actors import CacheActors
from .capacity import Capacity
from .capacity_queue import CapacityQueue
from .claiming import Claiming
from .cooling import Cooling
from .copies import Copy
from .counters import Counters
from .due import Due
from .endpoints import Endpoints
from .extending import ExtendFlight, Extending
from .grafting import Grafting
from .inspection import Inspection, gather
from .lease_book import LeaseBook, LiveLeases
from .planning import Planner, Verdict
from .prefetching import Prefetch, Prefetching
from .promoting import Promoting
from .publishing import Publishing
from .recovery import Recoveries, Recovery
from .reporting import Reporter
from .saving import Save, Saving
from .splitting import Splitter
from .stats import CacheStats, Statistics
from .transfers import Transfers
from .wait_audit import Background, Waits


class AskersLeft(Message[None], frozen=True):
    """Askers left before their answers: give back what was held for them."""


class UnifiedRadixCache(Coordinator):
    """Coordinate tree, components and tiers for the engines that hold leases.

    It refuses before it changes anything. Any other error out of an operation, such as a refusal of
    an actor below in the middle of it, may have left it half done: that is a crash, after which all
    actors are started anew, and the live leases put back.
    """

    refusals = (ConfigError, StaleLease, NoCapacity)
    hands_over = True

    def __init__(
        self,
        actors: CacheActors,
        page_bytes: tuple[int, ...],
        leases: LiveLeases,
        counters: Counters,
        recoveries: Recoveries,
        *,
        endpoints: Endpoints,
        fences: Fences,
        store_figures: Callable[[], StoreTierStatistics | None],
        room_timeout: float,
        store_timeout: float,
        prefetch_threshold: int,
    ) -> None:
        super().__init__()
        self._actors = actors
        self._report = Reporter(self)
        self._due = Due(self._request_epilogue)
        self._capacity = Capacity(actors, counters, self._report, self._due)
        self._planner = Planner(actors)
        self._transfers = Transfers(actors, counters, self._capacity, page_bytes, self._report)
        self._splitter = Splitter(actors, self._transfers)
        self._backups = Backups(self._transfers)
        self._saving = Saving(self._transfers, endpoints)
        self._alarm = Alarm(self)
        self._prefetching = Prefetching(
            actors=actors,
            capacity=self._capacity,
            transfers=self._transfers,
            grafting=Grafting(actors, self._capacity, self._planner, self._splitter),
            endpoints=endpoints,
            alarm=self._alarm,
            timeout=store_timeout,
        )
        self._leases = leases
        self._book = LeaseBook(leases, self._capacity)
        self._queue = CapacityQueue(self._alarm, self._request_epilogue)
        self._fences = fences
        self._cooling = Cooling(self, fences)
        self._recovery = Recovery(actors, self._splitter, leases, recoveries)
        self._claiming = Claiming(actors, self._capacity, self._planner, self._splitter, self._book)
        self._acquiring = Acquiring(
            actors=actors,
            capacity=self._capacity,
            queue=self._queue,
            planner=self._planner,
            claiming=self._claiming,
            transfers=self._transfers,
            promoting=Promoting(self._transfers),
            prefetching=self._prefetching,
            book=self._book,
            counters=counters,
            report=self._report,
            request_epilogue=self._request_epilogue,
            prefetch_threshold=prefetch_threshold,
            patience=room_timeout,
            ready=deque(),
        )
        self._batching = Batching(actors, self._capacity, self._planner, self._claiming, self._book)
        self._publishing = Publishing(actors, self._capacity, self._splitter, self._report)
        self._extending = Extending(actors, self._capacity, self._queue, self._leases, room_timeout)
        self.statistics = Statistics(
            actors=actors,
            counters=counters,
            transfers=self._transfers,
            leases=self._leases,
            recoveries=recoveries,
            waiting=self._queue.waiting,
            store=store_figures,
        )
        self._flights: dict[ReplyToken, AcquireFlight | ExtendFlight] = {}
        self._background = Background()
        waits = Waits(
            flights=self._flights,
            transfers=self._transfers,
            queue=self._queue,
            due=self._due,
            background=self._background,
        )
        self._auditing = Auditing(actors, leases, self._prefetching, waits, counters.audits)
        self._settling: dict[ReplyToken, None] = {}
        self._left: list[ReplyToken] = []
        self._cleaning_up = False
        self._has_l2 = actors.l2 is not None

    def __repr__(self) -> str:
        return (
            f"<UnifiedRadixCache [{len(self._leases)} leases, {len(self._flights)} waiting, "
            f"{len(self._transfers.running)} in flight]>"
        )

    async def prepare(self) -> None:
        """Put the live leases back after a crash."""
        crash, self.system.crash = self.system.crash, None
        if crash is not None:
            started = self._report.now()
            self._capacity.note_fence(self._fences.last)
            forgotten = await self._recovery.recover(crash.path, self._fences.last)
            self._report.recovered(crash, len(self._leases), forgotten, started)
            if self._has_l2:
                self._due.back_up(self._recovery.restored)
            if self._leases.unclaimed:
                self._clean_up_soon()

    # -- after each operation --------------------------------------------------------------------------

    def _request_epilogue(self) -> None:
        """Have the epilogue look around: somebody waits, or something is due."""
        self.epilogue_due = True

    async def epilogue(self) -> None:
        """Let go on who can, serve who waits for room, wake the background, tell who waits for quiet."""
        queue, due, ready = self._queue, self._due, self._acquiring.ready
        if due.room_on_l2:
            await self._prefetching.serve()
        while ready:
            await ready.popleft().go_on()
        if queue.waiting:
            await queue.serve()
            self._cooling.wait(self._capacity.fence)
        if not self._background.woken and (self._backups.startable() or self._saving.startable()):
            self._background.woken = True
            self.ref.tell(m.Background(), needed=True)
        if self._settling and self._transfers.quiet():
            for token in self._settling:
                token.reply(None)
            self._settling.clear()
        self.epilogue_due = bool(queue.waiting or due.to_back_up or due.to_save or self._settling)

    # -- leases ---------------------------------------------------------------------------------------

    @handles(m.Acquire)
    async def acquire(self, msg: m.Acquire) -> m.Acquired | None:
        """Lease the longest reusable prefix; answer later where something must come first."""
        trace = self.trace
        started = 0 if trace is None else self._report.begin()
        lower = self._has_l2 and msg.wait
        acquired = None if lower else await self._claiming.at_once(msg)
        if acquired is None:
            flight = AcquireFlight(self._acquiring, msg, trace, started, self._has_l2)
            acquired = await flight.attempt()
            if acquired is None:
                flight.wait_with(self._flights, self.defer())
                return None
        self._acquiring.answered(msg, acquired, trace, started)
        return acquired

    @handles(m.AcquireBatch)
    async def acquire_batch(self, msg: m.AcquireBatch) -> tuple[m.Acquired, ...]:
        """Lease for each request of a scheduler step what L1 has now."""
        started = self._report.now()
        leased = await self._batching.acquire(msg)
        for request, acquired, trace in zip(msg.requests, leased, msg.traces, strict=True):
            self._acquiring.answered(request, acquired, trace, started)
        return leased

    @handles(m.Extend)
    async def extend(self, msg: m.Extend) -> m.Extended | None:
        """Give private pages, in the order of asking; answer later where room must come first."""
        if msg.fence:
            self._capacity.note_fence(msg.fence)
        extended = await self._extending.extend(self._leases.to_change(msg.lease), msg)
        if isinstance(extended, ExtendFlight):
            extended.wait_with(self._flights, self.defer())
            return None
        return extended

    @handles(m.RoomTimeout)
    async def room_timeout(self, msg: m.RoomTimeout) -> None:
        """Let those wait no longer whose patience is over."""
        self._alarm.rung()
        await self._queue.refuse_late()
        self._prefetching.refuse_late()

    @handles(m.Snapshot)
    async def snapshot(self, msg: m.Snapshot) -> int:
        """Copy the working state into a slot of its own, if there is one: a snapshot is a bonus."""
        return await self._extending.snapshot(self._leases.to_change(msg.lease), msg)

    @handles(m.Trim)
    async def trim(self, msg: m.Trim) -> int:
        """Give back private room that was not used; return the extent."""
        if msg.fence:
            self._capacity.note_fence(msg.fence)
        return await self._extending.trim(self._leases.to_change(msg.lease), msg.count)

    @handles(m.Publish)
    async def publish(self, msg: m.Publish) -> m.Published:
        """Hand computed pages to the tree; duplicates are given back and re-pointed."""
        if msg.fence:
            self._capacity.note_fence(msg.fence)
        return await self._publishing.publish(self._leases.to_change(msg.lease), msg)

    @handles(m.Release)
    async def release(self, msg: m.Release) -> bool:
        """Give back everything that a lease holds."""
        if msg.fence:
            self._capacity.note_fence(msg.fence)
        record = self._leases.get(msg.lease)
        if record is None:
            return False
        await self._book.release(record)
        return True

    # -- askers that left -----------------------------------------------------------------------------

    def abandoned(self, token: ReplyToken) -> None:
        """Give back, by an operation of its own, what was held for an asker that left."""
        self._left.append(token)
        self._clean_up_soon()

    def orphaned(self, msg: Any, result: Any) -> None:
        """Take back what an answer that found nobody has given."""
        if isinstance(result, m.Acquired):
            self._leases.unclaimed.append(m.Release(result.lease))
            self._clean_up_soon()
        elif isinstance(msg, m.AcquireBatch):
            self._leases.unclaimed += [m.Release(acquired.lease) for acquired in result]
            self._clean_up_soon()
        elif isinstance(result, m.Extended):
            self._leases.unclaimed.append((msg, result))
            self._clean_up_soon()

    def _clean_up_soon(self) -> None:
        # One message for all of them: thousands may be cancelled at once, and mailboxes are bounded.
        if not self._cleaning_up:
            self._cleaning_up = True
            self.ref.tell(AskersLeft(), control=True, needed=True)

    @handles(AskersLeft)
    async def askers_left(self, msg: AskersLeft) -> None:
        """Forget whose askers left, and take back what they did not take."""
        self._cleaning_up = False
        left, self._left = self._left, []
        for token in left:
            flight = self._flights.pop(token, None)
            if flight is not None:
                await flight.leave()
            self._settling.pop(token, None)
        unclaimed = self._leases.unclaimed
        while unclaimed:
            back = unclaimed[0]  # a crash on the way leaves it to be taken back by the next life
            if isinstance(back, m.Release):
                await self.release(back)
            elif back[0].lease in self._leases:
                extend, extended = back
                record = self._leases.to_change(extend.lease)
                await self._extending.take_back(record, extend.count, extended)
            unclaimed.popleft()

    # -- between tiers --------------------------------------------------------------------------------

    @handles(m.Background)
    async def background(self, msg: m.Background) -> None:
        """Start backups and saves: one of each at a time, so that many nodes make one batch."""
        self._background.woken = False
        self._background.heard += 1
        if self._backups.startable():
            await self._backups.start()
        if self._saving.startable():
            await self._saving.start()

    @handles(m.Cooled)
    async def cooled(self, msg: m.Cooled) -> None:
        """Look after waiters when the device has passed what freed pages had to wait for."""
        self._cooling.cooled(msg.fence)

    @handles(m.Copied)
    async def copied(self, msg: m.Copied) -> None:
        """Settle a copy."""
        await self._transfers.of(Copy, msg.op).copied(msg)

    @handles(m.Found)
    async def found(self, msg: m.Found) -> None:
        """Fetch what the store has, or go on without it."""
        await self._transfers.of(Prefetch, msg.op).found(msg)

    @handles(m.Fetched)
    async def fetched(self, msg: m.Fetched) -> None:
        """Take what arrived from the store."""
        await self._transfers.of(Prefetch, msg.op).fetched(msg)

    @handles(m.Saved)
    async def saved(self, msg: m.Saved) -> None:
        """Settle a save."""
        await self._transfers.of(Save, msg.op).saved(msg)

    # -- looking and cleaning ---------------------------------------------------------------------------

    @handles(m.Peek)
    async def peek(self, msg: m.Peek) -> m.Peeked:
        """Return how much could be reused; change nothing."""
        return await self._planner.peek(msg)

    @handles(m.Explain)
    async def explain(self, msg: m.Explain) -> tuple[Verdict, ...]:
        """Return what each component says of a prompt."""
        return await self._planner.explain(msg)

    @handles(m.EvictPages)
    async def evict(self, msg: m.EvictPages) -> m.EvictReport:
        """Evict unlocked payload on request."""
        part = self._actors.by_name.get(msg.component)
        if part is None or msg.tier not in self._actors.tiers:
            raise ConfigError(f"no component {msg.component!r} on {msg.tier.name} here")
        return await self._capacity.evict(msg.tier, part, msg.pages)

    @handles(m.Settle)
    async def settle(self, msg: m.Settle) -> None:
        """Reply when nothing is in flight between tiers, nor due."""
        if not self._transfers.quiet():
            self._settling[self.defer()] = None
            self._request_epilogue()

    @handles(m.Stats)
    async def stats(self, msg: m.Stats) -> CacheStats:
        """Return counters and usage."""
        return await self.statistics.gather()

    @handles(m.Inspect)
    async def inspect(self, msg: m.Inspect) -> Inspection:
        """Return all bookkeeping at this moment."""
        return await gather(self._actors, tuple(self._leases.values()), self._prefetching.staged())

    @handles(m.Audit)
    async def audit(self, msg: m.Audit) -> tuple[m.Finding, ...]:
        """Do the next slice of an audit."""
        return await self._auditing.slice(self.path)
