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

from bisect import bisect_left

from ..components import messages as c
from ..tiers import messages as t
from . import messages as m
from .acquiring import Acquiring, LeaseBook
from .leases import LeaseRecord
from .messages import PAGE
from .parts import Part, Parts
from .pending import PendingAcquire
from .planning import Planner
from .room import Room


class _Entry:
    """One request of a batch: its walk, its lease, and how far the components agree so far."""

    __slots__ = ("boundary", "good", "record", "walked")

    def __init__(self, record: LeaseRecord, walked: c.Walked) -> None:
        self.record = record
        self.walked = walked
        self.boundary = walked.ends[-1] if walked.ends else 0
        self.good = True


class Batching:
    """Acquire batches for the cache actor; used inside its operations only."""

    def __init__(
        self, parts: Parts, room: Room, planner: Planner, acquiring: Acquiring, book: LeaseBook
    ) -> None:
        self._parts = parts
        self._room = room
        self._planner = planner
        self._acquiring = acquiring
        self._book = book

    async def acquire(self, msg: m.AcquireBatch) -> tuple[m.Acquired, ...]:
        """Lease for each request what is reusable from L1 now."""
        walks = tuple([self._planner.walk_of(each.namespace, each.tokens) for each in msg.requests])
        walked: tuple[c.Walked, ...] = await self._parts.tree.ask(c.WalkMany(walks))
        entries = [
            _Entry(self._book.new_lease(each), path)
            for each, path in zip(msg.requests, walked, strict=True)
        ]
        now = self._parts.tick()
        for part in self._parts.asking:
            await self._claim(part, entries, now)
        for entry in entries:
            if entry.good:
                await self._anchor(entry)
        for part in self._parts.snapshots:
            await self._copy(part, entries, msg.requests[0].stream)
        return tuple(
            [
                await self._finish(entry, each)
                for entry, each in zip(entries, msg.requests, strict=True)
            ]
        )

    async def _claim(self, part: Part, entries: list[_Entry], now: int) -> None:
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
                    priority=entry.record.priority,
                )
                for entry in asked
            ]
        )
        first = part is self._parts.asking[0]
        answers: tuple[c.Claimed, ...] = await part.ref.ask(c.ClaimMany(claims))
        for entry, claimed in zip(asked, answers, strict=True):
            locked, share = claimed.lock, entry.record.shares[part.index]
            entry.good = locked is not None or not claimed.boundary
            if claimed.boundary < entry.boundary and not first:
                entry.good = False
            entry.boundary = claimed.boundary
            if locked is not None:
                share.hold(locked)

    async def _anchor(self, entry: _Entry) -> None:
        record, walked, boundary = entry.record, entry.walked, entry.boundary
        end = walked.ends[-1] if walked.ends else 0
        if boundary:
            anchor = walked.path[bisect_left(walked.ends, boundary)]
            record.anchored(anchor, boundary)
        record.full = boundary
        if boundary < end:
            record.full = await self._planner.alone(walked, host=False)

    async def _copy(self, part: Part, entries: list[_Entry], stream: int) -> None:
        """Copy all states that were found, in one go, if that many slots are free."""
        index = part.index
        found = [e for e in entries if e.good and e.boundary]
        if not found:
            return
        got: t.Allocated | t.Short = await self._parts.l1.ask(
            t.Allocate(((part.name, len(found)),))
        )
        if isinstance(got, t.Short):
            # Room for one copy might be made by evicting the state that another is still to copy.
            for entry in found:
                entry.good = False
            return
        slots = got.pages[0]
        source = b"".join([entry.record.shares[index].pages for entry in found])
        self._room.captured(await self._parts.l1.ask(t.CopyState(part.name, source, slots, stream)))
        for number, entry in enumerate(found):
            entry.record.shares[index].slot = slots[number * PAGE : (number + 1) * PAGE]
            entry.record.shares[index].pages = b""

    async def _finish(self, entry: _Entry, msg: m.Acquire) -> m.Acquired:
        """Answer one request, by the way of a single acquire where the batch could not serve it."""
        if entry.good:
            acquired = await self._acquiring.finish(
                PendingAcquire(msg, None, 0, host=entry.boundary, device=entry.boundary),
                entry.record,
            )
            if acquired is not None:
                return acquired
        await self._book.give_back(entry.record)
        return await self._acquiring.at_once(msg)
