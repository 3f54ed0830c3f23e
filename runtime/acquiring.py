"""Acquiring: plan, lock, bring what is lower, and make the private copies of states.

attempt -> find in the store? -> lock coverage -> promote what L1 lacks -> copy states -> leased
^            (waits)                              (waits)
`---------------- plan again after every wait ------'
"""

from __future__ import annotations

from typing import Protocol

from ..actors import ReplyToken
from ..components import messages as c
from ..errors import IntegrityError
from ..spec import Tier
from ..tiers import messages as t
from . import messages as m
from .leases import LeaseRecord
from .parts import Part, Parts
from .pending import PendingAcquire
from .planning import Plan, Planner, reusable_tokens
from .room import Room
from .splitting import Splitter
from .storing import Storing
from .transfers import Transfers

_Missing = list[tuple[Part, tuple[tuple[int, int], ...]]]


class LeaseBook(Protocol):
    """Where leases are registered: the cache actor."""

    prefetch_threshold: int

    def new_lease(self, msg: m.Acquire) -> LeaseRecord:
        """Register a lease."""
        ...

    async def give_back(self, record: LeaseRecord) -> None:
        """Take a lease back with all it holds."""
        ...


class Acquiring:
    """Acquire for the cache actor; used inside its operations only. `waiting` is by reply token."""

    def __init__(
        self,
        *,
        parts: Parts,
        room: Room,
        planner: Planner,
        splitter: Splitter,
        transfers: Transfers,
        storing: Storing,
        book: LeaseBook,
    ) -> None:
        self._parts = parts
        self._room = room
        self._planner = planner
        self._splitter = splitter
        self._transfers = transfers
        self._storing = storing
        self._book = book
        self.waiting: dict[ReplyToken, PendingAcquire] = {}

    async def attempt(self, pending: PendingAcquire) -> m.Acquired | None:
        """Go as far as possible without waiting; None means that `pending.ops` must end first."""
        if pending.record is not None:
            acquired = await self._finish(pending, pending.record)
            if acquired is not None:
                return acquired
            await self.fail(pending)
        msg, page = pending.msg, self._parts.page
        host = Tier.L2 in self._parts.tiers and msg.wait and not pending.settle_for_device
        limit: int | None = None
        while True:
            plan = await self._planner.plan(msg.namespace, msg.tokens, host=host)
            if limit is not None:
                plan = await self._planner.agree(plan.walked, host=host, limit=limit)
            if pending.device < 0:
                await self._first_look(pending, plan)
            if self._worth_a_search(pending, plan):
                pending.ops = {await self._storing.find(pending, plan)}
                return None
            record, missing, joins = await self._lock(msg, plan)
            if plan.boundary and not await self._slots(record):
                await self._book.give_back(record)
                limit = plan.boundary - page
                continue
            pending.record = record
            if not missing and not joins:
                finished = await self._finish(pending, record)
                if finished is None:
                    raise IntegrityError(f"lease {record.id}: locked coverage is not there")
                return finished
            pending.ops = set(joins)
            if missing:
                op = await self._transfers.promote(missing)
                if not op:
                    await self._book.give_back(record)
                    pending.record = None
                    host = False
                    continue
                pending.ops.add(op)
            for op in pending.ops:
                self._transfers.operations[op].waiting.append(pending)
            return None

    async def _first_look(self, pending: PendingAcquire, plan: Plan) -> None:
        """Remember where the reusable tokens were when the request came."""
        pending.host = pending.device = plan.boundary
        if not plan.resident:
            pending.device = (await self._planner.agree(plan.walked, host=False)).boundary

    def _worth_a_search(self, pending: PendingAcquire, plan: Plan) -> bool:
        if pending.searched or not self._parts.store or not pending.msg.wait:
            return False
        left = reusable_tokens(pending.msg.tokens, self._parts.page) - plan.boundary
        return left >= self._book.prefetch_threshold

    async def _lock(
        self, msg: m.Acquire, plan: Plan
    ) -> tuple[LeaseRecord, _Missing, tuple[int, ...]]:
        """Lock the coverage of the plan's boundary; answer what of it L1 lacks, and what is on its way."""
        record = self._book.new_lease(msg)
        missing: _Missing = []
        joins: list[int] = []
        if plan.boundary:
            node, inside = plan.anchor()
            if inside:
                node = await self._splitter.split(node, plan.boundary)
            record.anchored(node, plan.boundary, self._parts.page)
            record.full = plan.full
            lock = c.Lock(node, self._parts.tick(), msg.priority)
            for share in record.shares:
                locked: c.Locked = await share.part.ref.ask(lock)
                share.receipts, share.low_end = locked.receipts, locked.low_end
                share.start, share.pages = locked.start, locked.pages
                if locked.missing:
                    missing.append((share.part, locked.missing))
                joins.extend(locked.joins)
        else:
            record.full = plan.full
        return record, missing, tuple(joins)

    async def _slots(self, record: LeaseRecord) -> bool:
        """Take a slot for the private copy of each state; False where there is none to be had."""
        snapshots = self._parts.snapshots
        if not snapshots:
            return True
        got = await self._room.take(Tier.L1, tuple((part.name, 1) for part in snapshots))
        if isinstance(got, t.Short):
            return False
        for part, slot in zip(snapshots, got, strict=True):
            record.shares[part.index].slot = slot
        return True

    async def _finish(self, pending: PendingAcquire, record: LeaseRecord) -> m.Acquired | None:
        """Answer the page tables of a coverage, with states copied and unlocked; None: not all there."""
        tables: list[m.PageTable] = []
        length = record.published
        for share in record.shares:
            if not length:
                tables.append(m.PageTable(0, b""))
                continue
            if not share.pages and share.receipts:
                table: c.Locked = await share.part.ref.ask(c.Table(record.anchor, share.receipts))
                if table.missing or table.joins:
                    return None
                share.start, share.pages = table.start, table.pages
            if share.part.snapshot:
                copy = t.CopyState(share.part.name, share.pages, share.slot, pending.msg.stream)
                self._room.captured(await self._parts.tiers[Tier.L1].ask(copy))
                await share.part.ref.ask(c.Unlock(share.receipts))
                share.receipts = ()
                slot = int.from_bytes(share.slot, "little")
                tables.append(m.PageTable(length, b"", slot))
            else:
                tables.append(m.PageTable(share.start, share.pages))
            share.pages = b""
        l1 = min(max(pending.device, 0), length)
        l2 = min(max(pending.host, 0), length) - l1
        pending.record = None
        return m.Acquired(
            record.id,
            length,
            max(record.full, pending.full),
            (l1, l2, length - l1 - l2),
            tuple(tables),
        )

    async def fail(self, pending: PendingAcquire) -> None:
        """Let go of what a failed arrival was to complete; what L1 has must do."""
        self.leave(pending)
        pending.ops.clear()
        pending.settle_for_device = True
        if pending.record is not None:
            await self._book.give_back(pending.record)
            pending.record = None

    def leave(self, pending: PendingAcquire) -> None:
        """Take an acquire out of whatever it waits for."""
        for op in pending.ops:
            operation = self._transfers.operations.get(op)
            if operation is not None and pending in operation.waiting:
                operation.waiting.remove(pending)
