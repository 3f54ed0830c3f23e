"""Splitting nodes: the tree first, then every component follows."""

from __future__ import annotations

from collections.abc import Iterable

from ...components import messages as c
from ...spec import Tier
from .cache_actors import CacheActors, ComponentRef
from .transfers import Transfers


class Splitter:
    """Split for the cache actor; used inside its operations only."""

    def __init__(self, actors: CacheActors, transfers: Transfers) -> None:
        self._actors = actors
        self._transfers = transfers

    async def split(self, node: int, at: int) -> int:
        """Split a node; return the new upper node, which ends at `at`."""
        upper = await self._actors.tree.ask(c.Split(node, at))
        done = c.SplitDone(node, upper, at)
        for part in self._actors.components:
            await part.ref.ask(done)
        self._transfers.follow_split(node, upper)
        return upper

    async def at_boundary(self, walked: c.Walked, index: int, at: int) -> c.Walked:
        """Split node `index` of a walk, which a boundary is inside of; return the walk as it is then."""
        path, ends = walked.path, walked.ends
        upper = await self.split(path[index], at)
        if at == ends[-1]:  # the walk ended there
            return c.Walked((*path[:index], upper), ends, partial=False)
        return c.Walked(
            (*path[:index], upper, *path[index:]),
            (*ends[:index], at, *ends[index:]),
            walked.partial,
        )

    async def cut(
        self,
        walked: c.Walked,
        owns: Iterable[tuple[ComponentRef, int, Tier]],
        stands: tuple[int, ...] = (),
        start: int = 0,
    ) -> c.Grown:
        """Split the nodes of a walk so that pages can be handed to them; return the path as it is then.

        Cuts where the walk ends inside an edge, where a snapshot `stands`, and where a component's
        own pages start inside a node that lacks its payload on that tier. The walk began at `start`.
        """
        path, ends = list(walked.path), list(walked.ends)
        if walked.partial:
            path[-1] = await self.split(path[-1], ends[-1])
        for at in stands:
            await self._at(path, ends, at, start)
        for part, at, tier in owns:
            index = next((i for i, end in enumerate(ends) if end >= at), -1)
            if index >= 0 and ends[index] > at and await part.ref.ask(c.Lacks(path[index], tier)):
                await self._at(path, ends, at, start)
        return c.Grown(tuple(path), tuple(ends))

    async def _at(self, path: list[int], ends: list[int], at: int, start: int) -> None:
        """Cut the path at a position, unless a node starts or ends there or none reaches it."""
        for index, end in enumerate(ends):
            if at in (start, end):
                return
            if end > at:
                path.insert(index, await self.split(path[index], at))
                ends.insert(index, at)
                return
