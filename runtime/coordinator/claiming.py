"""Claiming: the boundary that all components agree on, locked, and private copies of the states there.

A claim is agreement and lock in one message a component. It is made before the others have agreed, so
a component that lowers the boundary has what was claimed for a deeper one taken back: seldom, as
those most likely to lower it are asked first.
"""

from __future__ import annotations

from bisect import bisect_left

from ...components import messages as c
from ...errors import IntegrityError
from ...tiers import messages as t
from .. import messages as m
from .cache_actors import CacheActors, ComponentRef
from .capacity import Capacity, Shortage
from .lease_book import LeaseBook
from .leases import LeaseRecord, Share
from .planning import Planner
from .splitting import Splitter

Lacking = list[tuple[ComponentRef, c.Locked]]
"""What is locked and not all on L1: the nodes that L1 lacks, and the operations that bring some."""


class Claiming:
    """Claim for the cache actor; used inside its operations only."""

    def __init__(
        self,
        actors: CacheActors,
        capacity: Capacity,
        planner: Planner,
        splitter: Splitter,
        book: LeaseBook,
    ) -> None:
        self._actors = actors
        self._capacity = capacity
        self._planner = planner
        self._splitter = splitter
        self._book = book

    async def at_once(self, msg: m.Acquire) -> m.Acquired | None:
        """Lease what L1 has now; None where it may wait, and a slot for a state is coming."""
        actors = self._actors
        limit: int | None = None
        while True:
            walked = await actors.tree.ask(self._planner.walk_of(msg))
            record, lacking = await self.claim(msg, walked, limit, host=False)
            if lacking:
                raise IntegrityError("what was claimed as present on L1 is not")
            shortage = await self.copy_states(record, msg.stream) if actors.snapshots else None
            if shortage is None:
                return self.answer(record)
            await self._book.release(record)
            if shortage.coming and msg.wait:
                return None
            # No slot for the copy of a state: the next shallower boundary, at last 0.
            limit = record.published - actors.page

    async def claim(
        self, msg: m.Acquire, walked: c.Walked, limit: int | None, *, host: bool
    ) -> tuple[LeaseRecord, Lacking]:
        """Let the components agree on a boundary and lock what it needs, one message each.

        Returns the lease of it, and what of that L1 lacks. Who is asked first is most likely to
        lower the boundary: states stand far apart, windows may have holes, and FULL is there
        wherever they are. When somebody lowers what others have locked already, all of it is taken
        back and asked anew.
        """
        actors, path, ends, partial = self._actors, walked.path, walked.ends, walked.partial
        shares = tuple(map(Share, actors.components))
        lacking: Lacking = []
        if not path:
            return self._book.new_lease(msg, shares), lacking
        end = ends[-1]
        boundary = end if limit is None else limit
        now = actors.tick()
        while boundary > 0:
            claim = c.Claim(path, ends, boundary, partial, host, now, msg.priority)
            for part in actors.claim_order:
                claimed = await part.ref.ask(claim)
                locked = claimed.lock
                if locked is not None:
                    shares[part.index].hold(locked, claimed.boundary)
                    if locked.missing or locked.joins:
                        lacking.append((part, locked))
                if claimed.boundary < boundary:
                    boundary = claimed.boundary
                    if part is not actors.claim_order[0]:
                        await self._unlock(shares)
                        # States are claimed without a lock: they are forgotten with the shares.
                        shares, lacking = tuple(map(Share, actors.components)), []
                        break
                    if not boundary:
                        break
                    claim = c.Claim(path, ends, boundary, partial, host, now, msg.priority)
            else:
                if boundary == end and not partial:
                    break
                at = bisect_left(ends, boundary)
                if boundary < end and boundary == ends[at]:
                    break
                # All agree on a boundary inside an edge, which is claimed when a node ends there.
                walked = await self._splitter.at_boundary(walked, at, boundary)
                path, ends, partial = walked.path, walked.ends, walked.partial
        if boundary == end:
            return self._book.new_lease(msg, shares, path[-1], end, end), lacking
        return await self.lease_at(boundary, msg, shares, walked, host=host), lacking

    async def lease_at(
        self,
        boundary: int,
        msg: m.Acquire,
        shares: tuple[Share, ...],
        walked: c.Walked,
        *,
        host: bool,
    ) -> LeaseRecord:
        """Register the lease of what was locked up to a boundary of a walk, the end of a node."""
        path, ends = walked.path, walked.ends
        anchor = path[bisect_left(ends, boundary)] if boundary else c.ROOT
        full = boundary
        if boundary < ends[-1]:
            full = await self._planner.alone(walked, host=host)
        return self._book.new_lease(msg, shares, anchor, boundary, full)

    @staticmethod
    async def _unlock(shares: tuple[Share, ...]) -> None:
        for share in shares:
            if share.receipts:
                await share.part.ref.ask(c.Unlock(share.receipts))

    async def lock_states(self, record: LeaseRecord) -> None:
        """Lock the states that a request copies only after a wait.

        Before room is made for the copies: making it must not take the state.
        """
        for part in self._actors.snapshots:
            share = record.shares[part.index]
            if share.found:
                locked = await part.ref.ask(c.Lock(record.anchor))
                share.receipts = locked.receipts

    async def complete(self, record: LeaseRecord, stream: int) -> bool:
        """Complete a lease that had to wait for its pages; False where they did not all come."""
        for share in record.shares:
            if share.receipts and not (share.found or len(share.table)):
                table = await share.part.ref.ask(c.Table(record.anchor, share.receipts))
                if table.missing or table.joins:
                    return False
                share.show(table)
        return await self.copy_states(record, stream) is None

    async def copy_states(self, record: LeaseRecord, stream: int) -> Shortage | None:
        """Copy the states that a lease has found into slots of its own; what lacks a slot for it.

        A state need not be locked where nobody has waited: making room spares it, as it is pinned,
        and its node's FULL is locked. Those that are locked are unlocked.
        """
        for part in self._actors.snapshots:
            share = record.shares[part.index]
            if not share.found:
                continue
            if share.slot:
                copy = t.CopyState(part.name, share.found, share.slot, stream)
                self._capacity.note_fence(await self._actors.l1.ask(copy))
            else:
                pinned = frozenset((record.anchor,))
                slot = await self._capacity.clone(part, share.found, stream, pinned)
                if isinstance(slot, Shortage):
                    return slot
                share.slot = slot
            if share.receipts:
                await part.ref.ask(c.Unlock(share.receipts))
                share.receipts = ()
            share.found = b""
        return None

    @staticmethod
    def answer(record: LeaseRecord) -> m.Acquired:
        """Return a lease whose pages are there and whose states are copied."""
        length = record.published
        return m.Acquired(record.id, length, record.full, m.HitTokens(length))
