"""Acquiring for a whole scheduler step: one message to the tree and one to each component for all of it.

    walks     tree         |w1 w2 w3 ... wn|
    claims    MAMBA        |c1 c2 c3 ... cn|    each with the boundary that the one before left
              SWA          |c1 c2 .  ... cn|
              FULL         |c1 c2 .  ... cn|
    states    L1           |s1 s2    ... sn|
    the rest  one by one         r3

What the components do not agree on at once, what ends inside an edge and what is not all on L1 goes
the way of a single acquire that does not wait, after everybody else.
"""

from __future__ import annotations

from ...components import messages as c
from ...errors import IntegrityError
from ...spec import PAGE_ID_BYTES
from ...tiers import messages as t
from .. import messages as m
from .cache_actors import CacheActors, ComponentRef
from .capacity import Capacity
from .claiming import Claiming
from .lease_book import LeaseBook
from .leases import LeaseRecord, Share
from .planning import Planner


class _Entry:
    """One request of a batch: its walk, its shares, and how far the components agree so far."""

    __slots__ = ("boundary", "good", "msg", "shares", "walked")

    def __init__(self, msg: m.Acquire, shares: tuple[Share, ...], walked: c.Walked) -> None:
        self.msg = msg
        self.shares = shares
        self.walked = walked
        self.boundary = walked.ends[-1] if walked.ends else 0
        self.good = True


class Batching:
    """Acquire batches for the cache actor; used inside its operations only."""

    def __init__(
        self,
        actors: CacheActors,
        capacity: Capacity,
        planner: Planner,
        claiming: Claiming,
        book: LeaseBook,
    ) -> None:
        self._actors = actors
        self._capacity = capacity
        self._planner = planner
        self._claiming = claiming
        self._book = book

    async def acquire(self, msg: m.AcquireBatch) -> tuple[m.Acquired, ...]:
        """Lease for each request what is reusable from L1 now."""
        actors = self._actors
        walks = tuple([self._planner.walk_of(each) for each in msg.requests])
        walked = await actors.tree.ask(c.WalkMany(walks))
        entries = [
            _Entry(each, tuple(map(Share, actors.components)), path)
            for each, path in zip(msg.requests, walked, strict=True)
        ]
        now = actors.tick()
        for part in actors.claim_order:
            await self._claim(part, entries, now)
        records = [await self._lease(entry) for entry in entries]
        for part in actors.snapshots:
            await self._copy(part, entries, msg.requests[0].stream)
        return tuple(
            [
                await self._finish(entry, record)
                for entry, record in zip(entries, records, strict=True)
            ]
        )

    async def _claim(self, part: ComponentRef, entries: list[_Entry], now: int) -> None:
        """Have one component lock what all requests need of it."""
        asked = [entry for entry in entries if entry.good and entry.boundary]
        if not asked:
            return
        claims = tuple(
            [
                c.Claim(
                    entry.walked.path,
                    entry.walked.ends,
                    entry.boundary,
                    entry.walked.partial,
                    host=False,
                    now=now,
                    priority=entry.msg.priority,
                )
                for entry in asked
            ]
        )
        first = part is self._actors.claim_order[0]
        answers = await part.ref.ask(c.ClaimMany(claims))
        for entry, claimed in zip(asked, answers, strict=True):
            locked = claimed.lock
            entry.good = locked is not None or not claimed.boundary
            if claimed.boundary < entry.boundary and not first:
                entry.good = False
            entry.boundary = claimed.boundary
            if locked is not None:
                entry.shares[part.index].hold(locked, claimed.boundary)

    async def _lease(self, entry: _Entry) -> LeaseRecord:
        """Register the lease of what was locked; where that is no good, to be given back."""
        if not (entry.good and entry.walked.path):
            return self._book.new_lease(entry.msg, entry.shares)
        return await self._claiming.lease_at(
            entry.boundary, entry.msg, entry.shares, entry.walked, host=False
        )

    async def _copy(self, part: ComponentRef, entries: list[_Entry], stream: int) -> None:
        """Copy all states that were found, in one go, if that many slots are free."""
        index = part.index
        found = [e for e in entries if e.good and e.boundary]
        if not found:
            return
        got = await self._actors.l1.ask(t.Allocate(((part.name, len(found)),)))
        if isinstance(got, t.Short):
            # Room for one copy might be made by evicting the state that another is still to copy.
            for entry in found:
                entry.good = False
            return
        slots = got.pages[0]
        source = b"".join([entry.shares[index].found for entry in found])
        self._capacity.note_fence(
            await self._actors.l1.ask(t.CopyState(part.name, source, slots, stream))
        )
        for number, entry in enumerate(found):
            share = entry.shares[index]
            share.slot = slots[number * PAGE_ID_BYTES : (number + 1) * PAGE_ID_BYTES]
            share.found = b""

    async def _finish(self, entry: _Entry, record: LeaseRecord) -> m.Acquired:
        """Return the lease of one request: of a single acquire, where the batch could not serve it."""
        if entry.good:
            return self._claiming.answer(record)
        await self._book.release(record)
        acquired = await self._claiming.at_once(entry.msg)
        if acquired is None:
            raise IntegrityError("a request of a batch was left waiting")
        return acquired
