"""The actor of one component: adoption, eviction and moves between tiers, the same for every rule."""

from __future__ import annotations

from collections import deque

from ..actors import handles
from ..errors import IntegrityError
from ..spec import PAGE_ID_BYTES, Tier
from . import messages as m
from .coverage import CoverageActor
from .move_messages import (
    Arrive,
    Dead,
    Drop,
    Evict,
    EvictLeaves,
    Foot,
    Footing,
    Freed,
    Moved,
    Read,
    Slice,
    Unbacked,
)
from .presence import Withdrawal
from .records import NO_KIDS, Payload, Record
from .tables import pages_between


class ComponentActor(CoverageActor):
    """Own, per node and tier, what one component holds. Each handler is one step."""

    def __repr__(self) -> str:
        l1, l2 = self._presence.cached
        return f"<ComponentActor {self.component.name!r} [{l1} pages on L1, {l2} on L2]>"

    # -- publishing -----------------------------------------------------------------------------------

    @handles(m.Grow)
    def grow(self, msg: m.Grow) -> m.Relocked:
        """Record new nodes with the payload that comes with them, and move the locks."""
        records, presence, tier, page = self._records, self._presence, msg.tier, self._page
        ends, own, pages, held = msg.ends, msg.own, msg.pages, msg.held
        _check_run(own, ends[-1], pages, page)
        parent = record = records[msg.parent]
        start = ends[-1]
        if msg.relock and len(held) < 2:
            start = self._one_range(start)
        low: Record | None = None
        used = planted = locked = 0
        for index, node in enumerate(msg.path):
            end = ends[index]
            kids = [0, 0] if presence.base else NO_KIDS
            above = record
            record = Record(node, above, above.end, end, msg.now, msg.priority, kids)
            records[node] = record
            if end > start:
                record.lock = 1
                low = low or record
            if end <= own:
                continue
            if above.end < own:
                raise IntegrityError(f"node {node} was not cut where own pages start: {own}")
            size = (end - above.end) // page * PAGE_ID_BYTES
            payload = record.at[tier] = Payload(pages[used : used + size])
            used += size
            planted += 1
            if presence.base:
                above.kids[tier] += 1
            if not tier and record.lock:
                locked += size
            else:
                presence.indexes[tier].add(record, payload)
        presence.cached[tier] += used // PAGE_ID_BYTES
        presence.payloads[tier] += planted
        presence.locked += locked // PAGE_ID_BYTES
        if not msg.relock:
            return m.Relocked((), 0)
        return self._relock(held, record, parent, low or parent, start)

    @handles(m.Adopt)
    def adopt(self, msg: m.Adopt) -> m.Adopted:
        """Attach what nodes lack, and give back what they have."""
        presence, tier, page = self._presence, msg.tier, self._page
        own, pages = msg.own, msg.pages
        _check_run(own, msg.ends[-1] if msg.ends else own, pages, page)
        free: list[m.PageList] = []
        attached: list[int] = []
        patches: list[tuple[int, m.PageList]] = []
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
                    (first, payload.pages[(first - record.start) // page * PAGE_ID_BYTES :])
                )
            elif first == record.start:
                presence.attach(record, tier, mine)
                attached.append(node)
            else:
                raise IntegrityError(f"node {node} was not cut where own pages start: {own}")
        return m.Adopted(b"".join(free), tuple(patches), tuple(attached))

    @handles(m.Keep)
    def keep(self, msg: m.Keep) -> m.Adopted:
        """Attach states to nodes that lack one, and give the others back."""
        records, presence, tier = self._records, self._presence, msg.tier
        free: list[m.PageList] = []
        attached: list[int] = []
        for node, start, end, slot in msg.states:
            record = records.get(node)
            if record is None:
                root = records[m.ROOT]
                record = records[node] = Record(
                    node, root, start, end, msg.now, msg.priority, NO_KIDS
                )
            else:
                self._used(record, msg.now, msg.priority)
            if record.at[tier] is not None:
                free.append(slot)
            else:
                presence.attach(record, tier, slot)
                attached.append(node)
        return m.Adopted(b"".join(free), (), tuple(attached))

    @staticmethod
    def _used(record: Record, now: int, priority: int) -> None:
        """Note that somebody has computed again what a node stands for: a use, but no hit."""
        if record.stamp != now:
            record.previous, record.stamp = record.stamp, now
        record.priority = max(record.priority, priority)

    @handles(m.Relock)
    def relock(self, msg: m.Relock) -> m.Relocked:
        """Move the locks of a request that goes on from another node."""
        anchor, held = self._records[msg.node], msg.held
        start = self._one_range(anchor.end) if len(held) < 2 else anchor.end
        return self._relock(held, anchor, anchor, anchor, start)

    @handles(m.SplitDone)
    def split_done(self, msg: m.SplitDone) -> None:
        """Follow a split of the tree."""
        record = self._records.get(msg.node)
        if record is None:
            return  # no state stands there
        if self._presence.snapshot:
            record.start = msg.at
        else:
            self._presence.split(record, msg.upper, msg.at)

    # -- eviction -------------------------------------------------------------------------------------

    @handles(Evict)
    def evict(self, msg: Evict) -> Freed:
        """Drop idle payloads in the policy's order; those being read only when no idle one is left."""
        tier, pinned, presence = msg.tier, msg.pinned, self._presence
        index, base = presence.indexes[tier], presence.base
        out = Withdrawal()
        spared: list[Record] = []
        busy: deque[tuple[Record, Payload]] = deque()
        left = msg.pages * PAGE_ID_BYTES
        while left > 0:
            first = index.pop()
            if first is None:
                if not busy:
                    break
                record, payload = busy.popleft()
            else:
                record, payload = first
                if payload.writer or (record.lock and not tier) or (base and record.kids[tier]):
                    continue  # may not go now, and is queued again when it may
                if record.id in pinned:
                    spared.append(record)
                    continue
                if payload.readers:
                    busy.append(first)
                    continue
            left -= len(payload.pages)
            presence.withdraw(record, tier, out)
        for record in spared:
            presence.requeue(record, tier)
        for record, _ in busy:
            presence.requeue(record, tier)
        if base:
            presence.forget(out.gone)
        return presence.freed(out, tier, self._spoilt(out.gone))

    def _spoilt(self, gone: list[int]) -> tuple[int, ...]:
        """Answer the nodes whose own boundary needed what they lost, where others depend on that."""
        component = self.component
        if component.base or component.snapshot:
            return ()
        return tuple(node for node in gone if component.need(self._records[node].end))

    @handles(EvictLeaves)
    def evict_leaves(self, msg: EvictLeaves) -> Freed:
        """Drop those nodes' payload where they are unlocked leaves, and forget what is held nowhere."""
        presence, tier = self._presence, msg.tier
        out = Withdrawal()
        for node in msg.nodes:
            record = self._records[node]
            if presence.evictable(record, tier):
                presence.withdraw(record, tier, out)
        presence.forget(out.gone)
        return presence.freed(out, tier)

    @handles(Drop)
    def drop(self, msg: Drop) -> Freed:
        """Drop payload that no lease locks, and the records of nodes that are gone."""
        presence, tier, records = self._presence, msg.tier, self._records
        out = Withdrawal()
        for node in msg.nodes:
            record = records.get(node)
            if (
                record is not None
                and record.at[tier] is not None
                and not (record.lock and not tier)
            ):
                presence.withdraw(record, tier, out)
        presence.forget(msg.gone)
        return presence.freed(out, tier)

    @handles(Dead)
    def dead(self, msg: Dead) -> tuple[int, ...]:
        """Answer which nodes nobody locks and nothing keeps."""
        records = (self._records[node] for node in msg.nodes if node in self._records)
        return tuple(r.id for r in records if r.id and not r.lock and r.at == [None, None])

    # -- between tiers --------------------------------------------------------------------------------

    @handles(Unbacked)
    def unbacked(self, msg: Unbacked) -> tuple[tuple[int, int], ...]:
        """Answer what L1 has and L2 lacks, with its number of pages."""
        found: list[tuple[int, int]] = []
        for node in msg.nodes:
            record = self._records.get(node)
            if record is not None and record.at[Tier.L2] is None:
                payload = record.at[Tier.L1]
                if payload is not None and not payload.writer:
                    found.append((node, len(payload.pages) // PAGE_ID_BYTES))
        return tuple(found)

    @handles(Foot)
    def foot(self, msg: Foot) -> Footing:
        """Return what L2 lacks from the root down to a node, and whether L1 has it."""
        found: list[tuple[int, int]] = []
        record = self._records.get(msg.node)
        if record is None:
            return Footing((), msg.node)
        while record.id and record.at[Tier.L2] is None:
            payload = record.at[Tier.L1]
            if payload is None or payload.writer:
                return Footing((), record.id)
            found.append((record.id, len(payload.pages) // PAGE_ID_BYTES))
            record = record.parent
        return Footing(tuple(reversed(found)), None)

    @handles(Arrive)
    def arrive(self, msg: Arrive) -> m.PageList:
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

    @handles(Read)
    def read(self, msg: Read) -> Slice:
        """Mark and answer the L2 pages of a token range, as far back from its end as they go."""
        if self.component.snapshot:
            return self._read_state(msg)
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

    def _read_state(self, msg: Read) -> Slice:
        record = self._records.get(msg.node)
        payload = None if record is None or record.end != msg.end else record.at[Tier.L2]
        if record is None or payload is None or payload.writer:
            return Slice(msg.end, b"")
        self._presence.read(record, Tier.L2, msg.op)
        return Slice(msg.end, payload.pages)

    @handles(Moved)
    def moved(self, msg: Moved) -> Freed:
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
        """Answer views of all records, in id order."""
        return tuple(self._view(record) for id, record in sorted(self._records.items()) if id)

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


def _check_run(own: int, end: int, pages: m.PageList, page_size: int) -> None:
    """Refuse pages that are not exactly those of the tokens from `own` to `end`."""
    if len(pages) != max(0, end - own) // page_size * PAGE_ID_BYTES:
        raise IntegrityError(f"{len(pages)} bytes of page ids for tokens [{own}, {end})")
