"""Copies between L1 and L2: what promotions and backups have in common."""

from __future__ import annotations

from typing import ClassVar

from ...components import messages as c
from ...spec import PAGE_ID_BYTES, Tier
from ...tiers import messages as t
from .. import messages as m
from .transfers import Transfer, Transfers


class Copy(Transfer):
    """One batch of copies. `nodes` are those whose FULL it brings, `pages` are all that it copies."""

    __slots__ = ("_bytes", "nodes", "pages")

    source: ClassVar[Tier]
    direction: ClassVar[str]

    def __init__(self, transfers: Transfers) -> None:
        super().__init__(transfers)
        self._bytes = 0
        self.nodes: tuple[int, ...] = ()
        self.pages = 0

    def split(self, node: int, upper: int) -> None:
        """Bring the FULL of a node's upper half too, where it brings that of the node."""
        if node in self.nodes:
            self.nodes = (upper, *self.nodes)

    async def run(self, moves: list[t.Move]) -> None:
        """Start to copy."""
        actors, page_bytes = self._transfers.actors, self._transfers.page_bytes
        for move in moves:
            pages = len(move.source) // PAGE_ID_BYTES
            self.pages += pages
            self._bytes += pages * page_bytes[actors.by_name[move.component].index]
        await actors.controller.ask(
            m.Copy(self.id, self.source, self.target, tuple(moves), self._transfers.capacity.fence)
        )

    async def copied(self, msg: m.Copied) -> None:
        """End it: presence, quarantines, and what a failed arrival leaves hanging."""
        if msg.ok:
            self.count(self.direction, self._bytes)
        else:
            # Who waited lets go first: what hangs below a failed arrival must not be locked.
            for flight in tuple(self.waiting):
                await flight.let_go()
        await self.settle(ok=msg.ok)
        if not msg.ok:
            await self._cut_off()
        self.over()

    async def _cut_off(self) -> None:
        """Drop what stands on a failed arrival of FULL on its tier: nothing may stand on a hole.

        That is all that its nodes and those below hold there, whoever brought it, also what is still
        arriving by other transfers.
        """
        base, tree, capacity = (
            self._transfers.actors.base,
            self._transfers.actors.tree,
            self._transfers.capacity,
        )
        for node in self.nodes:
            if await base.ref.ask(c.Lacks(node, self.target)):
                below = await tree.ask(c.Subtree(node))
                await capacity.drop((*reversed(below), node), self.target)
        await capacity.reap(reversed(self.nodes))
