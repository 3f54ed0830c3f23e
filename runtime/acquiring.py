"""Acquiring: claim, bring what is lower, and make the private copies of states.

    attempt -> claim -> find in the store? -> promote what L1 lacks -> copy states -> leased
                 ^      (waits, unclaimed)    (waits, claimed)
                 `-------------'---------------------' where it failed

A claim is agreement and lock in one message a component. It is made before the others have agreed, so
a component that lowers the boundary has what was claimed for a deeper one taken back: seldom, as
those most likely to lower it are asked first.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol

from ..actors import ReplyToken
from ..components import messages as c
from ..errors import IntegrityError
from ..spec import Tier
from ..tiers import messages as t
from . import messages as m
from .leases import LeaseRecord, Share
from .parts import Part, Parts
from .pending import PendingAcquire
from .planning import Planner, reusable_tokens
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
            acquired = await self._resumed(pending, pending.record)
            if acquired is not None:
                return acquired
            await self.fail(pending)
        msg, parts = pending.msg, self._parts
        host = parts.l2 is not None and msg.wait and not pending.settle_for_device
        limit: int | None = None
        while True:
            walked = await self._planner.walk(msg.namespace, msg.tokens)
            record = self._book.new_lease(msg)
            missing, joins = await self._claim(record, walked, host=host, limit=limit)
            boundary = record.published
            if pending.device < 0:
                pending.host = pending.device = boundary
                if missing or joins:
                    on_device = await self._planner.agree(walked, host=False)
                    pending.device = on_device.boundary
            if parts.store and self._worth_a_search(pending, boundary):
                await self._book.give_back(record)
                pending.ops = {await self._storing.find(pending, boundary, record.full)}
                return None
            if not (missing or joins):
                acquired = await self.finish(pending, record)
                if acquired is not None:
                    return acquired
            elif await self._hold_states(record):
                ops = set(joins)
                if missing:
                    op = await self._transfers.promote(missing)
                    if not op:
                        await self._book.give_back(record)
                        host = False
                        continue
                    ops.add(op)
                pending.record, pending.ops = record, ops
                for op in ops:
                    self._transfers.operations[op].waiting.append(pending)
                return None
            # No slot for the copy of a state: the next shallower boundary, at last 0.
            await self._book.give_back(record)
            limit = boundary - parts.page

    async def at_once(self, msg: m.Acquire) -> m.Acquired:
        """Lease what L1 has now, for a message that does not `wait`."""
        acquired = await self.attempt(PendingAcquire(msg, None, 0))
        if acquired is None:
            raise IntegrityError("an acquire that does not wait has waited")
        return acquired

    async def _claim(
        self, record: LeaseRecord, walked: c.Walked, *, host: bool, limit: int | None
    ) -> tuple[_Missing, list[int]]:
        """Let the components agree on a boundary and lock what it needs, one message each.

        Answers what of that L1 lacks, and the operations that bring what is on its way. Who is asked
        first is most likely to lower the boundary: states stand far apart, windows may have holes,
        and FULL is there wherever they are. When somebody lowers what others have locked already,
        all of it is taken back and asked anew.
        """
        missing: _Missing = []
        joins: list[int] = []
        path, ends, partial = walked.path, walked.ends, walked.partial
        end = ends[-1] if ends else 0
        boundary = end if limit is None else limit
        now = self._parts.tick()
        while boundary > 0:
            first = True
            for part in self._parts.asking:
                claimed: c.Claimed = await part.ref.ask(
                    c.Claim(path, ends, boundary, partial, host, now, record.priority)
                )
                locked, share = claimed.lock, record.shares[part.index]
                if locked is not None:
                    share.hold(locked)
                    if locked.missing:
                        missing.append((part, locked.missing))
                    if locked.joins:
                        joins += locked.joins
                lowered = claimed.boundary < boundary
                boundary = claimed.boundary
                if not boundary or (lowered and not first):
                    break
                first = False
            else:
                if not partial or boundary < end:
                    break
                upper = await self._splitter.split(path[-1], boundary)
                path, partial = (*path[:-1], upper), False
                continue
            await self._unlock(record)
            missing, joins = [], []
        if boundary:
            anchor = path[-1] if boundary == end else path[bisect_left(ends, boundary)]
            record.anchored(anchor, boundary)
        record.full = boundary
        if boundary < end:
            record.full = await self._planner.alone(walked, host=host)
        return missing, joins

    async def _unlock(self, record: LeaseRecord) -> None:
        for share in record.shares:
            if share.receipts:
                await share.part.ref.ask(c.Unlock(share.receipts))
            # Also where there is no lock: a state is claimed without, and would be copied.
            share.receipts, share.low_end, share.start, share.pages = (), 0, 0, b""

    def _worth_a_search(self, pending: PendingAcquire, boundary: int) -> bool:
        if pending.searched or not pending.msg.wait:
            return False
        left = reusable_tokens(pending.msg.tokens, self._parts.page) - boundary
        return left >= self._book.prefetch_threshold

    async def _hold_states(self, record: LeaseRecord) -> bool:
        """Lock the states that a request copies only after a wait, and take slots for the copies.

        False where there is no slot to be had. The locks come first: making room for the copy of a
        state must not take the state.
        """
        snapshots = self._parts.snapshots
        if not snapshots:
            return True
        for part in snapshots:
            share = record.shares[part.index]
            if share.pages:
                locked: c.Locked = await part.ref.ask(c.Lock(record.anchor))
                share.receipts = locked.receipts
        got = await self._room.take(Tier.L1, tuple((part.name, 1) for part in snapshots))
        if isinstance(got, t.Short):
            return False
        for part, slot in zip(snapshots, got, strict=True):
            record.shares[part.index].slot = slot
        return True

    async def _resumed(self, pending: PendingAcquire, record: LeaseRecord) -> m.Acquired | None:
        """Finish a lease that had to wait for its pages; None where they did not all come."""
        for share in record.shares:
            if share.receipts and not share.pages:
                table: c.Locked = await share.part.ref.ask(c.Table(record.anchor, share.receipts))
                if table.missing or table.joins:
                    return None
                share.start, share.pages = table.start, table.pages
        return await self.finish(pending, record)

    async def finish(self, pending: PendingAcquire, record: LeaseRecord) -> m.Acquired | None:
        """Answer the page tables, with states copied and unlocked; None: no slot for a copy."""
        length, stream = record.published, pending.msg.stream
        starts: list[int] = []
        pages: list[bytes] = []
        for share in record.shares:
            starts.append(share.start)
            if not share.part.snapshot:
                pages.append(share.pages)
            elif not share.pages or await self._copy(share, record.anchor, stream):
                pages.append(share.slot)
            else:
                return None
            share.pages = b""
        pending.record = None
        hit = m.HitTokens(length)
        if pending.device < length:
            l2 = min(pending.host, length) - pending.device
            hit = m.HitTokens(pending.device, l2, length - pending.device - l2)
        full = max(record.full, pending.full)
        return m.Acquired(record.id, length, full, hit, tuple(starts), tuple(pages))

    async def _copy(self, share: Share, anchor: int, stream: int) -> bool:
        """Copy the state that a share has found into a slot of its own; unlock it if it is locked.

        It need not be locked where nobody has waited: making room spares it, as it is pinned, and its
        node's FULL is locked.
        """
        part = share.part
        if share.slot:
            copy = t.CopyState(part.name, share.pages, share.slot, stream)
            self._room.captured(await self._parts.l1.ask(copy))
        else:
            slot = await self._room.clone(part, share.pages, stream, frozenset((anchor,)))
            if isinstance(slot, t.Short):
                return False
            share.slot = slot
        if share.receipts:
            await part.ref.ask(c.Unlock(share.receipts))
            share.receipts = ()
        return True

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
