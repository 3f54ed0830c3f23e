"""The book of live leases: whoever is in it holds something, and is given everything back by it."""

from __future__ import annotations

from ...components import messages as c
from ...errors import StaleLease
from ...spec import Tier
from .. import messages as m
from .capacity import Capacity
from .leases import LeaseRecord, Share

_L1 = Tier.L1  # asking an enum for a member costs more than a call


class LeaseBook(dict[int, LeaseRecord]):
    """Live leases by id; asking for one that is not there raises StaleLease."""

    def __init__(self, capacity: Capacity) -> None:
        super().__init__()
        self._capacity = capacity
        self._last = 0

    def __missing__(self, id: int) -> LeaseRecord:
        raise StaleLease(id)

    def new_lease(
        self,
        msg: m.Acquire,
        shares: tuple[Share, ...],
        anchor: int = c.ROOT,
        end: int = 0,
        full: int = 0,
    ) -> LeaseRecord:
        """Register a lease that stands at the end of a node; what its shares hold is explained by it."""
        id = self._last = self._last + 1
        record = self[id] = LeaseRecord(
            id, msg.namespace, msg.tokens, msg.priority, shares, anchor, end, end, end, end, full
        )
        return record

    async def release(self, record: LeaseRecord) -> None:
        """Unlock and free all that a record holds; it is no lease any more."""
        del self[record.id]
        free: list[tuple[str, bytes, int]] = []
        for share in record.shares:
            part = share.part
            if share.receipts:
                await part.ref.ask(c.Unlock(share.receipts))
            if not part.snapshot:
                if share.own:
                    free.append((part.name, bytes(share.own), 0))
            elif share.slot:
                free.append((part.name, share.slot, 0))
                for _, slot in share.kept:
                    free.append((part.name, slot, 0))
        if free:
            await self._capacity.free(_L1, free)
