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

from ...components import messages as c
from ...errors import ConfigError
from ...spec import TOKEN_BYTES, Tier
from .. import messages as m
from .cache_actors import CacheActors
from .capacity import Capacity
from .facts import PublishDone
from .leases import LeaseRecord, Share
from .reporting import Reporter
from .splitting import Splitter

_L1 = Tier.L1  # asking an enum for a member costs more than a call
_NO_NODES = c.Grown((), ())


class Standing(msgspec.Struct, eq=False):
    """Where a lease is to stand when all have taken over: its record changes then, in one go.

    `moved` are its locks there, `patches` the pages of others in place of its own.
    """

    anchor: int
    at: int
    moved: list[tuple[Share, c.Relocked]] = []
    patches: list[tuple[Share, c.Patch]] = []


class Publishing:
    """Publish for the cache actor; used inside its operations only."""

    def __init__(
        self, actors: CacheActors, capacity: Capacity, splitter: Splitter, report: Reporter
    ) -> None:
        self._actors = actors
        self._tree = actors.tree
        self._capacity = capacity
        self._splitter = splitter
        self._report = report
        self._writes_through = actors.l2 is not None

    async def publish(self, record: LeaseRecord, msg: m.Publish) -> m.Published:
        """Publish up to `msg.upto`, floored to a page; stops before a node that is arriving on L1."""
        began, upto, appended = self._report.begin(), msg.upto, msg.appended
        # What one that did not come to its end has told already is told again.
        at = min(msg.at, record.known) if appended else record.known
        if not 0 <= upto <= record.extent:
            raise ConfigError(f"publish reaches from 0 to the extent {record.extent}: {upto}")
        known_ids = at + len(appended) // TOKEN_BYTES
        if upto > known_ids:
            raise ConfigError(f"only {known_ids} token ids are known; append the others first")
        if appended:
            record.forget(at)
            record.generated += appended
        record.computed = max(record.computed, upto)
        upto -= upto % self._actors.page
        stand = Standing(record.anchor, record.published)
        gained: dict[int, None] = {}
        if upto > stand.at:
            grown = await self._tree.ask(self._insert(record, stand, upto))
            if isinstance(grown, c.Walked):  # others have published some of it
                walked, upto = await self._before_arrivals(record, grown, upto)
                known = await self._cut(record, walked)
                if known.path:
                    await self._adopt(record, stand, known, gained)
                if upto > stand.at:  # the walk ended there, so nothing below agrees
                    grown = await self._tree.ask(self._insert(record, stand, upto))
            if isinstance(grown, c.Grown):
                await self._grow(record, stand, grown)
                gained.update(dict.fromkeys(grown.path))
            self._note(record, stand)
        if gained and self._writes_through:
            self._capacity.due.back_up(gained)
        if began:
            self._report.done(
                PublishDone,
                began,
                length=record.published,
                nodes=len(gained),
                duplicates=len(stand.patches),
            )
        return m.Published(record.published)

    def _insert(self, record: LeaseRecord, stand: Standing, upto: int) -> c.Insert:
        """Ask for own tokens below the anchor; answered by a Walked where some are there already."""
        cuts = self._cuts(record, stand.at, upto)
        return c.Insert(record.namespace, record.key(stand.at, upto), stand.anchor, cuts)

    async def _before_arrivals(
        self, record: LeaseRecord, walked: c.Walked, upto: int
    ) -> tuple[c.Walked, int]:
        """Shorten what agrees with own tokens where a node is arriving on L1."""
        stop = len(walked.path)
        for part in self._actors.components:
            stop = min(stop, await part.ref.ask(c.Arriving(walked.path)))
        if stop < len(walked.path):
            upto = walked.ends[stop - 1] if stop else record.published
            walked = c.Walked(walked.path[:stop], walked.ends[:stop], partial=False)
        return walked, upto

    async def _cut(self, record: LeaseRecord, walked: c.Walked) -> c.Grown:
        if not walked.path:
            return _NO_NODES
        stands = tuple(
            at for share in record.shares for at, _ in share.kept if at <= walked.ends[-1]
        )
        owns = [
            (share.part, share.own_start, _L1)
            for share in record.shares
            if not share.part.snapshot and share.own_start > record.published
        ]
        return await self._splitter.cut(walked, owns, stands, record.published)

    def _cuts(self, record: LeaseRecord, start: int, upto: int) -> tuple[int, ...]:
        """Return where new nodes for tokens from `start` to `upto` are cut."""
        page = self._actors.page
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
                    cut = low - low % page
                    if cut > start:
                        cuts.add(cut)
        return tuple(sorted(cuts)) if cuts else ()

    async def _grow(self, record: LeaseRecord, stand: Standing, new: c.Grown) -> None:
        """Let every component take its share over to new nodes; the lease is to stand at their end then."""
        now, path, ends = self._actors.tick(), new.path, new.ends
        upto, page = ends[-1], self._actors.page
        moved: list[tuple[Share, c.Relocked]] = []
        locked = {share.part.index: relocked for share, relocked in stand.moved}
        for share in record.shares:
            part = share.part
            if part.snapshot:
                if share.kept:
                    await self._keep(record, share, stand, new, now)
                continue
            own = max(share.own_start, stand.at)
            held = locked.get(part.index, share)
            relocked = await part.ref.ask(
                c.Grow(
                    _L1,
                    stand.anchor,
                    path,
                    ends,
                    own,
                    share.table.between(own, upto, page),
                    held.receipts,
                    relock=True,
                    now=now,
                    priority=record.priority,
                )
            )
            moved.append((share, relocked))
        stand.anchor, stand.at, stand.moved = path[-1], upto, moved

    async def _adopt(
        self, record: LeaseRecord, stand: Standing, known: c.Grown, gained: dict[int, None]
    ) -> None:
        """Let every component take its share over to nodes that are there; the lease is to go on to their end.

        Notes the nodes that gained payload.
        """
        now, path, ends, priority = self._actors.tick(), known.path, known.ends, record.priority
        anchor, upto = path[-1], ends[-1]
        free: list[tuple[str, bytes, int]] = []
        moved: list[tuple[Share, c.Relocked]] = []
        for share in record.shares:
            part = share.part
            adopted: c.Adopted
            if not part.snapshot:
                own, pages = share.own_start, share.own(upto)
                adopt = c.Adopt(_L1, path, ends, own, pages, now, priority)
                adopted = await part.ref.ask(adopt)
                moved.append((share, await part.ref.ask(c.Relock(anchor, share.receipts))))
                stand.patches += [(share, patch) for patch in adopted.patches]
            elif share.kept:
                adopted = await self._keep(record, share, stand, known, now)
            else:
                continue
            gained.update(dict.fromkeys(adopted.attached))
            if adopted.free:
                free.append((part.name, adopted.free, 0))
        if free:
            await self._capacity.free(_L1, free)
        stand.anchor, stand.at, stand.moved = anchor, upto, moved

    def _note(self, record: LeaseRecord, stand: Standing) -> None:
        """Note, when all have taken over, where the lease stands: the tree owns what is before.

        Locks have moved to the need there, and tables begin where they do: what lies before is the
        tree's to evict.
        """
        record.anchor, record.published = stand.anchor, stand.at
        upto, page = stand.at, self._actors.page
        for share, relocked in stand.moved:
            share.receipts, share.low_end = relocked.receipts, relocked.low_end
            share.own_start = max(share.own_start, upto)
            if not share.part.base:
                share.table.begin_at(share.part.rule.keep_from(upto), page)
        for share, (at, mine) in stand.patches:
            share.table.patch(at, mine, page)
        for part in self._actors.snapshots:
            share = record.shares[part.index]
            if share.kept:
                share.kept = [(at, slot) for at, slot in share.kept if at > upto]

    @staticmethod
    async def _keep(
        record: LeaseRecord, share: Share, stand: Standing, nodes: c.Grown, now: int
    ) -> c.Adopted:
        """Hand over the snapshots that stand at the ends of nodes below the anchor."""
        path, ends = nodes.path, nodes.ends
        states: list[c.State] = []
        for at, slot in share.kept:
            if stand.at < at <= ends[-1]:
                place = ends.index(at)
                start = ends[place - 1] if place else stand.at
                states.append(c.State(path[place], start, at, slot))
        return await share.part.ref.ask(c.Keep(_L1, tuple(states), now, record.priority))
