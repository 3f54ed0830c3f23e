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
_NO_NODES = c.Grown((), ())


class Result(msgspec.Struct, frozen=True, gc=False):
    """What a publish answers, and the nodes that gained payload by it."""

    published: m.Published
    nodes: tuple[int, ...]


class Publishing:
    """Publish for the cache actor; used inside its operations only."""

    def __init__(self, parts: Parts, room: Room, splitter: Splitter) -> None:
        self._parts = parts
        self._tree = parts.tree
        self._room = room
        self._splitter = splitter

    async def publish(self, record: LeaseRecord, msg: m.Publish) -> Result:
        """Publish up to `msg.upto`, floored to a page; stops before a node that is arriving on L1."""
        page = self._parts.page
        upto = msg.upto // page * page
        if upto <= record.published:
            return self._nothing(record)
        start, anchor = record.published, record.anchor
        grown: c.Grown | c.Walked
        grown = await self._tree.ask(self._insert(record, start, upto, anchor))
        if isinstance(grown, c.Grown):
            return await self._hand_over(record, _NO_NODES, grown)
        walked, upto = await self._before_arrivals(record, grown, upto)
        if upto <= record.published:
            return self._nothing(record)
        known = await self._cut(record, walked, upto)
        new: c.Grown | c.Walked = _NO_NODES
        end, parent = start, anchor
        if known.path:
            end, parent = known.ends[-1], known.path[-1]
        if end < upto:  # the walk ended there, so nothing below agrees
            new = await self._tree.ask(self._insert(record, end, upto, parent))
        return await self._hand_over(record, known, new)

    @staticmethod
    def _nothing(record: LeaseRecord) -> Result:
        starts = tuple([share.start for share in record.shares])
        return Result(m.Published(record.published, (), starts), ())

    def _insert(self, record: LeaseRecord, start: int, end: int, parent: int) -> c.Insert:
        """Ask for own tokens below a node; answered by a Walked where some are there already."""
        cuts = self._cuts(record, start, end)
        return c.Insert(record.namespace, record.key(start, end), parent, cuts)

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
            return _NO_NODES
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
        cuts: set[int] = set()
        for share in record.shares:
            part = share.part
            if start < share.own_start < upto:
                cuts.add(share.own_start)
            if part.snapshot:
                for at, _ in share.kept:
                    if start < at < upto:
                        cuts.add(at)
            elif not part.base:
                for low, _ in part.rule.need(upto):
                    if low - low % page > start:
                        cuts.add(low - low % page)
        return tuple(sorted(cuts)) if cuts else ()

    async def _hand_over(
        self, record: LeaseRecord, known: c.Grown, new: c.Grown | c.Walked
    ) -> Result:
        """Let every component take its share over: to nodes that were there, and to new ones below."""
        now, priority = self._parts.tick(), record.priority
        parent, nodes, ends = record.anchor, new.path, new.ends
        if known.path:
            parent = known.path[-1]
            nodes, ends = (*known.path, *nodes), (*known.ends, *ends)
        upto = ends[-1]
        gained: list[int] = []
        patches: list[tuple[int, int, bytes]] = []
        free: list[tuple[str, bytes, int]] = []
        starts: list[int] = []
        for share in record.shares:
            part, own = share.part, share.own_start
            if part.snapshot:
                if share.kept:
                    states = self._states(record, share, nodes, ends)
                    kept: c.Adopted = await part.ref.ask(c.Keep(_L1, states, now, priority))
                    gained += kept.attached
                    if kept.free:
                        free.append((part.name, kept.free, 0))
                starts.append(share.start)
                continue
            if known.path:
                pages = self._handed(share, known.ends[-1])
                adopted: c.Adopted = await part.ref.ask(
                    c.Adopt(_L1, known.path, known.ends, own, pages, now, priority)
                )
                gained += adopted.attached
                if adopted.free:
                    free.append((part.name, adopted.free, 0))
                patches += [(part.index, at, mine) for at, mine in adopted.patches]
                own = share.own_start
            relocked: c.Relocked
            if new.path:
                pages = self._handed(share, upto)
                relocked = await part.ref.ask(
                    c.Grow(
                        _L1,
                        parent,
                        new.path,
                        new.ends,
                        own,
                        pages,
                        share.receipts,
                        True,
                        now,
                        priority,
                    )
                )
            else:
                relocked = await part.ref.ask(c.Relock(parent, share.receipts))
            share.receipts, share.low_end = relocked.receipts, relocked.low_end
            if not part.base:
                # The table begins where the locks do: what lies before is the tree's to evict.
                share.start = max(share.start, part.rule.keep_from(upto))
            starts.append(share.start)
        if free:
            await self._room.give_back(_L1, free)
        record.anchor, record.published = nodes[-1], upto
        published = m.Published(upto, tuple(patches), tuple(starts))
        return Result(published, (*gained, *new.path))

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
        record: LeaseRecord, share: Share, nodes: tuple[int, ...], ends: tuple[int, ...]
    ) -> tuple[tuple[int, int, int, bytes], ...]:
        """Take the snapshots that stand on the path out of a share, each with the node it stands at."""
        states: list[tuple[int, int, int, bytes]] = []
        above = share.kept
        share.kept = []
        for at, slot in above:
            if at > ends[-1]:
                share.kept.append((at, slot))
                continue
            place = ends.index(at)
            start = ends[place - 1] if place else record.published
            states.append((nodes[place], start, at, slot))
        return tuple(states)
