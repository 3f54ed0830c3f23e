"""Coverage: which boundaries are good, and the locks that keep one good while a request uses it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from ..actors import Leaf, handles
from ..spec import PAGE_ID_BYTES
from . import messages as m
from .contract import TreeComponent
from .policies import Policy, eviction_key
from .presence import Presence
from .records import Record
from .tables import page_table, state_table

_NOTHING = [0, 0]


class CoverageActor(Leaf):
    """Answer what a component's rule says of a path, and count locks on what a boundary needs.

    The read and lock half of a component's actor; `ComponentActor` adds what changes payload.
    """

    def __init__(self, component: TreeComponent, policy: str | Policy = "lru") -> None:
        super().__init__()
        self.component = component
        self._page = component.page_size
        self._presence = Presence(
            base=component.base,
            snapshot=component.snapshot,
            page_size=component.page_size,
            key=eviction_key(policy),
        )
        self._records = self._presence.records

    # -- validity -----------------------------------------------------------------------------------

    @handles(m.Reach)
    def reach(self, msg: m.Reach) -> m.Reached:
        """Find the deepest good boundary."""
        path, ends = msg.path, msg.ends
        if not path:
            return m.Reached(0, resident=True, hole=0)
        boundary = self._deepest(msg)
        hole = 0 if boundary == min(msg.limit, ends[-1]) else path[bisect_right(ends, boundary)]
        resident = not (boundary and msg.host) or self._resident(path, ends, boundary)
        return m.Reached(boundary, resident, hole)

    @handles(m.Claim)
    def claim(self, msg: m.Claim) -> m.Claimed:
        """Find the deepest good boundary; lock it unless it is inside an edge or a state on L1."""
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
        if self._presence.snapshot:
            payload = anchor.at[0]
            if payload is not None and not payload.writer:
                self._touch(anchor, msg.now, msg.priority)
                return m.Claimed(boundary, m.Locked((), boundary, boundary, payload.pages))
        return m.Claimed(boundary, self._lock(anchor, msg.now, msg.priority))

    @handles(m.ClaimMany)
    def claim_many(self, msg: m.ClaimMany) -> tuple[m.Claimed, ...]:
        """Make many claims."""
        return tuple([self.claim(claim) for claim in msg.claims])

    def _deepest(self, msg: m.Reach | m.Claim) -> int:
        """Return the deepest good boundary, 0 for none: the node behind it is lacking."""
        presence, path, ends = self._presence, msg.path, msg.ends
        boundary, at = ends[-1], len(ends) - 1
        if msg.limit < boundary:
            boundary = msg.limit
            at = bisect_left(ends, boundary)
        if presence.snapshot:
            if boundary != ends[at] or (msg.partial and at == len(ends) - 1):
                at -= 1  # no state stands inside an edge
        elif not presence.base or presence.arriving != _NOTHING:
            return self._deepest_run(path, ends, boundary, host=msg.host)
        # A state is for its own node alone; FULL is upward closed on L1 and on L2 while nothing
        # arrives, so that a present node vouches for all above it.
        records = self._records
        while at >= 0:
            record = records.get(path[at])
            if record is not None:  # else no state stands there
                payload = record.at[0]
                if (payload is not None and not payload.writer) or (
                    msg.host and self._lower(record)
                ):
                    return min(boundary, ends[at])
            at -= 1
        return 0

    def _deepest_run(
        self, path: tuple[int, ...], ends: tuple[int, ...], boundary: int, *, host: bool
    ) -> int:
        """Search by ranges: from a hole the search goes straight to where the rule can do without it."""
        while boundary > 0:
            hole = self._hole(path, ends, boundary, host=host)
            if hole is None:
                break
            boundary = self.component.deepest_without(hole.start, hole.end, boundary)
        return boundary

    def _hole(
        self, path: tuple[int, ...], ends: tuple[int, ...], boundary: int, *, host: bool
    ) -> Record | None:
        """Return the deepest node that a boundary needs and lacks, or None."""
        records = self._records
        for start, end in reversed(self.component.need(boundary)):
            record = records[path[-1] if end == ends[-1] else path[bisect_left(ends, end)]]
            while True:
                payload = record.at[0]
                if (payload is None or payload.writer) and not (host and self._lower(record)):
                    return record
                if record.start <= start:
                    break
                record = record.parent
        return None

    @staticmethod
    def _lower(record: Record) -> bool:
        """Say whether a payload that L1 has not yet is arriving there, or on L2."""
        l1, l2 = record.at
        return l1 is not None or (l2 is not None and not l2.writer)

    def _resident(self, path: tuple[int, ...], ends: tuple[int, ...], boundary: int) -> bool:
        """Say whether all that a good boundary needs is present on L1."""
        presence = self._presence
        if presence.snapshot or (presence.base and not presence.arriving[0]):
            payload = self._records[path[bisect_left(ends, boundary)]].at[0]
            return payload is not None and not payload.writer
        return self._hole(path, ends, boundary, host=False) is None

    @handles(m.Arriving)
    def first_arriving(self, msg: m.Arriving) -> int:
        """Find the first node of a path with an L1 arrival; the path's length where there is none."""
        if self._presence.arriving[0]:
            for index, node in enumerate(msg.path):
                record = self._records.get(node)
                payload = None if record is None else record.at[0]
                if payload is not None and payload.writer:
                    return index
        return len(msg.path)

    @handles(m.Lacks)
    def lacks(self, msg: m.Lacks) -> bool:
        """Say whether a node holds nothing on a tier, which is so of one that is gone."""
        record = self._records.get(msg.node)
        return record is None or record.at[msg.tier] is None

    # -- locks --------------------------------------------------------------------------------------

    @handles(m.Lock)
    def lock(self, msg: m.Lock) -> m.Locked:
        """Count the coverage of the boundary at the end of a node, and touch it where it is a use."""
        return self._lock(self._records[msg.node], msg.now, msg.priority)

    def _lock(self, anchor: Record, now: int, priority: int) -> m.Locked:
        """Count, touch and list a coverage: one range that ends at the anchor in one pass up.

        That is what `_lock_ranges` does for any; nearly all rules have one range, and a hit costs
        little else.
        """
        presence = self._presence
        start = 0 if presence.base else self._one_range(anchor.end)
        if start == anchor.end or not now:
            return self._lock_ranges(anchor, now, priority)
        parts: list[m.PageList] = []
        whole = True
        before = 0  # tokens that were locked already, or of which there are no pages to lock
        record = anchor
        while True:
            payload = record.at[0]
            if payload is None:
                whole = False
                if not record.lock:
                    before += record.end - record.start
            else:
                parts.append(payload.pages)
                if payload.writer:
                    whole = False
            if record.lock:
                record.lock += 1
                before += record.end - record.start
            else:
                record.lock = 1
            record.previous = record.stamp
            record.stamp = now
            record.hits += 1
            if record.start <= start:
                break
            record = record.parent
        presence.locked += (anchor.end - record.start - before) // self._page
        if priority:
            self._raise(anchor, record, priority)
        first, receipts = record.start, ((anchor.id, record.start),)
        if not whole:
            return page_table(self.component, anchor, receipts, record)
        if first < start:
            page = self._page
            first = start // page * page
            parts[-1] = parts[-1][(first - record.start) // page * PAGE_ID_BYTES :]
        parts.reverse()
        return m.Locked(receipts, record.end, first, b"".join(parts))

    def _one_range(self, boundary: int) -> int:
        """Answer where the need of a boundary begins if it is one range up to there, else the boundary."""
        need = self.component.need(boundary)
        return need[0][0] if len(need) == 1 and need[0][1] == boundary else boundary

    def _lock_ranges(self, anchor: Record, now: int, priority: int) -> m.Locked:
        """Count and list any coverage, and touch it where the time is given."""
        if self._presence.snapshot:
            self._presence.count(anchor)
            if now:
                self._touch(anchor, now, priority)
            return state_table(anchor, ((anchor.id, anchor.start),))
        return page_table(self.component, anchor, *self._count(anchor, now, priority))

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

        Answers one receipt a range, deepest first, and the lowest node.
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
                presence.count(record)
                if now:
                    self._touch(record, now, priority)
                run = record
                record = record.parent
            if run is not None:
                receipts.append((top.id, run.start))
                low = run
        return tuple(receipts), low or anchor

    @staticmethod
    def _touch(record: Record, now: int, priority: int) -> None:
        record.previous, record.stamp = record.stamp, now
        record.hits += 1
        if priority:
            record.priority = max(record.priority, priority)

    @handles(m.Table)
    def table(self, msg: m.Table) -> m.Locked:
        """Answer the page table of a coverage that is locked already."""
        anchor = self._records[msg.node]
        low = anchor
        if msg.receipts:
            low = self._records[msg.receipts[-1][0]]
            while low.start > msg.receipts[-1][1]:
                low = low.parent
        if self._presence.snapshot:
            return state_table(anchor, msg.receipts)
        return page_table(self.component, anchor, msg.receipts, low)

    @handles(m.Unlock)
    def unlock(self, msg: m.Unlock) -> None:
        """Take back the counts of these receipts; a payload may then be evicted."""
        presence = self._presence
        if presence.snapshot:
            for anchor, _ in msg.receipts:
                presence.discount(self._records[anchor])
            return
        for anchor, start in msg.receipts:
            record = self._records[anchor]
            free = record.end - start  # tokens that nobody locks now, but for what the loop finds
            while record.end > start:  # at the latest the root ends the way up
                lock = record.lock = record.lock - 1
                if not lock:
                    payload = record.at[0]
                    if payload is None:
                        free -= record.end - record.start
                    elif not (record.kids[0] or payload.queued or payload.writer):
                        presence.indexes[0].add(record, payload)
                else:
                    if lock < 0:
                        presence.idle(record)  # raises
                    free -= record.end - record.start
                record = record.parent
            presence.locked -= free // self._page

    @handles(m.Recede)
    def recede(self, msg: m.Recede) -> m.Locked:
        """Let the window of a running request go forward: unlock what it has passed."""
        if not msg.receipts:
            return m.Locked((), 0, 0, b"")
        *kept, (anchor, start) = msg.receipts
        receipts, low_end = self._shrink(anchor, start, msg.start)
        return m.Locked((*kept, *receipts), low_end, 0, b"")

    def _shrink(self, anchor: int, old_start: int, start: int) -> tuple[tuple[m.Receipt, ...], int]:
        """Keep of one range the nodes that end behind `start`; unlock those below."""
        record = self._records[anchor]
        low: Record | None = None
        while record.id and record.start >= old_start:
            if record.end > start:
                low = record
            else:
                self._presence.discount(record)
            record = record.parent
        return ((), 0) if low is None else (((anchor, low.start),), low.end)

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
        old_anchor, old_start = held[0] if held else (m.ROOT, 0)
        record = above
        while record.id and record.id != old_anchor:
            if record.end > start:
                self._presence.count(record)
                low = record
            record = record.parent
        if not held or not record.id:
            return m.Relocked(((anchor.id, low.start),), low.end)
        if record.end <= start:  # nothing that was held is needed any more
            self._shrink(old_anchor, old_start, start)
            return m.Relocked(((anchor.id, low.start),), low.end)
        if old_start >= start:  # everything that was held is still needed
            return m.Relocked(((anchor.id, old_start),), 0)
        kept, low_end = self._shrink(old_anchor, old_start, start)
        return m.Relocked(((anchor.id, kept[0][1]),), low_end)
