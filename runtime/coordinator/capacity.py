"""Making room: allocate on a tier, evicting what may go, and follow what evicting one thing takes along."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ...components import messages as c
from ...components import views as v
from ...components.move_messages import Dead, Drop, Evict, EvictLeaves, Freed, Unlocked
from ...errors import NoCapacity
from ...spec import PAGE_ID_BYTES, Tier
from ...tiers import messages as t
from .. import messages as m
from .cache_actors import CacheActors, ComponentRef
from .counters import Counters
from .due import Due
from .facts import EvictDone
from .reporting import Reporter

BOTH = (Tier.L1, Tier.L2)
_L1 = Tier.L1  # asking an enum for a member costs more than a call
_NONE: frozenset[int] = frozenset()
_NOTHING = Freed()

PagesWanted = tuple[tuple[str, int], ...]
"""Pages that are asked for, as (component, pages)."""

_Back = list[tuple[str, bytes, int]]
"""Pages on their way back to one tier, as the items of `Free`: (component, pages, op)."""


class Shortage(msgspec.Struct, frozen=True, gc=False):
    """Why nothing was given, and nothing more evicted.

    `coming`: what is pending will meet the request by itself, when copies end or the device has
    passed a fence. Else only a release can, and `pools` are those that cannot be met. `possible` is
    what the first pool that lacks something could give without anything pending.
    """

    coming: bool
    pools: tuple[str, ...] = ()
    possible: int = 0


class Capacity:
    """Allocate and evict for the cache actor; used inside its operations only.

    Nothing is evicted for a request unless all of it can then be met, now or by what is pending.

    `due` is what nodes wait for.
    """

    def __init__(self, actors: CacheActors, counters: Counters, report: Reporter, due: Due) -> None:
        self._actors = actors
        self._tiers = tuple(tier for tier in BOTH if tier in actors.tiers)
        self._report = report
        self._fence = 0
        self.due = due
        self._evicted = counters.evicted
        self._demoted = counters.demoted

    async def allocate_free(self, tier: Tier, want: PagesWanted) -> tuple[bytes, ...] | None:
        """Allocate all of `want` from what is free now, or nothing."""
        answer = await self._actors.tiers[tier].ask(t.Allocate(want))
        return answer.pages if isinstance(answer, t.Allocated) else None

    async def allocate(
        self, tier: Tier, want: PagesWanted, pinned: frozenset[int] = _NONE
    ) -> tuple[bytes, ...] | Shortage:
        """Allocate all of `want` or nothing, evicting as far as needed.

        Pages in quarantine are counted on: nothing more is evicted in their place.
        """
        ref = self._actors.tiers[tier]
        answer = await ref.ask(t.Allocate(want))
        while isinstance(answer, t.Short):
            back = await self._make_room(tier, answer, pinned)
            if isinstance(back, Shortage):
                return back
            fence = self._fence if tier == _L1 else 0
            answer = await ref.ask(t.Allocate(want, tuple(back), fence))
        return answer.pages

    async def clone(
        self, part: ComponentRef, source: bytes, stream: int, pinned: frozenset[int] = _NONE
    ) -> bytes | Shortage:
        """Copy a state to an L1 slot of its own, evicting where none is free: not what is `pinned`."""
        ref = self._actors.tiers[_L1]
        clone = t.Clone(part.name, source, stream)
        answer = await ref.ask(clone)
        while isinstance(answer, t.Short):
            back = await self._make_room(_L1, answer, pinned)
            if isinstance(back, Shortage):
                return back
            await self.free(_L1, back)
            answer = await ref.ask(clone)
        if answer.fence:
            self.note_fence(answer.fence)
        return answer.slot

    async def _make_room(
        self, tier: Tier, short: t.Short, pinned: frozenset[int]
    ) -> _Back | Shortage:
        """Evict what is lacking, if then all is there or pending; what goes back to the tier, then."""
        lacking: list[tuple[ComponentRef, int]] = []
        for name, needed, free, coming in short.lacking:
            pages = needed - free - coming
            if pages > 0:
                lacking.append((self._actors.by_name[name], pages))
        possible = short.lacking[0][2]
        if not lacking:  # each alone would do, perhaps, but not all: pools may share floating slabs
            waits = any(needed > free for _, needed, free, _ in short.lacking)
            return Shortage(coming=waits, possible=possible)
        for part, pages in lacking[1:]:  # the first is asked by its eviction
            if pages > await part.ref.ask(Unlocked(tier, pinned)):
                return await self._why(tier, short, pinned)
        back: _Back = []
        part, pages = lacking[0]
        freed = await self._evict(tier, part, pages, pinned, back, all_or_none=True)
        if not freed.nodes:
            return await self._why(tier, short, pinned)
        for part, pages in lacking[1:]:
            # Less what went along with another component's payload.
            along = sum([len(gone) for other, gone, _ in back if other == part.name])
            if pages * PAGE_ID_BYTES > along:
                missing = pages - along // PAGE_ID_BYTES
                await self._evict(tier, part, missing, pinned, back)
        return back or Shortage(coming=True, possible=possible)

    async def _why(self, tier: Tier, short: t.Short, pinned: frozenset[int]) -> Shortage:
        """Say why nothing was evicted: some pools lack more than may go, or it is still arriving."""
        beyond: list[str] = []
        possible = short.lacking[0][2]
        for name, needed, free, coming in short.lacking:
            unlocked = await self._actors.by_name[name].ref.ask(Unlocked(tier, pinned))
            if needed - free - coming > unlocked:
                possible = possible if beyond else free + unlocked
                beyond.append(name)
        return Shortage(coming=not beyond, pools=tuple(beyond), possible=possible)

    async def is_coming(self, want: PagesWanted) -> bool:
        """Say whether L1 lacks some of `want` now, and what is pending will do."""
        free = {pool.component: pool for pool in await self._actors.l1.ask(t.Usage())}
        lacks = False
        for name, pages in want:
            pool = free[name]
            if pages > pool.free + pool.quarantined:
                return False
            lacks = lacks or pages > pool.free
        return lacks

    async def no_capacity(self, want: PagesWanted) -> tuple[NoCapacity, bool]:
        """Find the L1 pool that is furthest from giving its part of `want`: the error that says so.

        Also says whether it is larger than the pool, so that no release could ever help.
        """
        found: list[tuple[bool, int, NoCapacity]] = []
        for pool in await self._actors.l1.ask(t.Usage()):
            needed = sum([pages for name, pages in want if name == pool.component])
            if needed:
                held, _ = await self._actors.by_name[pool.component].ref.ask(v.Ledger())
                evictable, pending = held.cached - held.locked, pool.quarantined
                possible = pool.free + evictable + pending
                locked = pool.capacity - possible
                error = NoCapacity(
                    pool.component, needed, pool.free, locked, evictable=evictable, pending=pending
                )
                found.append((needed > pool.capacity, needed - possible, error))
        beyond, _, error = max(found, key=lambda entry: entry[:2])
        return error, beyond

    async def evict(self, tier: Tier, part: ComponentRef, pages: int) -> m.EvictReport:
        """Evict from one component; return its own pages freed and pending, and the nodes touched."""
        back: _Back = []
        freed = await self._evict(tier, part, pages, _NONE, back)
        await self.free(tier, back)
        own = len(freed.free) // PAGE_ID_BYTES
        why = "target" if freed.pages >= pages else "exhausted"
        return m.EvictReport(own, freed.pages - own, len(freed.nodes), why)

    async def _evict(
        self,
        tier: Tier,
        part: ComponentRef,
        pages: int,
        pinned: frozenset[int],
        back: _Back,
        *,
        all_or_none: bool = False,
    ) -> Freed:
        """Evict from one component, and what goes along; what leaves `tier` is added to `back`."""
        started = self._report.begin()
        freed = await part.ref.ask(Evict(tier, pages, pinned, all_or_none))
        if not freed.nodes:
            return freed
        self._count(part, freed, tier, back)
        # A leaf whose boundary needs nothing of what went (the start of a chunk) is as good as before.
        bad = freed.gone if part.snapshot else freed.unusable
        base = freed if part.base else await self._evict_leaves(bad, tier, back)
        if base.nodes:
            # FULL takes everything on its tier along; nodes that it keeps nowhere leave the tree.
            drop = Drop(base.nodes, tier, base.gone)
            for other in self._actors.auxiliary:
                self._count(other, await other.ref.ask(drop), tier, back)
            if base.gone:
                await self._actors.tree.ask(c.Remove(base.gone))
                self.due.buried(base.gone)
        if freed.unusable:
            await self._drop_unusable(freed.unusable, base.gone, tier, back)
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
        """Evict FULL from those of the nodes that are leaves: their own boundary is no good any more."""
        if not nodes:
            return _NOTHING
        base = self._actors.base
        leaves = await base.ref.ask(EvictLeaves(nodes, tier))
        self._count(base, leaves, tier, back)
        return leaves

    async def _drop_unusable(
        self, unusable: tuple[int, ...], gone: tuple[int, ...], tier: Tier, back: _Back
    ) -> None:
        """Drop snapshots that needed what was lost for good, where their nodes are still there."""
        nodes = tuple(node for node in unusable if node not in gone)
        if nodes:
            for at in self._tiers:
                dropped = await self._drop(self._actors.snapshots, nodes, at)
                if at == tier:
                    back += dropped
                else:
                    await self.free(at, dropped)

    async def _drop(
        self, components: tuple[ComponentRef, ...], nodes: tuple[int, ...], tier: Tier
    ) -> _Back:
        drop = Drop(nodes, tier)
        back: _Back = []
        for part in components:
            self._count(part, await part.ref.ask(drop), tier, back)
        return back

    def _count(self, part: ComponentRef, freed: Freed, tier: Tier, back: _Back) -> None:
        """Count what a component let go on a tier, and add it to what goes back there."""
        left = freed.pages
        if not left:
            return
        if freed.free:
            back.append((part.name, freed.free, 0))
        for op, pages in freed.pending:
            back.append((part.name, pages, op))
        if freed.lost < left and tier == _L1:
            self._demoted[part.index] += left - freed.lost
            left = freed.lost
        self._evicted[tier][part.index] += left

    async def drop(self, nodes: tuple[int, ...], tier: Tier) -> None:
        """Drop everything on a tier of these nodes (children before parents), and bury the dead."""
        await self.free(tier, await self._drop(self._actors.components, nodes, tier))
        await self.reap(nodes)

    async def reap(self, nodes: Iterable[int]) -> None:
        """Remove nodes that nothing keeps any more, and what that leaves bare above them."""
        base, tree = self._actors.base, self._actors.tree
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
            await self.free(tier, await self._drop(self._actors.auxiliary, gone, tier))
        forget = Drop((), _L1, gone)
        for part in self._actors.components:
            await part.ref.ask(forget)
        await self._actors.tree.ask(c.Remove(gone))
        self.due.buried(gone)

    @property
    def fence(self) -> int:
        """The latest point of the engine's work that was captured: what is freed now comes after it."""
        return self._fence

    def note_fence(self, fence: int) -> None:
        """Note a point of the engine's work; fences only grow."""
        self._fence = max(self._fence, fence)

    async def free(self, tier: Tier, items: list[tuple[str, bytes, int]]) -> None:
        """Free pages on a tier, as the items of `Free`: at once, or under an operation when it is over.

        L1 pages get a new owner only when the device has passed all that the engine had enqueued.
        """
        if items:
            fence = self._fence if tier == _L1 else 0
            await self._actors.tiers[tier].ask(t.Free(tuple(items), fence))

    async def over(self, op: int) -> None:
        """Let the quarantines of a transfer go on every tier."""
        for tier in self._tiers:
            await self._actors.tiers[tier].ask(t.Over(op))
        self.due.room_came()
