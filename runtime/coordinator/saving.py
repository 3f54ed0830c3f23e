"""Saving: write to the store what was backed up.

    due --> marked and named --> hashed, probed, written --> over

An object is one chunk of one component. A chunk belongs to the node in whose range it ends; a window
is saved as far back as the chunk's own boundary needs it, a snapshot where it stands on a chunk's end.
"""

from __future__ import annotations

from ...components import messages as c
from ...components.move_messages import Read
from ...telemetry.logs import warn_store_takes_nothing
from ...tiers.store import messages as s
from .. import messages as m
from .cache_actors import ComponentRef
from .endpoints import Endpoints
from .transfers import Transfer, Transfers

_BATCH_NODES = 16
"""Nodes due for a save that one pass takes."""

_SILENT_SAVES = 8
"""Saves in a row of which the store took nothing before that is said."""


class Save(Transfer):
    """The save of one node on its way."""

    __slots__ = ("_by", "_node")

    def __init__(self, by: Saving, transfers: Transfers, node: int) -> None:
        super().__init__(transfers)
        self._by = by
        self._node = node  # of a node that is split meanwhile, the lower half keeps the id

    async def saved(self, msg: m.Saved) -> None:
        """End it, and keep the chain hash so that the next save need not start at the root."""
        await self.settle(ok=True)
        self.count("l2_l3", msg.stored)
        self._by.count_lost(msg)
        if msg.chain:
            await self._transfers.actors.tree.ask(c.Chained(self._node, msg.at, msg.chain))
        self.over()


class Saving:
    """Plan and start saves; used inside the cache actor's operations only."""

    def __init__(self, transfers: Transfers, endpoints: Endpoints) -> None:
        self._actors = transfers.actors
        self._due = transfers.capacity.due
        self._transfers = transfers
        self._endpoints = endpoints
        self._lost_saves = 0

    def startable(self) -> bool:
        """Say whether saves are due and none is under way."""
        return bool(self._due.to_save) and not self._transfers.any_of(Save)

    async def start(self) -> None:
        """Start to write to the store the chunks that end in nodes newly on L2."""
        batch = list(self._due.to_save)[:_BATCH_NODES]
        for node in batch:
            del self._due.to_save[node]
            await self._save_node(node)

    async def _save_node(self, node: int) -> None:
        span = await self._actors.tree.ask(c.Span(node))
        if span is None:
            return
        chunk = self._actors.chunk
        path = await self._actors.tree.ask(c.Ancestry(node))
        start = path.ends[-2] if len(path.ends) > 1 else 0
        ends = range((start // chunk + 1) * chunk, span.end + 1, chunk)
        if not ends:
            return
        save = Save(self, self._transfers, node)
        items: list[s.StoreItem] = []
        for end in ends:
            for part in self._actors.components:
                item = await self._item(save.id, part, node, end)
                if item is not None:
                    items.append(item)
                elif part.base:
                    break  # without FULL nobody could reuse the chunk
        if not items:
            await save.settle(ok=True)
            save.over()
            return
        await self._actors.controller.ask(
            m.Save(save.id, span.namespace, span.base, span.chain, span.tokens, tuple(items))
        )

    async def _item(self, op: int, part: ComponentRef, node: int, end: int) -> s.StoreItem | None:
        """Mark and name the L2 pages of one object; None where L2 holds less than a reuse needs."""
        first = end - self._actors.chunk
        found = await part.ref.ask(Read(op, node, first, end))
        if not found.pages:
            return None
        if not part.snapshot:
            need = part.rule.need(end)
            if (
                not need
                or found.start > max(first, need[0][0]) // self._actors.page * self._actors.page
            ):
                return None
        return s.StoreItem(part.name, b"", found.start, end, found.pages)

    def count_lost(self, msg: m.Saved) -> None:
        """Count saves in a row of which the store took nothing, and say so once."""
        if msg.stored:
            self._lost_saves = 0
        elif msg.lost is not None:
            self._lost_saves += 1
            if self._lost_saves == _SILENT_SAVES:
                warn_store_takes_nothing(self._lost_saves, msg.lost.value)
