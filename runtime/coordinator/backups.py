"""Backups: copy to L2 what was published.

due --> copying --> due for a save
^ '--> postponed: room on L2 is only coming
'----------'     when a transfer ends
"""

from __future__ import annotations

from typing import ClassVar

from ...components import messages as c
from ...components.move_messages import Arrive, BackupPath, Unbacked
from ...spec import Tier
from ...tiers import messages as t
from .. import messages as m
from .cache_actors import ComponentRef
from .capacity import Shortage
from .copies import Copy
from .transfers import Transfers

_BATCH_NODES = 64
"""Nodes that one backup takes at most: one batch of copies, and one step to plan it."""


class Backup(Copy):
    """One backup on its way: what was due for it is then due for a save, if there is a store."""

    __slots__ = ()

    source: ClassVar[Tier] = Tier.L1
    direction: ClassVar[str] = "l1_l2"

    async def copied(self, msg: m.Copied) -> None:
        """End it; what is on L2 now is due for a save."""
        await super().copied(msg)
        if msg.ok:
            self.backed()

    def backed(self) -> None:
        """Let its nodes be due for a save, whatever joined them, if anything.

        The store is asked what of them it lacks, so that nothing goes there twice.
        """
        if self._transfers.actors.store is not None:
            self._transfers.capacity.due.save(self.nodes)


class Backups:
    """Start backups; used inside the cache actor's operations only."""

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self._actors = transfers.actors
        self._capacity = transfers.capacity
        self._due = transfers.capacity.due

    def startable(self) -> bool:
        """Say whether one is due and none under way: many nodes make one batch."""
        return bool(self._due.to_back_up) and not self._transfers.any_of(Backup)

    async def start(self) -> None:
        """Start to copy to L2 what was published since, root first, as far as L2 has room.

        What finds only room that is coming stays due; what finds none is skipped.
        """
        batch = list(self._due.to_back_up)[:_BATCH_NODES]
        for node in batch:
            del self._due.to_back_up[node]
        base = self._actors.base
        chain: dict[int, int] = {}
        for node in batch:
            for id, pages in (await base.ref.ask(BackupPath(node))).unbacked:
                chain.setdefault(id, pages)
        backup = Backup(self._transfers)
        moves: list[t.Move] = []
        backed = await self._back(backup, base, tuple(chain.items()), moves)
        nodes = tuple(dict.fromkeys((*batch, *backed)))
        windows: dict[int, None] = {}
        for part in self._actors.auxiliary:
            found = await part.ref.ask(Unbacked(nodes))
            # L2 keeps nothing of a node whose FULL it does not keep.
            found = tuple(
                [pair for pair in found if not await base.ref.ask(c.Lacks(pair[0], Tier.L2))]
            )
            joined = await self._back(backup, part, found, moves)
            if not part.snapshot:
                windows.update(dict.fromkeys(joined))
        completed = await self._completed(tuple(windows))
        backup.nodes = tuple(dict.fromkeys((*nodes, *completed)))
        if moves:
            await backup.run(moves)
        else:
            backup.backed()
            backup.over()

    async def _completed(self, windows: tuple[int, ...]) -> tuple[int, ...]:
        """Return the nodes that end a chunk in which windows are backed up, on whichever branch.

        An object of the store belongs to the node that ends its chunk, and may be whole only now.
        """
        if not windows or self._actors.store is None:
            return ()
        return await self._actors.tree.ask(c.ChunkSharers(windows, self._actors.chunk))

    async def _back(
        self,
        backup: Backup,
        part: ComponentRef,
        found: tuple[tuple[int, int], ...],
        moves: list[t.Move],
    ) -> tuple[int, ...]:
        """Allocate and mark what fits, from the root down; return the nodes."""
        while found:
            want = ((part.name, sum([pages for _, pages in found])),)
            got: tuple[bytes, ...] | Shortage | None = await self._capacity.allocate_free(
                Tier.L2, want
            )
            if got is None:
                got = await self._capacity.allocate(Tier.L2, want, await self._pins(found))
            if isinstance(got, Shortage):
                found, rest = _fitting(found, got.possible)
                if got.coming:
                    self._due.postpone(node for node, _ in rest)
                else:
                    self._transfers.counters.skipped_backups += 1
                continue
            nodes = tuple(node for node, _ in found)
            source = await part.ref.ask(Arrive(backup.id, nodes, Tier.L2, got[0]))
            moves.append(t.Move(part.name, source, got[0]))
            return nodes
        return ()

    async def _pins(self, found: tuple[tuple[int, int], ...]) -> frozenset[int]:
        """Return the nodes whose L2 copies must stay while room is made for these: their root paths."""
        pinned: set[int] = set()
        for node, _ in found:
            if node not in pinned:
                pinned.update((await self._actors.tree.ask(c.Ancestry(node))).path)
        return frozenset(pinned)


def _fitting(
    found: tuple[tuple[int, int], ...], room: int
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Divide nodes into those, from the first on, that fit into so many pages, and the rest."""
    fits = 0
    for _, pages in found:
        room -= pages
        if room < 0:
            break
        fits += 1
    return found[:fits], found[fits:]
