"""The actor of one component: coverage, locks, adoption and eviction, the same for every rule."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import msgspec

from ..actors import Leaf, handles
from ..errors import IntegrityError
from ..spec import Tier
from . import messages as m
from .contract import Ranges, TreeComponent
from .policies import Policy, eviction_key
from .presence import Presence, Withdrawal
from .records import PAGE, Payload, Record

_NO_PAGE = b"\xff\xff\xff\xff"


class ComponentActor(Leaf):
    """Own, per node and tier, what one component holds. Each handler is one step."""

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

    def __repr__(self) -> str:
        l1, l2 = self._presence.cached
        return f"<ComponentActor {self.component.name!r} [{l1} pages on L1, {l2} on L2]>"

    # -- validity -----------------------------------------------------------------------------------

    @handles(m.Reach)
    def reach(self, msg: m.Reach) -> m.Reached:
        """Find the deepest good boundary: from a hole the search goes straight to where it starts."""
        path, ends = msg.path, msg.ends
        at = bisect_right(ends, msg.limit) - 1
        stopped = 0
        while at >= 0:
            hole = self._hole(msg, at)
            if hole < 0:
                return m.Reached(ends[at], self._resident(path, ends, at), stopped)
            if not stopped:
                stopped = path[hole]
            at = at - 1 if self.component.snapshot else hole - 1
        return m.Reached(0, resident=True, hole=stopped)

    def _hole(self, msg: m.Reach, at: int) -> int:
        """Answer the index of the deepest node that boundary `ends[at]` needs and lacks, or -1."""
        path, ends, host = msg.path, msg.ends, msg.host
        if self.component.snapshot:
            whole = not (msg.partial and at == len(path) - 1)
            return -1 if whole and self._usable(path[at], host=host) else at
        presence = self._presence
        if presence.base and not presence.arriving[Tier.L1] and not presence.arriving[Tier.L2]:
            # FULL is upward closed on L1 and on L2: a present node vouches for all above it.
            return -1 if self._usable(path[at], host=host) else at
        for start, end in reversed(self.component.need(ends[at])):
            node = bisect_left(ends, end)
            while node >= 0:
                if not self._usable(path[node], host=host):
                    return node
                if node == 0 or ends[node - 1] <= start:
                    break
                node -= 1
        return -1

    def _usable(self, node: int, *, host: bool) -> bool:
        l1, l2 = self._records[node].at
        if l1 is not None and (host or not l1.writer):
            return True
        return host and l2 is not None and not l2.writer

    def _resident(self, path: tuple[int, ...], ends: tuple[int, ...], at: int) -> bool:
        """Say whether all that the boundary needs is present on L1."""
        presence = self._presence
        closed = presence.base and not presence.arriving[Tier.L1]
        if self.component.snapshot or closed:
            return self._usable(path[at], host=False)
        for start, end in self.component.need(ends[at]):
            for node in range(bisect_right(ends, start), bisect_left(ends, end) + 1):
                if not self._usable(path[node], host=False):
                    return False
        return True

    @handles(m.Arriving)
    def first_arriving(self, msg: m.Arriving) -> int:
        """Find the first node of a path with an L1 arrival; the path's length where there is none."""
        if self._presence.arriving[Tier.L1]:
            for index, node in enumerate(msg.path):
                payload = self._records[node].at[Tier.L1]
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
        """Count and touch the coverage of the boundary at the end of a node."""
        anchor = self._records[msg.node]
        receipts: list[m.Receipt] = []
        low = anchor
        for top, start in self._ranges(anchor):
            record = low = top
            while record.id and record.end > start:
                self._presence.count(record)
                self._touch(record, msg.now, msg.priority)
                low = record
                record = record.above()
            receipts.append((top.id, low.start))
        return self._table(anchor, tuple(receipts), low)

    def _ranges(self, anchor: Record) -> list[tuple[Record, int]]:
        """Answer (top node, start) for each range of the anchor's need, deepest range first."""
        if self.component.snapshot:
            return [(anchor, anchor.start)]
        ranges: list[tuple[Record, int]] = []
        for start, end in reversed(self.component.need(anchor.end)):
            top = anchor
            while top.start >= end:
                top = top.above()
            ranges.append((top, start))
        return ranges

    @staticmethod
    def _touch(record: Record, now: int, priority: int) -> None:
        record.previous, record.stamp = record.stamp, now
        record.hits += 1
        if priority > record.priority:
            record.priority = priority

    @handles(m.Table)
    def table(self, msg: m.Table) -> m.Locked:
        """Answer the page table of a coverage that is locked already."""
        anchor = self._records[msg.node]
        low = anchor
        if msg.receipts:
            low = self._records[msg.receipts[-1][0]]
            while low.start > msg.receipts[-1][1]:
                low = low.above()
        return self._table(anchor, msg.receipts, low)

    def _table(self, anchor: Record, receipts: tuple[m.Receipt, ...], low: Record) -> m.Locked:
        missing: list[tuple[int, int]] = []
        joins: list[int] = []
        if self.component.snapshot:
            payload = anchor.at[Tier.L1]
            if payload is None:
                return m.Locked(receipts, anchor.end, anchor.end, b"", ((anchor.id, 1),))
            if payload.writer:
                return m.Locked(receipts, anchor.end, anchor.end, b"", (), (payload.writer,))
            return m.Locked(receipts, anchor.end, anchor.end, payload.pages)
        page, position = self._page, anchor.end
        parts: list[m.PageList] = []
        record = anchor
        for start, end in reversed(self.component.need(anchor.end)):
            low_page, high_page = start // page * page, -(-end // page) * page
            parts.append(_NO_PAGE * ((position - high_page) // page))
            while record.start >= high_page:
                record = record.above()
            while True:
                payload = record.at[Tier.L1]
                if payload is None:
                    missing.append((record.id, (record.end - record.start) // page))
                elif payload.writer:
                    joins.append(payload.writer)
                elif record.start >= low_page and record.end <= high_page:
                    parts.append(payload.pages)
                else:
                    parts.append(self._cut(record, payload, low_page, high_page))
                if record.start <= low_page:
                    break
                record = record.above()
            position = low_page
        if missing or joins:
            return m.Locked(receipts, low.end, position, b"", tuple(missing), tuple(joins))
        parts.reverse()
        return m.Locked(receipts, low.end, position, b"".join(parts))

    def _cut(self, record: Record, payload: Payload, start: int, end: int) -> m.PageList:
        page = self._page
        first = max(0, start - record.start) // page
        last = (min(end, record.end) - record.start) // page
        return payload.pages[first * PAGE : last * PAGE]

    @handles(m.Unlock)
    def unlock(self, msg: m.Unlock) -> None:
        """Take back the counts of these receipts; a payload may then be evicted."""
        for anchor, start in msg.receipts:
            record = self._records[anchor]
            while record.id and record.start >= start:
                self._presence.discount(record)
                record = record.above()

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
            record = record.above()
        return ((), 0) if low is None else (((anchor, low.start),), low.end)

    # -- publishing -----------------------------------------------------------------------------------

    @handles(m.Adopt)
    def adopt(self, msg: m.Adopt) -> m.Adopted:
        """Take pages over: attach what nodes lack, give back what they have, move the locks."""
        path = self._grow(msg)
        if self.component.snapshot:
            free, attached = self._adopt_states(msg)
            patches: list[tuple[int, m.PageList]] = []
        else:
            free, attached, patches = self._adopt_pages(msg, path)
        receipts, low_end = msg.held, 0
        if msg.relock and not self.component.snapshot:
            anchor = path[-1] if path else self._records[msg.parent]
            receipts, low_end = self._relock(msg.held, anchor)
        for record in attached:
            self._presence.requeue(record, msg.tier)
        ids = tuple(record.id for record in attached)
        return m.Adopted(b"".join(free), tuple(patches), ids, receipts, low_end)

    def _grow(self, msg: m.Adopt) -> list[Record]:
        """Answer the path's records, making those of new nodes."""
        records = self._records
        parent = records[msg.parent]
        old = len(msg.path) - msg.grown
        path: list[Record] = []
        for index, node in enumerate(msg.path):
            if index < old:
                record = records[node]
                record.previous, record.stamp = record.stamp, msg.now
            else:
                record = Record(node, parent, parent.end, msg.ends[index], msg.now)
                records[node] = record
            if msg.priority > record.priority:
                record.priority = msg.priority
            path.append(record)
            parent = record
        return path

    def _adopt_states(self, msg: m.Adopt) -> tuple[list[m.PageList], list[Record]]:
        free: list[m.PageList] = []
        attached: list[Record] = []
        for node, slot in msg.states:
            record = self._records[node]
            if record.at[msg.tier] is not None:
                free.append(slot)
            else:
                self._presence.attach(record, msg.tier, slot)
                attached.append(record)
        return free, attached

    def _adopt_pages(
        self, msg: m.Adopt, path: list[Record]
    ) -> tuple[list[m.PageList], list[Record], list[tuple[int, m.PageList]]]:
        page, own, pages, tier = self._page, msg.own, msg.pages, msg.tier
        free: list[m.PageList] = []
        attached: list[Record] = []
        patches: list[tuple[int, m.PageList]] = []
        for record in path:
            start = max(record.start, own)
            if start >= record.end:
                continue
            mine = pages[(start - own) // page * PAGE : (record.end - own) // page * PAGE]
            payload = record.at[tier]
            if payload is not None:
                free.append(mine)
                patches.append((start, payload.pages[(start - record.start) // page * PAGE :]))
            elif start == record.start:
                self._presence.attach(record, tier, mine)
                attached.append(record)
            else:
                raise IntegrityError(f"node {record.id} was not cut where own pages start: {start}")
        return free, attached, patches

    def _relock(
        self, held: tuple[m.Receipt, ...], anchor: Record
    ) -> tuple[tuple[m.Receipt, ...], int]:
        """Move locks to the anchor's coverage by difference: a node in both is not touched."""
        need: Ranges = self.component.need(anchor.end)
        if len(need) != 1 or len(held) > 1:
            return self._relock_all(held, anchor)
        start = need[0][0]
        old_anchor, old_start = held[0] if held else (m.ROOT, 0)
        record, low = anchor, anchor
        while record.id and record.id != old_anchor:
            if record.end > start:
                self._presence.count(record)
                low = record
            record = record.above()
        if not held or not record.id:
            return ((anchor.id, low.start),), low.end
        if record.end <= start:  # nothing that was held is needed any more
            self._shrink(old_anchor, old_start, start)
            return ((anchor.id, low.start),), low.end
        if old_start >= start:  # everything that was held is still needed
            return ((anchor.id, old_start),), low.end if record is anchor else 0
        kept, low_end = self._shrink(old_anchor, old_start, start)
        return ((anchor.id, kept[0][1]),), low_end

    def _relock_all(
        self, held: tuple[m.Receipt, ...], anchor: Record
    ) -> tuple[tuple[m.Receipt, ...], int]:
        receipts: list[m.Receipt] = []
        low = anchor
        for top, start in self._ranges(anchor):
            record = low = top
            while record.id and record.end > start:
                self._presence.count(record)
                low = record
                record = record.above()
            receipts.append((top.id, low.start))
        self.unlock(m.Unlock(held))
        return tuple(receipts), low.end

    @handles(m.SplitDone)
    def split_done(self, msg: m.SplitDone) -> None:
        """Follow a split of the tree."""
        self._presence.split(self._records[msg.node], msg.upper, msg.at)

    # -- eviction -------------------------------------------------------------------------------------

    @handles(m.Evict)
    def evict(self, msg: m.Evict) -> m.Freed:
        """Drop idle payloads in the policy's order; those being read only when no idle one is left."""
        tier, presence = msg.tier, self._presence
        out = Withdrawal()
        spared: list[Record] = []
        busy: list[Record] = []
        left = msg.pages
        while left > 0:
            for record, payload in presence.indexes[tier].drain():
                if not presence.evictable(record, tier):
                    continue
                if record.id in msg.pinned:
                    spared.append(record)
                elif payload.readers:
                    busy.append(record)
                else:
                    left -= presence.withdraw(record, tier, out)
                    if left <= 0:
                        break
            if left <= 0 or not busy:
                break
            left -= presence.withdraw(busy.pop(0), tier, out)
        for record in (*spared, *busy):
            presence.requeue(record, tier)
        return self._spoilt(out)

    def _spoilt(self, out: Withdrawal) -> m.Freed:
        """Say of which nodes that hold nothing now the own boundary needed what they lost."""
        freed = out.freed()
        if not freed.gone or self.component.snapshot:
            return freed
        need = self.component.need
        spoilt = tuple(
            node for node in freed.gone if (r := need(self._records[node].end)) and r[-1][1] > 0
        )
        return msgspec.structs.replace(freed, spoilt=spoilt)

    @handles(m.EvictLeaves)
    def evict_leaves(self, msg: m.EvictLeaves) -> m.Freed:
        """Drop those nodes' payload where they are unlocked leaves."""
        out = Withdrawal()
        for node in msg.nodes:
            record = self._records[node]
            if self._presence.evictable(record, msg.tier):
                self._presence.withdraw(record, msg.tier, out)
        return out.freed()

    @handles(m.Drop)
    def drop(self, msg: m.Drop) -> m.Freed:
        """Drop payload that no lease locks; with `forget`, the records too."""
        out = Withdrawal()
        for node in msg.nodes:
            record = self._records[node]
            for tier in msg.tiers:
                if record.at[tier] is not None and not (tier == Tier.L1 and record.lock):
                    self._presence.withdraw(record, tier, out)
            if msg.forget:
                self._presence.forget(record)
        return out.freed()

    @handles(m.Dead)
    def dead(self, msg: m.Dead) -> tuple[int, ...]:
        """Answer which nodes nobody locks and nothing keeps."""
        records = (self._records[node] for node in msg.nodes if node in self._records)
        return tuple(r.id for r in records if r.id and not r.lock and r.at == [None, None])

    # -- between tiers --------------------------------------------------------------------------------

    @handles(m.Unbacked)
    def unbacked(self, msg: m.Unbacked) -> tuple[tuple[int, int], ...]:
        """Answer what L1 has and L2 lacks, with its number of pages."""
        found: list[tuple[int, int]] = []
        if msg.climb:
            record = self._records.get(msg.nodes[-1])
            while record is not None and record.id and record.at[Tier.L2] is None:
                payload = record.at[Tier.L1]
                found.append((record.id, 0 if payload is None else len(payload.pages) // PAGE))
                record = record.above()
            found.reverse()
            return tuple(found)
        for node in msg.nodes:
            record = self._records.get(node)
            if record is not None and record.at[Tier.L2] is None:
                payload = record.at[Tier.L1]
                if payload is not None and not payload.writer:
                    found.append((node, len(payload.pages) // PAGE))
        return tuple(found)

    @handles(m.Arrive)
    def arrive(self, msg: m.Arrive) -> m.PageList:
        """Start arrivals on a tier from what the other tier holds; answer the source pages."""
        sources: list[m.PageList] = []
        used = 0
        for node in msg.nodes:
            record = self._records[node]
            source = record.at[1 - msg.tier]
            size = 0 if source is None else len(source.pages)
            pages = msg.pages[used : used + size]
            used += size
            sources.append(self._presence.arrive(record, msg.tier, pages, msg.op))
        return b"".join(sources)

    @handles(m.Read)
    def read(self, msg: m.Read) -> m.Slice:
        """Mark and answer the L2 pages of a token range, as far back from its end as they go."""
        record = self._records[msg.node]
        if self.component.snapshot:
            payload = record.at[Tier.L2]
            if payload is None or payload.writer or record.end != msg.end:
                return m.Slice(msg.end, b"")
            self._presence.read(record, Tier.L2, msg.op)
            return m.Slice(msg.end, payload.pages)
        start = msg.end
        parts: list[m.PageList] = []
        while record.id and start > msg.start:
            payload = record.at[Tier.L2]
            if payload is None or payload.writer:
                break
            if record.start < msg.end:
                self._presence.read(record, Tier.L2, msg.op)
                parts.append(self._cut(record, payload, msg.start, msg.end))
                start = max(record.start, msg.start)
            record = record.above()
        return m.Slice(start, b"".join(reversed(parts)))

    @handles(m.Moved)
    def moved(self, msg: m.Moved) -> m.Freed:
        """End an operation's arrivals and marks."""
        return self._presence.moved(msg.op, ok=msg.ok)

    # -- looking inside -------------------------------------------------------------------------------

    @handles(m.Ledger)
    def ledger(self, msg: m.Ledger) -> tuple[m.Held, m.Held]:
        """Answer the running sums per tier."""
        p = self._presence
        return (
            m.Held(p.cached[0], p.locked, p.payloads[0]),
            m.Held(p.cached[1], 0, p.payloads[1]),
        )

    @handles(m.Records)
    def views(self, msg: m.Records) -> tuple[m.Record, ...]:
        """Answer views of records in id order, `count` at most."""
        ids = sorted(id for id in self._records if id > msg.after)[: msg.count]
        return tuple(self._view(self._records[id]) for id in ids)

    @staticmethod
    def _view(record: Record) -> m.Record:
        l1, l2 = record.at
        return m.Record(
            record.id,
            record.start,
            record.end,
            record.lock,
            None if l1 is None else l1.pages,
            None if l2 is None else l2.pages,
            0 if l1 is None else l1.writer,
            0 if l2 is None else l2.writer,
            record.stamp,
        )

    @handles(m.Shared)
    def shared(self, msg: m.Shared) -> m.PageList:
        """Answer pages that left their node while several operations read them."""
        return self._presence.shared(msg.tier)
