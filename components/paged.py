"""The actor of a paged component: what its rule makes of a path, locks, and publishing."""

from __future__ import annotations

from bisect import bisect_left

from ..actors import handles
from ..errors import IntegrityError
from ..spec import PAGE_ID_BYTES, PageList, Tier
from . import messages as m
from .component import ComponentActor
from .contract import TreeComponent
from .move_messages import BackupNeeds, BackupPath, Dead, EvictLeaves, Freed, Read, Slice
from .paged_presence import PagedPresence
from .policies import Policy, eviction_key
from .presence import Withdrawal
from .records import Record
from .tables import page_table, pages_between

_NOTHING = [0, 0]


class PagedActor(ComponentActor[PagedPresence]):
    """Hold one slice of pages per node. What concerns leaves is for the base component alone."""

    def __init__(self, component: TreeComponent, policy: str | Policy = "lru") -> None:
        presence = PagedPresence(component.page_size, eviction_key(policy), base=component.base)
        super().__init__(component, presence)
        self._page = component.page_size

    # -- validity -----------------------------------------------------------------------------------

    @handles(m.Claim)
    def claim(self, msg: m.Claim) -> m.Claimed:
        """Find the deepest good boundary; lock it unless it is inside an edge."""
        path, ends = msg.path, msg.ends
        boundary = self._deepest(msg)
        if boundary == ends[-1]:
            if msg.partial:
                return m.Claimed(boundary)
            anchor = self._records[path[-1]]
        elif not boundary:
            return m.Claimed(0)
        else:
            at = bisect_left(ends, boundary)
            if ends[at] != boundary:
                return m.Claimed(boundary)
            anchor = self._records[path[at]]
        return m.Claimed(boundary, self._lock(anchor, msg.now, msg.priority))

    def _deepest(self, msg: m.Reach | m.Claim) -> int:
        presence, path, ends, host = self._presence, msg.path, msg.ends, msg.host
        boundary = ends[-1]
        boundary = min(boundary, msg.limit)
        if not presence.base or presence.arriving != _NOTHING:
            # From a hole the search goes straight to where the rule can do without it.
            while boundary > 0:
                hole = self._hole(path, ends, boundary, host=host)
                if hole is None:
                    break
                boundary = self.component.deepest_without(hole.start, hole.end, boundary)
            return boundary
        # FULL is upward closed on L1 and on L2 while nothing arrives, so that a present node
        # vouches for all above it.
        records, at = self._records, bisect_left(ends, boundary)
        while True:
            record = records[path[at]]
            payload = record.at[0]
            if (payload is not None and not payload.writer) or (host and self._obtainable(record)):
                return boundary
            boundary = record.start
            if not boundary:
                return 0
            at -= 1

    def _hole(
        self, path: tuple[int, ...], ends: tuple[int, ...], boundary: int, *, host: bool
    ) -> Record | None:
        """Return the deepest node that a boundary needs and lacks, or None."""
        records = self._records
        for start, end in reversed(self.component.need(boundary)):
            record = records[path[-1] if end == ends[-1] else path[bisect_left(ends, end)]]
            while True:
                payload = record.at[0]
                if (payload is None or payload.writer) and not (host and self._obtainable(record)):
                    return record
                if record.start <= start:
                    break
                record = record.parent
        return None

    def _resident(self, path: tuple[int, ...], ends: tuple[int, ...], boundary: int) -> bool:
        presence = self._presence
        if presence.base and not presence.arriving[0]:
            payload = self._records[path[bisect_left(ends, boundary)]].at[0]
            return payload is not None and not payload.writer
        return self._hole(path, ends, boundary, host=False) is None

    # -- locks --------------------------------------------------------------------------------------

    @handles(m.Lock)
    def lock(self, msg: m.Lock) -> m.Locked:
        """Count the coverage of the boundary at the end of a node, and touch it where it is a use."""
        return self._lock(self._records[msg.node], msg.now, msg.priority)

    def _lock(self, anchor: Record, now: int, priority: int) -> m.Locked:
        """Count, touch and list a coverage: one range that ends at the anchor in one pass up.

        That is what `_count` does for any; nearly all rules have one range, and a hit costs
        little else.
        """
        start = self._one_range(anchor.end)
        if start == anchor.end or not now:
            return page_table(self.component, anchor, *self._count(anchor, now, priority))
        low, parts = self._presence.lock_run(anchor, start, now)
        if priority:
            self._raise(anchor, low, priority)
        first, receipts = low.start, (m.Receipt(anchor.id, low.start),)
        if parts is None:
            return page_table(self.component, anchor, receipts, low)
        if first < start:
            page = self._page
            first = start // page * page
            parts[-1] = parts[-1][(first - low.start) // page * PAGE_ID_BYTES :]
        parts.reverse()
        return m.Locked(receipts, low.end, first, b"".join(parts))

    def _one_range(self, boundary: int) -> int:
        """Return where the need of a boundary begins if it is one range up to there, else the boundary."""
        if self._presence.base:
            return 0
        need = self.component.need(boundary)
        return need[0][0] if len(need) == 1 and need[0][1] == boundary else boundary

    @staticmethod
    def _raise(anchor: Record, low: Record, priority: int) -> None:
        """Raise the priority of the nodes from the anchor up to the lowest one of a run."""
        record = anchor
        while record.end >= low.end:
            record.priority = max(record.priority, priority)
            record = record.parent

    def _count(
        self, anchor: Record, now: int = 0, priority: int = 0
    ) -> tuple[tuple[m.Receipt, ...], Record]:
        """Count each node of a paged coverage once, and touch it where the time is given.

        Returns one receipt a range, deepest first, and the lowest node.
        """
        presence = self._presence
        receipts: list[m.Receipt] = []
        low: Record | None = None
        for start, end in reversed(self.component.need(anchor.end)):
            # Two ranges may touch one node: the second begins above what the first has counted.
            below = end if low is None else min(end, low.start)
            top = anchor if low is None else low
            while top.id and top.start >= below:
                top = top.parent
            record, run = top, None
            while record.id and record.end > start:
                presence.lock(record)
                if now:
                    self._touch(record, now, priority)
                run = record
                record = record.parent
            if run is not None:
                receipts.append(m.Receipt(top.id, run.start))
                low = run
        return tuple(receipts), low or anchor

    @handles(m.Table)
    def table(self, msg: m.Table) -> m.Locked:
        """Return the page table of a coverage that is locked already."""
        anchor = self._records[msg.node]
        low = anchor
        if msg.receipts:
            last = msg.receipts[-1]
            low = self._records[last.anchor]
            while low.start > last.start:
                low = low.parent
        return page_table(self.component, anchor, msg.receipts, low)

    @handles(m.Unlock)
    def unlock(self, msg: m.Unlock) -> None:
        """Take back the counts of these receipts; a payload may then be evicted."""
        for receipt in msg.receipts:
            self._presence.unlock_run(receipt)

    @handles(m.Recede)
    def recede(self, msg: m.Recede) -> m.Locked:
        """Let the window of a running request go forward: unlock what it has passed."""
        if not msg.receipts:
            return m.Locked((), 0, 0, b"")
        *kept, last = msg.receipts
        receipts, low_end = self._shrink(last, msg.start)
        return m.Locked((*kept, *receipts), low_end, 0, b"")

    def _shrink(self, held: m.Receipt, start: int) -> tuple[tuple[m.Receipt, ...], int]:
        """Keep of one range the nodes that end behind `start`; unlock those below."""
        record = self._records[held.anchor]
        low: Record | None = None
        while record.id and record.start >= held.start:
            if record.end > start:
                low = record
            else:
                self._presence.unlock(record)
            record = record.parent
        return ((), 0) if low is None else ((m.Receipt(held.anchor, low.start),), low.end)

    def _relock(
        self, held: tuple[m.Receipt, ...], anchor: Record, above: Record, low: Record, start: int
    ) -> m.Relocked:
        """Move locks to the anchor's coverage by difference: a node in both is not touched.

        `start` is where the one range begins that is needed; the anchor's end where several are, or
        are held: then all of them are counted anew. Nodes between `above` and the anchor are counted
        already, and `low` is the lowest of them.
        """
        if start == anchor.end:
            receipts, low = self._count(anchor)
            self.unlock(m.Unlock(held))
            return m.Relocked(receipts, low.end)
        old = held[0] if held else m.Receipt(m.ROOT, 0)
        record = above
        while record.id and record.id != old.anchor:
            if record.end > start:
                self._presence.lock(record)
                low = record
            record = record.parent
        if not held or not record.id:
            return m.Relocked((m.Receipt(anchor.id, low.start),), low.end)
        if record.end <= start:  # nothing that was held is needed any more
            self._shrink(old, start)
            return m.Relocked((m.Receipt(anchor.id, low.start),), low.end)
        if old.start >= start:  # everything that was held is still needed
            return m.Relocked((m.Receipt(anchor.id, old.start),), 0)
        kept, low_end = self._shrink(old, start)
        return m.Relocked((m.Receipt(anchor.id, kept[0].start),), low_end)

    # -- publishing -----------------------------------------------------------------------------------

    @handles(m.Grow)
    def grow(self, msg: m.Grow) -> m.Relocked:
        """Record new nodes with the payload that comes with them, and move the locks."""
        parent, start, held = self._records[msg.parent], msg.ends[-1], msg.held
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
        free: list[PageList] = []
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

    @handles(BackupPath)
    def backup_path(self, msg: BackupPath) -> BackupNeeds:
        """Return what L2 lacks from the root down to a node, and whether L1 has it."""
        found: list[m.NodePages] = []
        record = self._records.get(msg.node)
        if record is None:
            return BackupNeeds((), msg.node)
        while record.id and record.at[Tier.L2] is None:
            payload = record.at[Tier.L1]
            if payload is None or payload.writer:
                return BackupNeeds((), record.id)
            found.append(m.NodePages(record.id, len(payload.pages) // PAGE_ID_BYTES))
            record = record.parent
        return BackupNeeds(tuple(reversed(found)), None)

    @handles(Read)
    def read(self, msg: Read) -> Slice:
        """Mark and return the L2 pages of a token range, as far back from its end as they go."""
        record = self._records[msg.node]
        start = msg.end
        parts: list[PageList] = []
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


def _check_run(own: int, end: int, pages: PageList, page_size: int) -> None:
    """Refuse pages that are not exactly those of the tokens from `own` to `end`."""
    count = (end - own) // page_size if end > own else 0
    if len(pages) != count * PAGE_ID_BYTES:
        raise IntegrityError(f"{len(pages)} bytes of page ids for tokens [{own}, {end})")
