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
from .leases import LeaseRecord, Share
from .messages import PAGE
from .parts import Parts
from .room import Room
from .splitting import Splitter

_L1 = Tier.L1  # asking an enum for a member costs more than a call


class Result(msgspec.Struct, frozen=True, gc=False):
    """What a publish answers, and where there is an L2 the nodes that gained payload by it."""

    published: m.Published
    nodes: tuple[int, ...]


class Publishing:
    """Publish for the cache actor; used inside its operations only."""

    def __init__(self, parts: Parts, room: Room, splitter: Splitter) -> None:
        self._parts = parts
        self._room = room
        self._splitter = splitter
        self._backs_up = Tier.L2 in parts.tiers

    async def publish(self, record: LeaseRecord, msg: m.Publish) -> Result:
        """Publish up to `msg.upto`, floored to a page; stops before a node that is arriving on L1."""
        page = self._parts.page
        upto = msg.upto // page * page
        if upto <= record.published:
            return self._nothing(record)
        grown = await self._insert(record, record.published, upto, record.anchor)
        if isinstance(grown, c.Grown):
            return await self._adopt(record, grown.path, grown.ends, len(grown.path))
        walked, upto = await self._before_arrivals(record, grown, upto)
        if upto <= record.published:
            return self._nothing(record)
        path = await self._cut(record, walked, upto)
        end = path.ends[-1] if path.ends else record.published
        if end == upto:
            return await self._adopt(record, path.path, path.ends, 0)
        # The walk ended here, so nothing below agrees and this time it is Grown.
        more = await self._insert(record, end, upto, path.path[-1] if path.path else record.anchor)
        nodes, ends = (*path.path, *more.path), (*path.ends, *more.ends)
        return await self._adopt(record, nodes, ends, len(more.path))

    @staticmethod
    def _nothing(record: LeaseRecord) -> Result:
        starts = tuple([share.start for share in record.shares])
        return Result(m.Published(record.published, (), starts), ())

    async def _insert(
        self, record: LeaseRecord, start: int, end: int, parent: int
    ) -> c.Grown | c.Walked:
        """Add own tokens below a node; a Walked where some are there already."""
        key, cuts = record.key(start, end), self._cuts(record, start, end)
        grown: c.Grown | c.Walked = await self._parts.tree.ask(
            c.Insert(record.namespace, key, parent, cuts)
        )
        return grown

    async def _before_arrivals(
        self, record: LeaseRecord, walked: c.Walked, upto: int
    ) -> tuple[c.Walked, int]:
        """Shorten what agrees with own tokens where a node is arriving on L1."""
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

    def _cuts(self, record: LeaseRecord, start: int, upto: int) -> tuple[int, ...]:
        """Answer where new nodes for tokens from `start` to `upto` are cut."""
        page = self._parts.page
        cuts: list[int] = []
        for share in record.shares:
            part = share.part
            if part.base:
                cuts.append(share.own_start)
            elif part.snapshot:
                cuts += [at for at, _ in share.kept]
            else:
                cuts.append(share.own_start)
                cuts += [low // page * page for low, _ in part.rule.need(upto)]
        inside = {at for at in cuts if start < at < upto}
        return tuple(sorted(inside)) if inside else ()

    async def _adopt(
        self,
        record: LeaseRecord,
        nodes: tuple[int, ...],
        ends: tuple[int, ...],
        grown: int,
    ) -> Result:
        """Let every component take its share over."""
        now, upto, parent, priority = self._parts.tick(), ends[-1], record.anchor, record.priority
        patches: list[tuple[int, int, bytes]] = []
        attached: dict[int, None] = {}
        free: list[tuple[str, bytes, int]] = []
        starts: list[int] = []
        for share in record.shares:
            part, own = share.part, share.own_start
            pages = b"" if part.snapshot else self._handed(share, upto)
            states = self._states(share, nodes, ends) if share.kept else ()
            if not (part.snapshot or part.base):
                # The table begins where the locks do: what lies before is the tree's to evict.
                share.start = max(share.start, part.rule.keep_from(upto))
            starts.append(share.start)
            adopted: c.Adopted = await part.ref.ask(
                c.Adopt(
                    _L1,
                    parent,
                    nodes,
                    ends,
                    grown,
                    own,
                    pages,
                    states,
                    share.receipts,
                    relock=True,
                    now=now,
                    priority=priority,
                )
            )
            share.receipts, share.low_end = adopted.receipts, adopted.low_end
            if adopted.free:
                free.append((part.name, adopted.free, 0))
            for at, mine in adopted.patches:
                patches.append((part.index, at, mine))
            if self._backs_up:
                attached.update(dict.fromkeys(adopted.attached))
        if free:
            await self._room.give_back(_L1, free)
        record.anchor, record.published = nodes[-1], upto
        return Result(m.Published(upto, tuple(patches), tuple(starts)), tuple(attached))

    def _handed(self, share: Share, upto: int) -> bytes:
        """Take the private pages up to `upto` out of a share."""
        size = (upto - share.own_start) // self._parts.page * PAGE
        if size <= 0:
            return b""
        pages = bytes(share.own[:size])
        del share.own[:size]
        share.own_start = upto
        return pages

    @staticmethod
    def _states(
        share: Share, nodes: tuple[int, ...], ends: tuple[int, ...]
    ) -> tuple[tuple[int, bytes], ...]:
        """Take the snapshots that stand on the path out of a share, with the nodes they stand at."""
        upto = ends[-1]
        states = tuple([(nodes[ends.index(at)], slot) for at, slot in share.kept if at <= upto])
        share.kept = [(at, slot) for at, slot in share.kept if at > upto]
        return states
