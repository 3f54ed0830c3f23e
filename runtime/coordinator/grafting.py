"""Grafting: hang what came from the store into the tree, on L2."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from ...components import messages as c
from ...errors import IntegrityError
from ...spec import TOKEN_BYTES, Tier
from ...tiers.store import messages as s
from .. import messages as m
from .cache_actors import CacheActors, ComponentRef
from .capacity import Capacity
from .planning import Planner
from .runs import Run, joined
from .splitting import Splitter


class Grafting:
    """Adopt fetched objects for the cache actor; used inside its operations only."""

    def __init__(
        self, actors: CacheActors, capacity: Capacity, planner: Planner, splitter: Splitter
    ) -> None:
        self._actors = actors
        self._planner = planner
        self._capacity = capacity
        self._splitter = splitter

    async def ground(self, msg: m.Acquire) -> int:
        """Return how far L2 holds FULL of a prompt, there or arriving: on this a graft can stand.

        L1 may hold more, of which no backup was made, or which L2 has evicted.
        """
        walked = await self._actors.tree.ask(self._planner.walk_of(msg))
        low, high = 0, len(walked.path)
        while low < high:  # L2 is prefix-closed
            middle = (low + high) // 2
            if await self._lacks(walked.path[middle]):
                high = middle
            else:
                low = middle + 1
        return walked.ends[low - 1] if low else 0

    async def free(self, items: list[s.StoreItem]) -> None:
        """Free the pages of objects that nobody can use."""
        free = [(item.component, item.pages, 0) for item in items]
        await self._capacity.free(Tier.L2, free)

    async def graft(self, msg: m.Acquire, endpoint: int, items: list[s.StoreItem]) -> bool:
        """Adopt fetched objects on L2; False, and nothing is changed, where FULL lacks below them."""
        actors, tree = self._actors, self._actors.tree
        key = msg.tokens[: endpoint * TOKEN_BYTES]
        own: dict[str, list[s.StoreItem]] = {}
        for item in items:
            own.setdefault(item.component, []).append(item)
        runs = {part: joined(own.get(part.name, ()), actors.page) for part in actors.paged}
        walked = await tree.ask(c.Walk(msg.namespace, key))
        base = runs[actors.base]
        if not await self._stands(walked, base[0].start if base else endpoint):
            return False
        starts = [(part, run.start, Tier.L2) for part in runs for run in runs[part]]
        # where a run ends before the endpoint, and where a state stands, a node has to end
        stands = {run.end for part in runs for run in runs[part]}
        stands.update(item.end for part in actors.snapshots for item in own.get(part.name, ()))
        known = await self._splitter.cut(walked, starts, tuple(sorted(stands - {endpoint})))
        now = actors.tick()
        cuts = sorted({*stands, *(at for _, at, _ in starts)})
        grown = await self._grow(msg.namespace, key, known, cuts, now)
        path = c.Grown((*known.path, *grown.path), (*known.ends, *grown.ends))
        for part in actors.paged:
            for run in runs[part]:
                await self._adopt(part, run, path, now)
        for part in actors.snapshots:
            await self._keep(part, own.get(part.name, []), path, now)
        return True

    async def _grow(
        self, namespace: bytes, key: bytes, known: c.Grown, cuts: list[int], now: int
    ) -> c.Grown:
        """Add the nodes that the tree lacks of a key, without payload yet."""
        actors, ends = self._actors, known.ends[-1] if known.ends else 0
        end = len(key) // TOKEN_BYTES
        if ends == end:
            return c.Grown((), ())
        parent = known.path[-1] if known.path else c.ROOT
        within = tuple(at for at in cuts if ends < at < end)
        grown = await actors.tree.ask(
            c.Insert(namespace, key[ends * TOKEN_BYTES :], parent, within)
        )
        if isinstance(grown, c.Walked):
            raise IntegrityError(f"tokens behind {ends} are there already, below node {parent}")
        for part in actors.paged:
            bare = c.Grow(
                Tier.L2, parent, grown.path, grown.ends, end, b"", (), relock=False, now=now
            )
            await part.ref.ask(bare)
        return grown

    async def _adopt(self, part: ComponentRef, run: Run, path: c.Grown, now: int) -> None:
        """Hand a fetched run over to the nodes of its range; what they have already goes back.

        A window that some lacked may complete a chunk that ends on another branch, which nobody has
        saved.
        """
        low, high = bisect_right(path.ends, run.start), bisect_left(path.ends, run.end) + 1
        adopted = await part.ref.ask(
            c.Adopt(Tier.L2, path.path[low:high], path.ends[low:high], run.start, run.pages, now)
        )
        if adopted.free:
            await self._capacity.free(Tier.L2, [(part.name, adopted.free, 0)])
        if adopted.attached and not part.base:
            sharers = c.ChunkSharers(adopted.attached, self._actors.chunk)
            others = set(await self._actors.tree.ask(sharers)).difference(path.path)
            if others:
                self._capacity.due.save(sorted(others))

    async def _keep(
        self, part: ComponentRef, run: list[s.StoreItem], path: c.Grown, now: int
    ) -> None:
        """Hand fetched states over to the nodes at whose ends they stand."""
        nodes, ends = path.path, path.ends
        starts = (0, *ends)
        states: list[c.State] = []
        for item in run:
            place = ends.index(item.end)
            states.append(c.State(nodes[place], starts[place], item.end, item.pages))
        if states:
            kept = await part.ref.ask(c.Keep(Tier.L2, tuple(states), now))
            if kept.free:
                await self._capacity.free(Tier.L2, [(part.name, kept.free, 0)])

    async def _stands(self, walked: c.Walked, start: int) -> bool:
        """Say whether L2 holds FULL right up to `start`: nothing may hang below a hole."""
        if not start:
            return True
        for node, end in zip(walked.path, walked.ends, strict=True):
            if end >= start:
                return not await self._lacks(node)
        return False

    async def _lacks(self, node: int) -> bool:
        """Say whether L2 lacks FULL of a node; where it does not, it has all above too."""
        return await self._actors.base.ref.ask(c.Lacks(node, Tier.L2))
