"""Publishing: hand computed pages to the tree, give duplicates back, move the locks.

    tree      |--- A ---|--- B ---|                    existing nodes beyond the anchor
    own            ==================================
    result    |--- A ---|--- B ---|-- new --|-- cap --|

What existing nodes hold stays, what they lack is attached (revival). The rest becomes new nodes, cut
where own pages of a component start, where a snapshot stands, and where the need of the end begins
(the leaf cap: a lock on the end pins a window and not a long node).

Everything own is handed over, also what a window has left behind: the tree evicts it when there is
need, and until then somebody may fork there. The lease keeps locks on what `upto` needs.
"""

from __future__ import annotations

import msgspec

from ..components import messages as c
from ..spec import Tier
from . import messages as m
from .leases import PAGE, LeaseRecord, Share
from .parts import Part, Parts
from .room import Room
from .splitting import Splitter


class Result(msgspec.Struct, frozen=True, gc=False):
    """What a publish answers, and the nodes that gained payload by it."""

    published: m.Published
    nodes: tuple[int, ...]


class Publishing:
    """Publish for the cache actor; used inside its operations only."""

    def __init__(self, parts: Parts, room: Room, splitter: Splitter) -> None:
        self._parts = parts
        self._room = room
        self._splitter = splitter

    async def publish(self, record: LeaseRecord, msg: m.Publish) -> Result:
        """Publish up to `msg.upto`, floored to a page; stops before a node that is arriving on L1."""
        page = self._parts.page
        upto = msg.upto // page * page
        starts = tuple(share.start for share in record.shares)
        if upto <= record.published:
            return Result(m.Published(record.published, (), starts), ())
        walked, upto = await self._walk(record, upto)
        if upto <= record.published:
            return Result(m.Published(record.published, (), starts), ())
        path = await self._cut(record, walked, upto)
        end = path.ends[-1] if path.ends else record.published
        grown = c.Grown((), ())
        if end < upto:
            grown = await self._parts.tree.ask(
                c.Insert(
                    record.namespace,
                    record.key(end, upto),
                    path.path[-1] if path.path else record.anchor,
                    self._cuts(record, end, upto),
                )
            )
        nodes, ends = (*path.path, *grown.path), (*path.ends, *grown.ends)
        return await self._adopt(record, nodes, ends, len(grown.path))

    async def _walk(self, record: LeaseRecord, upto: int) -> tuple[c.Walked, int]:
        """Follow the tokens below the anchor; shorten where a node is arriving on L1."""
        key = record.key(record.published, upto)
        walked: c.Walked = await self._parts.tree.ask(c.Walk(record.namespace, key, record.anchor))
        if not walked.path:
            return walked, upto
        stop = len(walked.path)
        for part in self._parts.all:
            stop = min(stop, await part.ref.ask(c.Arriving(walked.path)))
        if stop < len(walked.path):
            upto = walked.ends[stop - 1] if stop else record.published
            walked = c.Walked(walked.path[:stop], walked.ends[:stop], partial=False)
        return walked, upto

    async def _cut(self, record: LeaseRecord, walked: c.Walked, upto: int) -> c.Grown:
        if not walked.path:
            return c.Grown((), ())
        stands = tuple(
            at for share in record.shares for at, _ in share.kept if at <= walked.ends[-1]
        )
        owns = {
            share.part: (share.own_start, Tier.L1)
            for share in record.shares
            if not share.part.snapshot and share.own_start > record.published
        }
        return await self._splitter.cut(walked, owns, stands, record.published)

    def _cuts(self, record: LeaseRecord, end: int, upto: int) -> tuple[int, ...]:
        """Answer where the new part is cut."""
        page = self._parts.page
        cuts: set[int] = set()
        for share in record.shares:
            if share.part.snapshot:
                cuts.update(at for at, _ in share.kept)
            else:
                cuts.add(share.own_start)
                need = share.part.rule.need(upto)
                cuts.update(start // page * page for start, _ in need)
        return tuple(sorted(at for at in cuts if end < at < upto))

    async def _adopt(
        self,
        record: LeaseRecord,
        nodes: tuple[int, ...],
        ends: tuple[int, ...],
        grown: int,
    ) -> Result:
        """Let every component take its share over."""
        now = self._parts.tick()
        upto = ends[-1]
        patches: list[tuple[int, int, bytes]] = []
        attached: dict[int, None] = {}
        free: list[tuple[Part, bytes, int]] = []
        for share in record.shares:
            adopted: c.Adopted = await share.part.ref.ask(
                c.Adopt(
                    tier=Tier.L1,
                    parent=record.anchor,
                    path=nodes,
                    ends=ends,
                    grown=grown,
                    own=share.own_start,
                    pages=self._pages(share, upto),
                    states=self._states(share, nodes, ends),
                    held=share.receipts,
                    relock=True,
                    now=now,
                    priority=record.priority,
                )
            )
            share.receipts, share.low_end = adopted.receipts, adopted.low_end
            share.kept = [(at, slot) for at, slot in share.kept if at > upto]
            if share.own_start < upto:
                del share.own[: (upto - share.own_start) // self._parts.page * PAGE]
                share.own_start = upto
            free.append((share.part, adopted.free, 0))
            patches += [(share.part.index, at, pages) for at, pages in adopted.patches]
            attached.update(dict.fromkeys(adopted.attached))
        await self._room.give_back(Tier.L1, free)
        record.anchor, record.published = nodes[-1], upto
        return Result(
            m.Published(upto, tuple(patches), self._windows(record, upto)), tuple(attached)
        )

    @staticmethod
    def _windows(record: LeaseRecord, upto: int) -> tuple[int, ...]:
        """Let the tables begin where the locks do: what lies before is the tree's to evict."""
        for share in record.shares:
            if not share.part.snapshot:
                share.start = max(share.start, share.part.rule.keep_from(upto))
        return tuple(share.start for share in record.shares)

    def _pages(self, share: Share, upto: int) -> bytes:
        if share.part.snapshot or share.own_start >= upto:
            return b""
        return bytes(share.own[: (upto - share.own_start) // self._parts.page * PAGE])

    @staticmethod
    def _states(
        share: Share, nodes: tuple[int, ...], ends: tuple[int, ...]
    ) -> tuple[tuple[int, bytes], ...]:
        return tuple((nodes[ends.index(at)], slot) for at, slot in share.kept if at <= ends[-1])
