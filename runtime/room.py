"""Making room: allocate on a tier, evicting what may go, and follow what evicting one thing takes along."""

from __future__ import annotations

from collections.abc import Iterable

from ..components import messages as c
from ..spec import Tier
from ..tiers import messages as t
from .due import Due
from .facts import EvictDone
from .parts import Part, Parts
from .reporting import Reporter

PAGE = 4
BOTH = (Tier.L1, Tier.L2)


class Room:
    """Allocate and evict for the cache actor; used inside its operations only.

    `evicted` and `demoted` count pages that left L1 or L2 for good, or left L1 while L2 keeps them,
    per component; `due` is what nodes wait for.
    """

    def __init__(self, parts: Parts, report: Reporter) -> None:
        self._parts = parts
        self._report = report
        self._fence = 0
        self.due = Due()
        zero = [0] * len(parts.all)
        self.evicted = {tier: list(zero) for tier in BOTH}
        self.demoted = list(zero)

    async def take_free(
        self, tier: Tier, want: tuple[tuple[str, int], ...]
    ) -> tuple[bytes, ...] | t.Short:
        """Allocate all of `want` or nothing from what is free now."""
        answer: t.Allocated | t.Short = await self._parts.tiers[tier].ask(t.Allocate(want))
        return answer.pages if isinstance(answer, t.Allocated) else answer

    async def take(
        self, tier: Tier, want: tuple[tuple[str, int], ...], pinned: frozenset[int] = frozenset()
    ) -> tuple[bytes, ...] | t.Short:
        """Allocate all of `want` or nothing, evicting as far as needed.

        Pages in quarantine are counted on: nothing more is evicted in their place.
        """
        ref = self._parts.tiers[tier]
        while True:
            answer: t.Allocated | t.Short = await ref.ask(t.Allocate(want))
            if isinstance(answer, t.Allocated):
                return answer.pages
            progress = False
            usage: tuple[t.PoolUsage, ...] = await ref.ask(t.Usage())
            coming = {pool.component: pool.quarantined for pool in usage}
            for name, needed, free in answer.lacking:
                part = self._parts.by_name[name]
                lacking = needed - free - coming[name]
                if lacking > 0:
                    freed, _, _ = await self.evict(tier, part, lacking, pinned)
                    progress = progress or freed > 0
            if not progress:
                return answer

    async def evict(
        self, tier: Tier, part: Part, pages: int, pinned: frozenset[int] = frozenset()
    ) -> tuple[int, int, int]:
        """Evict from one component; answer its own pages freed and pending, and the nodes touched."""
        started = self._report.begin()
        freed: c.Freed = await part.ref.ask(c.Evict(tier, pages, pinned))
        if not freed.nodes:
            return 0, 0, 0
        batch = _Batch(self, tier)
        batch.add(part, freed)
        if part.base:
            await self._follow_base(batch, freed.nodes, freed.gone)
        elif freed.gone:
            await self._follow_auxiliary(batch, freed)
        await batch.give_back()
        own = len(freed.free) // PAGE
        if started:
            where = tier.name.lower()
            self._report.done(
                EvictDone,
                started,
                component=part.name,
                tier=where,
                pages=own,
                nodes=len(freed.nodes),
            )
        return own, sum(len(p) for _, p in freed.pending) // PAGE, len(freed.nodes)

    async def _follow_base(
        self, batch: _Batch, nodes: tuple[int, ...], gone: tuple[int, ...]
    ) -> None:
        """FULL takes everything on its tier along; nodes that it keeps nowhere leave the tree."""
        for part in self._parts.auxiliary:
            batch.add(part, await part.ref.ask(c.Drop(nodes, (batch.tier,))))
        if gone:
            await self._bury(batch, gone)

    async def _bury(self, batch: _Batch, gone: tuple[int, ...]) -> None:
        other = BOTH[1 - batch.tier]
        for part in self._parts.auxiliary:
            freed: c.Freed = await part.ref.ask(c.Drop(gone, (other,), forget=True))
            batch.add(part, freed, tier=other)
        await self._parts.base.ref.ask(c.Drop(gone, (), forget=True))
        await self._parts.tree.ask(c.Remove(gone))
        self.due.buried(gone)

    async def _follow_auxiliary(self, batch: _Batch, freed: c.Freed) -> None:
        """Drop what goes along with a last copy: the whole of a leaf, and snapshots that needed it."""
        base = self._parts.base
        leaves: c.Freed = await base.ref.ask(c.EvictLeaves(freed.gone, batch.tier))
        if leaves.nodes:
            batch.add(base, leaves)
            await self._follow_base(batch, leaves.nodes, leaves.gone)
        buried = frozenset(leaves.gone)
        spoilt = tuple(node for node in freed.spoilt if node not in buried)
        if spoilt:
            for part in self._parts.snapshots:
                for tier in BOTH:
                    batch.add(part, await part.ref.ask(c.Drop(spoilt, (tier,))), tier=tier)

    async def drop(self, nodes: tuple[int, ...], tier: Tier) -> None:
        """Drop everything on a tier of these nodes (children before parents), and bury the dead."""
        batch = _Batch(self, tier)
        for part in self._parts.all:
            batch.add(part, await part.ref.ask(c.Drop(nodes, (tier,))))
        await self.reap(nodes, batch)
        await batch.give_back()

    async def reap(self, nodes: Iterable[int], batch: _Batch | None = None) -> None:
        """Remove nodes that nothing keeps any more, and what that leaves bare above them."""
        base, tree = self._parts.base, self._parts.tree
        mine = batch or _Batch(self, Tier.L1)
        for node in nodes:
            current = node
            while current:
                if not await base.ref.ask(c.Dead((current,))):
                    break
                if await tree.ask(c.Subtree(current)):
                    break
                path = (await tree.ask(c.Ancestry(current))).path
                for part in self._parts.auxiliary:
                    for tier in BOTH:
                        dropped = await part.ref.ask(c.Drop((current,), (tier,)))
                        mine.add(part, dropped, tier=tier)
                await self._bury(mine, (current,))
                current = path[-2] if len(path) > 1 else 0
        if batch is None:
            await mine.give_back()

    @property
    def fence(self) -> int:
        """The latest point of the engine's work that was captured: what is freed now comes after it."""
        return self._fence

    def captured(self, fence: int) -> None:
        """Note a point of the engine's work; fences only grow."""
        self._fence = max(self._fence, fence)

    async def give_back(self, tier: Tier, items: list[tuple[Part, bytes, int]]) -> None:
        """Free pages on a tier: at once, or under an operation when it is over.

        L1 pages get a new owner only when the device has passed all that the engine had enqueued.
        """
        free = tuple((part.name, pages, op) for part, pages, op in items if pages)
        if free:
            fence = self._fence if tier == Tier.L1 else 0
            await self._parts.tiers[tier].ask(t.Free(free, fence))

    async def over(self, op: int) -> None:
        """Let the quarantines of an operation go on every tier."""
        for tier in BOTH:
            if tier in self._parts.tiers:
                await self._parts.tiers[tier].ask(t.Over(op))


class _Batch:
    """Pages that one eviction sets free, tier by tier, given back together at its end."""

    def __init__(self, room: Room, tier: Tier) -> None:
        self.tier = tier
        self._room = room
        self._items: dict[Tier, list[tuple[Part, bytes, int]]] = {}

    def add(self, part: Part, freed: c.Freed, tier: Tier | None = None) -> None:
        """Take what a component let go."""
        at = self.tier if tier is None else tier
        count = len(freed.free) // PAGE
        items = self._items.setdefault(at, [])
        if count:
            items.append((part, freed.free, 0))
        for op, pages in freed.pending:
            items.append((part, pages, op))
            count += len(pages) // PAGE
        if not count:
            return
        if at == Tier.L1:
            self._room.demoted[part.index] += count - freed.lost
            count = freed.lost
        self._room.evicted[at][part.index] += count

    async def give_back(self) -> None:
        """Hand everything to its tier."""
        for tier, items in self._items.items():
            if items:
                await self._room.give_back(tier, items)
