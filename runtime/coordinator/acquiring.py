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

from ...actors import ReplyToken
from ...components import messages as c
from ...errors import IntegrityError
from ...spec import Tier
from ...tiers import messages as t
from .. import messages as m
from .lease_book import LeaseBook
from .leases import LeaseRecord, Share
from .parts import Part, Parts
from .pending import PendingAcquire
from .planning import Planner, reusable_tokens
from .room import Room
from .splitting import Splitter
from .storing import Storing
from .transfers import Transfers

_Lacking = list[tuple[Part, c.Locked]]
"""What is locked and not all on L1: the nodes that L1 lacks, and the operations that bring some."""


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
        prefetch_threshold: int,
    ) -> None:
        self._parts = parts
        self._room = room
        self._planner = planner
        self._splitter = splitter
        self._transfers = transfers
        self._storing = storing
        self._book = book
        self._prefetch_threshold = prefetch_threshold
        self.waiting: dict[ReplyToken, PendingAcquire] = {}

    async def at_once(self, msg: m.Acquire) -> m.Acquired:
        """Lease what L1 has now: all there is without lower tiers, or where nobody will `wait`."""
        parts = self._parts
        limit: int | None = None
        while True:
            walked = await parts.tree.ask(self._planner.walk_of(msg))
            record, lacking = await self._claim(msg, walked, limit, host=False)
            if lacking:
                raise IntegrityError("what was claimed as present on L1 is not")
            if not parts.snapshots or await self._copy_states(record, msg.stream):
                return self.answer(record)
            # No slot for the copy of a state: the next shallower boundary, at last 0.
            await self._book.give_back(record)
            limit = record.published - parts.page

    async def attempt(self, pending: PendingAcquire) -> m.Acquired | None:
        """Go as far as possible without waiting; None means that `pending.ops` must end first."""
        msg, parts = pending.msg, self._parts
        if pending.record is not None:
            if await self._resumed(pending.record, msg.stream):
                return self.answer(pending.record, pending)
            await self.fail(pending)
        host = not pending.settle_for_device
        limit: int | None = None
        while True:
            walked = await parts.tree.ask(self._planner.walk_of(msg))
            record, lacking = await self._claim(msg, walked, limit, host=host)
            boundary = record.published
            if pending.device < 0:
                pending.host = pending.device = boundary
                if lacking:
                    # A claim may have split the edge in which the walk ended.
                    walked = await parts.tree.ask(self._planner.walk_of(msg))
                    on_device = await self._planner.agree(walked, host=False)
                    pending.device = on_device.boundary
            if parts.store and self._worth_a_search(pending, boundary):
                await self._book.give_back(record)
                pending.ops = {await self._storing.find(pending, boundary, record.full)}
                return None
            if not lacking:
                if not parts.snapshots or await self._copy_states(record, msg.stream):
                    return self.answer(record, pending)
            elif await self._hold_states(record):
                ops = {op for _, locked in lacking for op in locked.joins}
                missing = [(part, locked.missing) for part, locked in lacking if locked.missing]
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
            # No slot, as in `at_once`.
            await self._book.give_back(record)
            limit = boundary - parts.page

    async def _claim(
        self, msg: m.Acquire, walked: c.Walked, limit: int | None, *, host: bool
    ) -> tuple[LeaseRecord, _Lacking]:
        """Let the components agree on a boundary and lock what it needs, one message each.

        Answers the lease of it, and what of that L1 lacks. Who is asked first is most likely to
        lower the boundary: states stand far apart, windows may have holes, and FULL is there
        wherever they are. When somebody lowers what others have locked already, all of it is taken
        back and asked anew.
        """
        parts, path, ends, partial = self._parts, walked.path, walked.ends, walked.partial
        shares = tuple(map(Share, parts.all))
        lacking: _Lacking = []
        if not path:
            return self._book.new_lease(msg, shares), lacking
        end = ends[-1]
        boundary = end if limit is None else limit
        now = parts.tick()
        while boundary > 0:
            claim = c.Claim(path, ends, boundary, partial, host, now, msg.priority)
            for part in parts.asking:
                claimed = await part.ref.ask(claim)
                locked = claimed.lock
                if locked is not None:
                    shares[part.index].hold(locked, claimed.boundary)
                    if locked.missing or locked.joins:
                        lacking.append((part, locked))
                if claimed.boundary < boundary:
                    boundary = claimed.boundary
                    if part is not parts.asking[0]:
                        await self._unlock(shares)
                        # States are claimed without a lock: they are forgotten with the shares.
                        shares, lacking = tuple(map(Share, parts.all)), []
                        break
                    if not boundary:
                        break
                    claim = c.Claim(path, ends, boundary, partial, host, now, msg.priority)
            else:
                at = len(ends) - 1 if boundary == end else bisect_left(ends, boundary)
                if boundary == ends[at] and not (partial and boundary == end):
                    break
                # All agree on a boundary inside an edge, which is claimed when a node ends there.
                walked = await self._splitter.at_boundary(walked, at, boundary)
                path, ends, partial = walked.path, walked.ends, walked.partial
        if boundary == end:
            return self._book.new_lease(msg, shares, path[-1], end, end), lacking
        anchor = path[bisect_left(ends, boundary)] if boundary else c.ROOT
        full = await self._planner.alone(walked, host=host)
        return self._book.new_lease(msg, shares, anchor, boundary, full), lacking

    @staticmethod
    async def _unlock(shares: tuple[Share, ...]) -> None:
        for share in shares:
            if share.receipts:
                await share.part.ref.ask(c.Unlock(share.receipts))

    def _worth_a_search(self, pending: PendingAcquire, boundary: int) -> bool:
        if pending.searched:
            return False
        left = reusable_tokens(pending.msg.tokens, self._parts.page) - boundary
        return left >= self._prefetch_threshold

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
                locked = await part.ref.ask(c.Lock(record.anchor))
                share.receipts = locked.receipts
        got = await self._room.take(Tier.L1, tuple((part.name, 1) for part in snapshots))
        if isinstance(got, t.Short):
            return False
        for part, slot in zip(snapshots, got, strict=True):
            record.shares[part.index].slot = slot
        return True

    async def _resumed(self, record: LeaseRecord, stream: int) -> bool:
        """Complete a lease that had to wait for its pages; False where they did not all come."""
        for share in record.shares:
            if share.receipts and not share.pages:
                table = await share.part.ref.ask(c.Table(record.anchor, share.receipts))
                if table.missing or table.joins:
                    return False
                share.start, share.pages = table.start, table.pages
        return await self._copy_states(record, stream)

    async def _copy_states(self, record: LeaseRecord, stream: int) -> bool:
        """Copy the states that a lease has found into slots of its own; False: no slot for a copy.

        A state need not be locked where nobody has waited: making room spares it, as it is pinned,
        and its node's FULL is locked. Those that are locked are unlocked.
        """
        for part in self._parts.snapshots:
            share = record.shares[part.index]
            if not share.pages:
                continue
            if share.slot:
                copy = t.CopyState(part.name, share.pages, share.slot, stream)
                self._room.captured(await self._parts.l1.ask(copy))
            else:
                pinned = frozenset((record.anchor,))
                slot = await self._room.clone(part, share.pages, stream, pinned)
                if isinstance(slot, t.Short):
                    return False
                share.slot = slot
            if share.receipts:
                await part.ref.ask(c.Unlock(share.receipts))
                share.receipts = ()
        return True

    def answer(self, record: LeaseRecord, waited: PendingAcquire | None = None) -> m.Acquired:
        """Answer a lease whose states are copied: its page tables and slots."""
        length, full = record.published, record.full
        hit = m.HitTokens(length)
        if waited is not None:
            waited.record = None
            full = max(full, waited.full)
            if waited.device < length:
                l2 = min(waited.host, length) - waited.device
                hit = m.HitTokens(waited.device, l2, length - waited.device - l2)
        starts: list[int] = []
        pages: list[bytes] = []
        for share in record.shares:
            starts.append(share.start)
            pages.append(share.slot or share.pages)
            share.pages = b""
        return m.Acquired(record.id, length, full, hit, tuple(starts), tuple(pages))

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
