"""Making room: allocate on a tier, evicting what may go, and follow what evicting one thing takes along."""

from __future__ import annotations

from collections.abc import Iterable

from ...components import messages as c
from ...components.move_messages import Dead, Drop, Evict, EvictLeaves, Freed
from ...spec import PAGE_ID_BYTES, Tier
from ...tiers import messages as t
from .due import Due
from .facts import EvictDone
from .parts import Part, Parts
from .reporting import Reporter

BOTH = (Tier.L1, Tier.L2)
_L1 = Tier.L1  # asking an enum for a member costs more than a call
_NONE: frozenset[int] = frozenset()
_NOTHING = Freed()

_Back = list[tuple[str, bytes, int]]
"""Pages on their way back to one tier, as the items of `Free`: (component, pages, op)."""


class Room:
    """Allocate and evict for the cache actor; used inside its operations only.

    `evicted` and `demoted` count pages that left L1 or L2 for good, or left L1 while L2 keeps them,
    per component; `due` is what nodes wait for.
    """

    def __init__(self, parts: Parts, report: Reporter) -> None:
        self._parts = parts
        self._tiers = tuple(tier for tier in BOTH if tier in parts.tiers)
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
        answer = await self._parts.tiers[tier].ask(t.Allocate(want))
        return answer.pages if isinstance(answer, t.Allocated) else answer

    async def take(
        self, tier: Tier, want: tuple[tuple[str, int], ...], pinned: frozenset[int] = _NONE
    ) -> tuple[bytes, ...] | t.Short:
        """Allocate all of `want` or nothing, evicting as far as needed.

        Pages in quarantine are counted on: nothing more is evicted in their place.
        """
        ref = self._parts.tiers[tier]
        answer = await ref.ask(t.Allocate(want))
        while isinstance(answer, t.Short):
            back = await self._make_room(tier, answer, pinned)
            if not back:
                return answer
            fence = self._fence if tier == _L1 else 0
            answer = await ref.ask(t.Allocate(want, tuple(back), fence))
        return answer.pages

    async def clone(
        self, part: Part, source: bytes, stream: int, pinned: frozenset[int] = _NONE
    ) -> bytes | t.Short:
        """Copy a state to an L1 slot of its own, evicting where none is free: not what is `pinned`."""
        ref = self._parts.tiers[_L1]
        clone = t.Clone(part.name, source, stream)
        answer = await ref.ask(clone)
        while isinstance(answer, t.Short):
            back = await self._make_room(_L1, answer, pinned)
            if not back:
                return answer
            await self.give_back(_L1, back)
            answer = await ref.ask(clone)
        if answer.fence:
            self.captured(answer.fence)
        return answer.slot

    async def _make_room(self, tier: Tier, short: t.Short, pinned: frozenset[int]) -> _Back:
        """Evict what is lacking; answer what is to go back to the tier then, empty for nothing."""
        back: _Back = []
        for name, needed, free, coming in short.lacking:
            lacking = needed - free - coming
            for other, pages, _ in back:  # what went along with another component's payload
                if other == name:
                    lacking -= len(pages) // PAGE_ID_BYTES
            if lacking > 0:
                await self._evict(tier, self._parts.by_name[name], lacking, pinned, back)
        return back

    async def evict(self, tier: Tier, part: Part, pages: int) -> tuple[int, int, int]:
        """Evict from one component; answer its own pages freed and pending, and the nodes touched."""
        back: _Back = []
        freed = await self._evict(tier, part, pages, _NONE, back)
        await self.give_back(tier, back)
        own = len(freed.free) // PAGE_ID_BYTES
        return own, freed.pages - own, len(freed.nodes)

    async def _evict(
        self, tier: Tier, part: Part, pages: int, pinned: frozenset[int], back: _Back
    ) -> Freed:
        """Evict from one component, and what goes along; what leaves `tier` is added to `back`."""
        started = self._report.begin()
        freed = await part.ref.ask(Evict(tier, pages, pinned))
        if not freed.nodes:
            return freed
        self._count(part, freed, tier, back)
        whole = freed if part.base else await self._evict_leaves(freed.gone, tier, back)
        if whole.nodes:
            # FULL takes everything on its tier along; nodes that it keeps nowhere leave the tree.
            drop = Drop(whole.nodes, tier, whole.gone)
            for other in self._parts.auxiliary:
                self._count(other, await other.ref.ask(drop), tier, back)
            if whole.gone:
                await self._parts.tree.ask(c.Remove(whole.gone))
                self.due.buried(whole.gone)
        if freed.spoilt:
            await self._drop_spoilt(freed.spoilt, whole.gone, tier, back)
        if started:
            self._report.done(
                EvictDone,
                started,
                component=part.name,
                tier=tier.name.lower(),
                pages=len(freed.free) // PAGE_ID_BYTES,
                nodes=len(freed.nodes),
            )
        return freed

    async def _evict_leaves(self, nodes: tuple[int, ...], tier: Tier, back: _Back) -> Freed:
        """Evict FULL from those of the nodes that are leaves: they have lost a last copy."""
        if not nodes:
            return _NOTHING
        base = self._parts.base
        leaves = await base.ref.ask(EvictLeaves(nodes, tier))
        self._count(base, leaves, tier, back)
        return leaves

    async def _drop_spoilt(
        self, spoilt: tuple[int, ...], gone: tuple[int, ...], tier: Tier, back: _Back
    ) -> None:
        """Drop snapshots that needed what was lost for good, where their nodes are still there."""
        nodes = tuple(node for node in spoilt if node not in gone)
        if nodes:
            for at in self._tiers:
                dropped = await self._drop(self._parts.snapshots, nodes, at)
                if at == tier:
                    back += dropped
                else:
                    await self.give_back(at, dropped)

    async def _drop(self, parts: tuple[Part, ...], nodes: tuple[int, ...], tier: Tier) -> _Back:
        drop = Drop(nodes, tier)
        back: _Back = []
        for part in parts:
            self._count(part, await part.ref.ask(drop), tier, back)
        return back

    def _count(self, part: Part, freed: Freed, tier: Tier, back: _Back) -> None:
        """Count what a component let go on a tier, and add it to what goes back there."""
        left = freed.pages
        if not left:
            return
        if freed.free:
            back.append((part.name, freed.free, 0))
        for op, pages in freed.pending:
            back.append((part.name, pages, op))
        if freed.lost < left and tier == _L1:
            self.demoted[part.index] += left - freed.lost
            left = freed.lost
        self.evicted[tier][part.index] += left

    async def drop(self, nodes: tuple[int, ...], tier: Tier) -> None:
        """Drop everything on a tier of these nodes (children before parents), and bury the dead."""
        await self.give_back(tier, await self._drop(self._parts.all, nodes, tier))
        await self.reap(nodes)

    async def reap(self, nodes: Iterable[int]) -> None:
        """Remove nodes that nothing keeps any more, and what that leaves bare above them."""
        base, tree = self._parts.base, self._parts.tree
        for node in nodes:
            current = node
            while current and any(await base.ref.ask(Dead((current,)))):
                if await tree.ask(c.Subtree(current)):
                    break
                path = (await tree.ask(c.Ancestry(current))).path
                await self._bury(current)
                current = path[-2] if len(path) > 1 else 0

    async def _bury(self, node: int) -> None:
        """Let a node that FULL keeps nowhere leave the tree, with all that others hold of it."""
        gone = (node,)
        for tier in self._tiers:
            await self.give_back(tier, await self._drop(self._parts.auxiliary, gone, tier))
        forget = Drop((), _L1, gone)
        for part in self._parts.all:
            await part.ref.ask(forget)
        await self._parts.tree.ask(c.Remove(gone))
        self.due.buried(gone)

    @property
    def fence(self) -> int:
        """The latest point of the engine's work that was captured: what is freed now comes after it."""
        return self._fence

    def captured(self, fence: int) -> None:
        """Note a point of the engine's work; fences only grow."""
        self._fence = max(self._fence, fence)

    async def give_back(self, tier: Tier, items: list[tuple[str, bytes, int]]) -> None:
        """Free pages on a tier, as the items of `Free`: at once, or under an operation when it is over.

        L1 pages get a new owner only when the device has passed all that the engine had enqueued.
        """
        if items:
            fence = self._fence if tier == _L1 else 0
            await self._parts.tiers[tier].ask(t.Free(tuple(items), fence))

    async def over(self, op: int) -> None:
        """Let the quarantines of an operation go on every tier."""
        for tier in self._tiers:
            await self._parts.tiers[tier].ask(t.Over(op))
