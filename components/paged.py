"""The actor of a paged component: publishing, and what only slices of pages do."""

from __future__ import annotations

from ..actors import handles
from ..errors import IntegrityError
from ..spec import PAGE_ID_BYTES, Tier
from . import messages as m
from .coverage import CoverageActor
from .move_messages import Dead, EvictLeaves, Foot, Footing, Freed, Read, Slice
from .presence import Withdrawal
from .tables import pages_between


class PagedActor(CoverageActor):
    """Hold one slice of pages per node. What concerns leaves is for the base component alone."""

    # -- publishing -----------------------------------------------------------------------------------

    @handles(m.Grow)
    def grow(self, msg: m.Grow) -> m.Relocked:
        """Record new nodes with the payload that comes with them, and move the locks."""
        parent, start, held = self._records[msg.parent], msg.ends[-1], msg.held
        _check_run(msg.own, start, msg.pages, self._page)
        if msg.relock and len(held) < 2:
            start = self._one_range(start)
        anchor, low = self._presence.grow(msg, parent, start)
        if not msg.relock:
            return m.Relocked((), 0)
        return self._relock(held, anchor, parent, low, start)

    @handles(m.Adopt)
    def adopt(self, msg: m.Adopt) -> m.Adopted:
        """Attach what nodes lack, and give back what they have."""
        presence, tier, page = self._presence, msg.tier, self._page
        own, pages = msg.own, msg.pages
        _check_run(own, msg.ends[-1] if msg.ends else own, pages, page)
        free: list[m.PageList] = []
        attached: list[int] = []
        patches: list[m.Patch] = []
        used = 0
        for node, end in zip(msg.path, msg.ends, strict=True):
            record = self._records[node]
            self._used(record, msg.now, msg.priority)
            if end <= own:
                continue
            first = max(own, record.start)
            size = (end - first) // page * PAGE_ID_BYTES
            mine = pages[used : used + size]
            used += size
            payload = record.at[tier]
            if payload is not None:
                free.append(mine)
                patches.append(
                    m.Patch(first, payload.pages[(first - record.start) // page * PAGE_ID_BYTES :])
                )
            elif first == record.start:
                presence.attach(record, tier, mine)
                attached.append(node)
            else:
                raise IntegrityError(f"node {node} was not cut where own pages start: {own}")
        return m.Adopted(b"".join(free), tuple(patches), tuple(attached))

    @handles(m.Relock)
    def relock(self, msg: m.Relock) -> m.Relocked:
        """Move the locks of a request that goes on from another node."""
        anchor, held = self._records[msg.node], msg.held
        start = self._one_range(anchor.end) if len(held) < 2 else anchor.end
        return self._relock(held, anchor, anchor, anchor, start)

    @handles(m.SplitDone)
    def split_done(self, msg: m.SplitDone) -> None:
        """Follow a split of the tree."""
        self._presence.split(self._records[msg.node], msg.upper, msg.at)

    # -- eviction -------------------------------------------------------------------------------------

    def _gone(self, nodes: list[int]) -> tuple[int, ...]:
        if self._presence.base:
            self._presence.forget(nodes)
            return ()
        need = self.component.need
        records = (self._records[node] for node in nodes)
        return tuple(at.id for at in records if any(end > at.start for _, end in need(at.end)))

    @handles(EvictLeaves)
    def evict_leaves(self, msg: EvictLeaves) -> Freed:
        """Drop those nodes' payload where they are unlocked leaves, and forget what is held nowhere."""
        presence, tier = self._presence, msg.tier
        out = Withdrawal()
        for node in msg.nodes:
            record = self._records[node]
            payload = record.at[tier]
            if payload is not None and presence.evictable(record, payload, tier):
                presence.withdraw(record, tier, out)
        presence.forget(out.gone)
        return presence.freed(out, tier)

    @handles(Dead)
    def dead(self, msg: Dead) -> tuple[int, ...]:
        """Return which nodes nobody locks and nothing keeps."""
        records = (self._records[node] for node in msg.nodes if node in self._records)
        return tuple(r.id for r in records if r.id and not r.lock and r.at == [None, None])

    # -- between tiers --------------------------------------------------------------------------------

    @handles(Foot)
    def foot(self, msg: Foot) -> Footing:
        """Return what L2 lacks from the root down to a node, and whether L1 has it."""
        found: list[m.NodePages] = []
        record = self._records.get(msg.node)
        if record is None:
            return Footing((), msg.node)
        while record.id and record.at[Tier.L2] is None:
            payload = record.at[Tier.L1]
            if payload is None or payload.writer:
                return Footing((), record.id)
            found.append(m.NodePages(record.id, len(payload.pages) // PAGE_ID_BYTES))
            record = record.parent
        return Footing(tuple(reversed(found)), None)

    @handles(Read)
    def read(self, msg: Read) -> Slice:
        """Mark and return the L2 pages of a token range, as far back from its end as they go."""
        record = self._records[msg.node]
        start = msg.end
        parts: list[m.PageList] = []
        while record.id and start > msg.start:
            payload = record.at[Tier.L2]
            if payload is None or payload.writer:
                break
            if record.start < msg.end:
                self._presence.read(record, Tier.L2, msg.op)
                parts.append(pages_between(record, payload, msg.start, msg.end, self._page))
                start = max(record.start, msg.start)
            record = record.parent
        return Slice(start, b"".join(reversed(parts)))


def _check_run(own: int, end: int, pages: m.PageList, page_size: int) -> None:
    """Refuse pages that are not exactly those of the tokens from `own` to `end`."""
    count = (end - own) // page_size if end > own else 0
    if len(pages) != count * PAGE_ID_BYTES:
        raise IntegrityError(f"{len(pages)} bytes of page ids for tokens [{own}, {end})")
