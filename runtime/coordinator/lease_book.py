"""The book of live leases: whoever is in it holds something, and is given everything back by it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ...components import messages as c
from ...errors import StaleLease
from ...spec import Tier
from .. import messages as m
from .capacity import Capacity
from .leases import LeaseRecord, Share

if TYPE_CHECKING:
    from .lease_audit import LeaseAudit

_L1 = Tier.L1  # asking an enum for a member costs more than a call


class LiveLeases(dict[int, LeaseRecord]):
    """Live leases by id; asking for one that is not there raises StaleLease.

    They outlive the actors of a cache. `last` is the highest id so far. `unclaimed` is what answers
    gave that found nobody: leases to release, and extends to undo.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last = 0
        self.unclaimed: deque[tuple[m.Extend, m.Extended] | m.Release] = deque()
        self.audit: LeaseAudit | None = None

    def to_change(self, id: int) -> LeaseRecord:
        """Return a lease that is about to change: a running audit notes first what it is."""
        record = self[id]
        if self.audit is not None:
            self.audit.before(record)
        return record

    def __missing__(self, id: int) -> LeaseRecord:
        raise StaleLease(id)


class LeaseBook:
    """Open leases and end them, for the cache actor; used inside its operations only."""

    def __init__(self, live: LiveLeases, capacity: Capacity) -> None:
        self.live = live
        self._capacity = capacity

    def new_lease(
        self,
        msg: m.Acquire,
        shares: tuple[Share, ...],
        anchor: int = c.ROOT,
        end: int = 0,
        full: int = 0,
    ) -> LeaseRecord:
        """Register a lease that stands at the end of a node; what its shares hold is explained by it."""
        live = self.live
        id = live.last = live.last + 1
        record = live[id] = LeaseRecord(
            id, msg.namespace, msg.tokens, msg.priority, shares, anchor, end, end, end, end, full
        )
        return record

    async def release(self, record: LeaseRecord) -> None:
        """Unlock and free all that a record holds; it is no lease any more.

        That comes first, so that a crash on the way does not bring it back.
        """
        if self.live.audit is not None:
            self.live.audit.before(record)
        del self.live[record.id]
        free: list[tuple[str, bytes, int]] = []
        extent, published = record.extent, record.published
        for share in record.shares:
            part = share.part
            if share.receipts:
                await part.ref.ask(c.Unlock(share.receipts))
            if not part.snapshot:
                if extent > published:
                    free.append((part.name, share.private(), 0))
            elif share.slot:
                free.append((part.name, share.slot, 0))
                for _, slot in share.kept:
                    free.append((part.name, slot, 0))
        if free:
            await self._capacity.free(_L1, free)
