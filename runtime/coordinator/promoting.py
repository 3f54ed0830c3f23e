"""Promoting: bring payload from L2 to L1 for acquires.

begun --> copying --> over: on L1, and who waited goes on
`---> over: failed; who waited lets go, and what stood on it is dropped
"""

from __future__ import annotations

from typing import ClassVar

from ...components import messages as c
from ...components.move_messages import Arrive
from ...spec import PAGE_ID_BYTES, Tier
from ...tiers import messages as t
from .. import messages as m
from .cache_actors import ComponentRef
from .copies import Copy
from .facts import PromoteDone
from .transfers import Transfers


class Promote(Copy):
    """One promotion on its way."""

    __slots__ = ()

    source: ClassVar[Tier] = Tier.L2
    target: ClassVar[Tier] = Tier.L1
    direction: ClassVar[str] = "l2_l1"

    async def copied(self, msg: m.Copied) -> None:
        """End it, and report that for each sampled request that waits for it."""
        self.report(PromoteDone, pages=self.pages, error=msg.error)
        await super().copied(msg)


class Promoting:
    """Start promotions; used inside the cache actor's operations only."""

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers

    async def promote(
        self,
        missing: list[tuple[ComponentRef, tuple[c.NodePages, ...]]],
        rooms: tuple[bytes, ...],
    ) -> Promote:
        """Start to bring payload to the L1 pages that were taken for it.

        The nodes are locked, so making room has not taken what is waited for.
        """
        promote = Promote(self._transfers)
        moves: list[t.Move] = []
        for (part, nodes), pages in zip(missing, rooms, strict=True):
            ids = tuple(node for node, _ in nodes)
            source = await part.ref.ask(Arrive(promote.id, ids, Tier.L1, pages))
            moves.append(t.Move(part.name, source, pages))
            self._transfers.counters.promoted[part.index] += len(pages) // PAGE_ID_BYTES
            if part.base:
                promote.nodes = ids
        await promote.run(moves)
        return promote
