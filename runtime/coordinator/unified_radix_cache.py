"""UnifiedRadixCache: the actor that coordinates a cache. It owns leases, waiters and the order of changes.

Every handler is one operation: it plans by read-only asks (an acquire: by claims that it can take
back), then commits by steps that can only fail through a bug. What takes long (copies, the store,
waiting for room) happens outside and comes back as a message; its asker is answered then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import trio

from ...actors import Coordinator, Message, ReplyToken, handles
from ...errors import ConfigError, NoCapacity, StaleLease
from ...tiers.fences import Fences
from .. import messages as m
from .acquiring import Acquiring
from .batching import Batching
from .endpoints import Endpoints
from .extending import Extending
from .facts import PublishDone
from .inspection import Inspection, gather
from .lease_book import LeaseBook
from .parts import Parts
from .pending import PendingAcquire, RoomWaiter
from .planning import Planner, Verdict
from .publishing import Publishing
from .reporting import Reporter
from .room import Room
from .splitting import Splitter
from .stats import CacheStats, Counters, Totals, count_totals, gather_stats
from .storing import Storing
from .transfers import Transfers


class GiveUp(Message[None], frozen=True):
    """Askers left before their answers: give back what was held for them."""


class UnifiedRadixCache(Coordinator):
    """Coordinate tree, components and tiers for the engines that hold leases.

    It refuses before it changes anything. Any other error out of an operation, such as a refusal of
    an actor below in the middle of it, may have left it half done: that is a crash, and closes the
    cache.
    """

    refusals = (ConfigError, StaleLease, NoCapacity)

    def __init__(
        self,
        parts: Parts,
        page_bytes: tuple[int, ...],
        *,
        endpoints: Endpoints,
        fences: Fences,
        room_timeout: float,
        prefetch_threshold: int,
    ) -> None:
        super().__init__()
        self._parts = parts
        self._fences = fences
        self._room_timeout = room_timeout
        self._report = Reporter(self)
        self._room = Room(parts, self._report)
        self._planner = Planner(parts)
        self._transfers = Transfers(parts, self._room, page_bytes, self._report)
        self._splitter = Splitter(parts, self._transfers)
        self._storing = Storing(
            parts=parts,
            room=self._room,
            transfers=self._transfers,
            splitter=self._splitter,
            endpoints=endpoints,
            page_bytes=page_bytes,
            report=self._report,
        )
        self._counters = Counters()
        self._leases = LeaseBook(self._room)
        self._acquiring = Acquiring(
            parts=parts,
            room=self._room,
            planner=self._planner,
            splitter=self._splitter,
            transfers=self._transfers,
            storing=self._storing,
            book=self._leases,
            prefetch_threshold=prefetch_threshold,
        )
        self._batching = Batching(parts, self._room, self._planner, self._acquiring, self._leases)
        self._publishing = Publishing(parts, self._room, self._splitter)
        self._extending = Extending(parts, self._room, self._leases)
        self._woken = False
        self._settling: list[ReplyToken] = []
        self._left: list[ReplyToken] = []
        self._unclaimed: list[tuple[m.Extend, m.Extended] | m.Release] = []
        self._giving_up = False

    def __repr__(self) -> str:
        return (
            f"<UnifiedRadixCache [{len(self._leases)} leases, {len(self._extending.waiters)} waiting, "
            f"{len(self._transfers.operations)} in flight]>"
        )

    # -- leases ---------------------------------------------------------------------------------------

    @handles(m.Acquire)
    async def acquire(self, msg: m.Acquire) -> m.Acquired | None:
        """Lease the longest reusable prefix; answer later where payload must be fetched first."""
        trace, lower = self.trace, self._parts.l2 is not None
        started = 0 if trace is None else self._report.begin()
        if lower and msg.wait:
            pending = PendingAcquire(msg, trace, started)
            acquired = await self._acquiring.attempt(pending)
            if acquired is None:
                pending.token = self.defer()
                self._acquiring.waiting[pending.token] = pending
                return None
        else:
            acquired = await self._acquiring.at_once(msg)
        self._counters.acquired(msg, acquired)
        if trace is not None:
            self._report.acquired(msg, acquired, trace, started)
        if lower:
            self._wake()
        return acquired

    @handles(m.AcquireBatch)
    async def acquire_batch(self, msg: m.AcquireBatch) -> tuple[m.Acquired, ...]:
        """Lease for each request of a scheduler step what L1 has now."""
        started = self._report.now()
        leased = await self._batching.acquire(msg)
        for request, acquired, trace in zip(msg.requests, leased, msg.traces, strict=True):
            self._counters.acquired(request, acquired)
            if trace is not None:
                self._report.acquired(request, acquired, trace, started)
        if self._parts.l2 is not None:
            self._wake()
        return leased

    async def _resume(self, waiting: Iterable[PendingAcquire], op: int) -> None:
        for pending in waiting:
            pending.ops.discard(op)
            if pending.ops or pending.token not in self._acquiring.waiting:
                continue
            acquired = await self._acquiring.attempt(pending)
            if acquired is not None:
                del self._acquiring.waiting[pending.token]
                self._counters.acquired(pending.msg, acquired)
                if pending.trace is not None:
                    self._report.acquired(pending.msg, acquired, pending.trace, pending.started)
                pending.token.reply(acquired)

    @handles(m.Extend)
    async def extend(self, msg: m.Extend) -> m.Extended | None:
        """Give private pages, in the order of asking; answer later where room must come first."""
        if msg.fence:
            self._room.captured(msg.fence)
        record = self._leases[msg.lease]
        extended = await self._extending.extend(record, msg.count)
        if extended is None:
            patience = self._room_timeout if msg.patience < 0 else msg.patience
            await self._extending.refuse(record, msg.count, patience)
            waiter = self._extending.wait(record, msg, self.defer())
            if patience < math.inf:
                self.start(self._time_out, waiter, patience)
            if self._room.fence:
                self.start(self._cool, self._room.fence)
        return extended

    async def _time_out(self, waiter: RoomWaiter, patience: float) -> None:
        with waiter.scope:
            await trio.sleep(patience)
            self.ref.tell(m.RoomTimeout(waiter.id), control=True)

    async def _cool(self, fence: int) -> None:
        """Look after waiters when the device has passed what freed pages must wait for."""
        await trio.to_thread.run_sync(self._fences.wait, fence)
        self.ref.tell(m.Background(), control=True)

    @handles(m.RoomTimeout)
    async def room_timeout(self, msg: m.RoomTimeout) -> None:
        """Refuse an extend whose patience is over."""
        await self._extending.time_out(msg.waiter)

    @handles(m.Windows)
    async def windows(self, msg: m.Windows) -> tuple[int, ...]:
        """Answer where the tables of a lease begin."""
        return self._extending.starts(self._leases[msg.lease])

    @handles(m.Snapshot)
    async def snapshot(self, msg: m.Snapshot) -> int:
        """Copy the working state into a slot of its own, if there is one: a snapshot is a bonus."""
        return await self._extending.snapshot(self._leases[msg.lease], msg)

    @handles(m.Trim)
    async def trim(self, msg: m.Trim) -> int:
        """Give back private room that was not used; answer the extent."""
        if msg.fence:
            self._room.captured(msg.fence)
        extent = await self._extending.trim(self._leases[msg.lease], msg.count)
        await self._extending.serve()
        return extent

    @handles(m.Publish)
    async def publish(self, msg: m.Publish) -> m.Published:
        """Hand computed pages to the tree; duplicates are given back and re-pointed."""
        if msg.fence:
            self._room.captured(msg.fence)
        started = self._report.begin()
        result = await self._publishing.publish(self._leases[msg.lease], msg)
        if started:
            self._report.done(
                PublishDone,
                started,
                length=result.published.length,
                nodes=len(result.nodes),
                duplicates=len(result.published.patches),
            )
        if result.nodes and self._parts.l2 is not None:
            self._room.due.dirty.update(dict.fromkeys(result.nodes))
            self._wake()
        self._counters.published += 1
        if self._extending.waiters:
            await self._extending.serve()
        return result.published

    @handles(m.Release)
    async def release(self, msg: m.Release) -> bool:
        """Give back everything that a lease holds."""
        if msg.fence:
            self._room.captured(msg.fence)
        record = self._leases.get(msg.lease)
        if record is None:
            return False
        await self._leases.give_back(record)
        if self._extending.waiters:
            await self._extending.serve()
        return True

    # -- askers that left -----------------------------------------------------------------------------

    def abandoned(self, token: ReplyToken) -> None:
        """Give back, by an operation of its own, what was held for an asker that left."""
        self._left.append(token)
        self._give_up_soon()

    def orphaned(self, msg: Any, result: Any) -> None:
        """Take back what an answer that found nobody has given."""
        if isinstance(result, m.Acquired):
            self._unclaimed.append(m.Release(result.lease))
            self._give_up_soon()
        elif isinstance(msg, m.AcquireBatch):
            self._unclaimed += [m.Release(acquired.lease) for acquired in result]
            self._give_up_soon()
        elif isinstance(result, m.Extended):
            self._unclaimed.append((msg, result))
            self._give_up_soon()

    def _give_up_soon(self) -> None:
        # One message for all of them: thousands may be cancelled at once, and mailboxes are bounded.
        if not self._giving_up:
            self._giving_up = True
            self.ref.tell(GiveUp(), control=True)

    @handles(GiveUp)
    async def give_up(self, msg: GiveUp) -> None:
        """Forget whose askers left, and take back what they did not take."""
        self._giving_up = False
        left, self._left = self._left, []
        for token in left:
            pending = self._acquiring.waiting.pop(token, None)
            if pending is not None:
                self._acquiring.leave(pending)
                if pending.record is not None:
                    await self._leases.give_back(pending.record)
            self._extending.leave(token)
            if token in self._settling:
                self._settling.remove(token)
        unclaimed, self._unclaimed = self._unclaimed, []
        for back in unclaimed:
            if isinstance(back, m.Release):
                await self.release(back)
            elif back[0].lease in self._leases:
                extend, extended = back
                await self._extending.take_back(self._leases[extend.lease], extend.count, extended)
        await self._extending.serve()

    # -- between tiers --------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Have the background looked after, once, by the actor's own task; tell who waits for quiet.

        What is due while a copy or a save is under way is looked after when that is over.
        """
        self._settled()
        if self._woken:
            return
        due, busy = self._room.due, self._transfers.busy
        if (due.dirty and not busy("backup")) or (due.unsaved and not busy("save")):
            self._woken = True
            self.ref.tell(m.Background())

    @handles(m.Background)
    async def background(self, msg: m.Background) -> None:
        """Start backups and saves: one of each at a time, so that many nodes make one batch."""
        self._woken = False
        transfers, due = self._transfers, self._room.due
        if due.dirty and not transfers.busy("backup"):
            await transfers.backup()
        if due.unsaved and not transfers.busy("save"):
            await self._storing.save()
        if not transfers.operations:
            self._wake()
        await self._extending.serve()

    @handles(m.Transferred)
    async def transferred(self, msg: m.Transferred) -> None:
        """Settle a copy, answer who waited for it, and start what can start now."""
        waiting = tuple(self._transfers.operations[msg.op].waiting)
        self._transfers.report(msg)
        if not msg.ok:
            # Who waited lets go first: what hangs below a failed arrival must not be locked.
            for pending in waiting:
                await self._acquiring.fail(pending)
        await self._transfers.transferred(msg)
        await self._resume(waiting, msg.op)
        await self._extending.serve()
        self._wake()

    @handles(m.Found)
    async def found(self, msg: m.Found) -> None:
        """Fetch what the store has, or go on without it."""
        operation = await self._storing.found(msg)
        if operation is not None:
            await self._resume(tuple(operation.waiting), msg.op)
            self._wake()

    @handles(m.Fetched)
    async def fetched(self, msg: m.Fetched) -> None:
        """Take what arrived from the store, then plan again for who waited."""
        operation = await self._storing.fetched(msg)
        await self._resume(tuple(operation.waiting), msg.op)
        await self._extending.serve()
        self._wake()

    @handles(m.Saved)
    async def saved(self, msg: m.Saved) -> None:
        """Settle a save."""
        await self._storing.saved(msg)
        await self._extending.serve()
        self._wake()

    # -- looking and cleaning ---------------------------------------------------------------------------

    @handles(m.Peek)
    async def peek(self, msg: m.Peek) -> m.Peeked:
        """Answer how much could be reused; change nothing."""
        return await self._planner.peek(msg)

    @handles(m.Explain)
    async def explain(self, msg: m.Explain) -> tuple[Verdict, ...]:
        """Answer what each component says of a prompt."""
        return await self._planner.explain(msg)

    @handles(m.EvictPages)
    async def evict(self, msg: m.EvictPages) -> m.EvictReport:
        """Evict unlocked payload on request."""
        part = self._parts.by_name.get(msg.component)
        if part is None or msg.tier not in self._parts.tiers:
            raise ConfigError(f"no component {msg.component!r} on {msg.tier.name} here")
        freed, pending, nodes = await self._room.evict(msg.tier, part, msg.pages)
        why = "target" if freed + pending >= msg.pages else "exhausted"
        await self._extending.serve()
        return m.EvictReport(freed, pending, nodes, why)

    @handles(m.Settle)
    async def settle(self, msg: m.Settle) -> None:
        """Answer when nothing is in flight between tiers, nor due."""
        if self._transfers.in_flight():
            self._settling.append(self.defer())

    def _settled(self) -> None:
        if self._settling and not self._transfers.in_flight():
            for token in self._settling:
                token.reply(None)
            self._settling.clear()

    def totals(self) -> Totals:
        """Copy the running numbers; may be called from another thread."""
        waiting = len(self._extending.waiters) + len(self._acquiring.waiting)
        return count_totals(
            self._parts,
            self._counters,
            self._room,
            self._transfers,
            leases=len(self._leases),
            waiting=waiting,
        )

    @handles(m.Stats)
    async def stats(self, msg: m.Stats) -> CacheStats:
        """Answer counters and usage."""
        return await gather_stats(
            self.totals(), self._parts, self._counters, self._transfers, self._storing
        )

    @handles(m.Inspect)
    async def inspect(self, msg: m.Inspect) -> Inspection:
        """Answer all bookkeeping at this moment."""
        return await gather(self._parts, tuple(self._leases.values()), self._storing.staged())
