"""The actor of one component: what is the same for paged payloads and for snapshots."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections import deque
from typing import Final, Generic, TypeVar

from ..actors import Leaf, handles
from ..errors import IntegrityError
from ..spec import PAGE_ID_BYTES, PageList, Tier
from . import audit_messages as a
from . import messages as m
from . import views as v
from .contract import TreeComponent
from .move_messages import Arrive, Drop, Evict, Freed, Moved, Unbacked, Unlocked
from .presence import Presence, Withdrawal
from .record_audit import RecordAudit
from .records import Payload, Record

_L1: Final = Tier.L1
PresenceT = TypeVar("PresenceT", bound=Presence)


class ComponentActor(Leaf, Generic[PresenceT]):
    """Own, per node and tier, what one component holds. Each handler is one step.

    `PagedActor` and `SnapshotActor` are the two kinds; `make_actor` makes the one that a rule is of.
    """

    def __init__(self, component: TreeComponent, presence: PresenceT) -> None:
        super().__init__()
        self.component = component
        self._presence = presence
        self._records = presence.records

    def __repr__(self) -> str:
        l1, l2 = self._presence.cached
        name = type(self).__name__
        return f"<{name} {self.component.name!r} [{l1} pages on L1, {l2} on L2]>"

    @property
    def cached(self) -> tuple[int, int]:
        """Count the pages that it holds on L1 and on L2."""
        l1, l2 = self._presence.cached
        return l1, l2

    # -- validity -----------------------------------------------------------------------------------

    @handles(m.Reach)
    def reach(self, msg: m.Reach) -> m.Reached:
        """Find the deepest good boundary."""
        path, ends = msg.path, msg.ends
        if not path:
            return m.Reached(0, resident=True, hole=None)
        boundary = self._deepest(msg)
        hole = None if boundary == min(msg.limit, ends[-1]) else path[bisect_right(ends, boundary)]
        resident = not (boundary and msg.host) or self._resident(path, ends, boundary)
        return m.Reached(boundary, resident, hole)

    @abstractmethod
    def _deepest(self, msg: m.Reach | m.Claim) -> int:
        """Return the deepest good boundary, 0 for none: the node behind it is lacking."""

    @abstractmethod
    def _resident(self, path: tuple[int, ...], ends: tuple[int, ...], boundary: int) -> bool:
        """Say whether all that a good boundary needs is present on L1."""

    @handles(m.Claim)
    @abstractmethod
    def claim(self, msg: m.Claim) -> m.Claimed:
        """Find the deepest good boundary; lock it where that is the end of a node."""

    @handles(m.ClaimMany)
    def claim_many(self, msg: m.ClaimMany) -> tuple[m.Claimed, ...]:
        """Make many claims."""
        return tuple([self.claim(claim) for claim in msg.claims])

    @staticmethod
    def _obtainable(record: Record) -> bool:
        """Say whether a payload is on L2, or is on or arriving on L1: what a wait can bring."""
        l1, l2 = record.at
        return l1 is not None or (l2 is not None and not l2.writer)

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

    # -- uses ---------------------------------------------------------------------------------------

    @staticmethod
    def _touch(record: Record, now: int, priority: int) -> None:
        record.previous, record.stamp = record.stamp, now
        record.hits += 1
        if priority:
            record.priority = max(record.priority, priority)

    @staticmethod
    def _used(record: Record, now: int, priority: int) -> None:
        """Note that somebody has computed again what a node stands for: a use, but no hit."""
        if record.stamp != now:
            record.previous, record.stamp = record.stamp, now
        record.priority = max(record.priority, priority)

    # -- eviction -------------------------------------------------------------------------------------

    @handles(Evict)
    def evict(self, msg: Evict) -> Freed:
        """Drop idle payloads in the policy's order; those being read only when no idle one is left."""
        tier, pinned, presence = msg.tier, msg.pinned, self._presence
        if msg.all_or_none and msg.pages > self._unlocked(tier, pinned):
            return Freed()
        index = presence.indexes[tier]
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
                if not presence.evictable(record, payload, tier):
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
        return presence.freed(out, tier, self._gone(out.gone))

    @abstractmethod
    def _gone(self, nodes: list[int]) -> tuple[int, ...]:
        """Follow what was evicted and is nowhere now; return those whose own end is no boundary now."""

    @handles(Unlocked)
    def unlocked(self, msg: Unlocked) -> int:
        """Count the pages that eviction may take."""
        return self._unlocked(msg.tier, msg.pinned)

    def _unlocked(self, tier: Tier, pinned: frozenset[int]) -> int:
        presence = self._presence
        pages = presence.cached[tier] - (presence.locked if tier == _L1 else 0)
        for node in pinned:
            record = self._records.get(node)
            payload = None if record is None else record.at[tier]
            if record is not None and payload is not None and (tier != _L1 or not record.lock):
                pages -= len(payload.pages) // PAGE_ID_BYTES
        return pages

    @handles(Drop)
    def drop(self, msg: Drop) -> Freed:
        """Drop payload that no lease locks, and the records of nodes that are gone."""
        presence, tier, records = self._presence, msg.tier, self._records
        out = Withdrawal()
        for node in msg.nodes:
            record = records.get(node)
            if record is None or record.at[tier] is None:
                continue
            if tier != _L1 or not record.lock:
                presence.withdraw(record, tier, out)
        presence.forget(msg.gone)
        return presence.freed(out, tier)

    # -- between tiers --------------------------------------------------------------------------------

    @handles(Unbacked)
    def unbacked(self, msg: Unbacked) -> tuple[m.NodePages, ...]:
        """Return what L1 has and L2 lacks, with its number of pages."""
        found: list[m.NodePages] = []
        for node in msg.nodes:
            record = self._records.get(node)
            if record is not None and record.at[Tier.L2] is None:
                payload = record.at[Tier.L1]
                if payload is not None and not payload.writer:
                    found.append(m.NodePages(node, len(payload.pages) // PAGE_ID_BYTES))
        return tuple(found)

    @handles(Arrive)
    def arrive(self, msg: Arrive) -> PageList:
        """Start arrivals on a tier from what the other tier holds; return the source pages."""
        sources: list[PageList] = []
        used = 0
        for node in msg.nodes:
            record = self._records[node]
            source = record.at[1 - msg.tier]
            size = 0 if source is None else len(source.pages)
            pages = msg.pages[used : used + size]
            used += size
            sources.append(self._presence.arrive(record, msg.tier, pages, msg.op))
        return b"".join(sources)

    @handles(Moved)
    def moved(self, msg: Moved) -> Freed:
        """End an operation's arrivals and marks."""
        return self._presence.moved(msg.op, ok=msg.ok)

    # -- looking inside -------------------------------------------------------------------------------

    @handles(v.Ledger)
    def ledger(self, msg: v.Ledger) -> tuple[v.Held, v.Held]:
        """Return the running sums per tier."""
        p = self._presence
        return (
            v.Held(p.cached[0], p.locked, p.payloads[0]),
            v.Held(p.cached[1], 0, p.payloads[1]),
        )

    @handles(v.Records)
    def views(self, msg: v.Records) -> tuple[v.RecordView, ...]:
        """Return views of all records, in id order."""
        return tuple(self._view(record) for id, record in sorted(self._records.items()) if id)

    @staticmethod
    def _view(record: Record) -> v.RecordView:
        l1, l2 = record.at
        return v.RecordView(
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

    @handles(v.Shared)
    def shared(self, msg: v.Shared) -> PageList:
        """Return pages that left their node while several operations read them."""
        return self._presence.shared(msg.tier)

    # -- audits -------------------------------------------------------------------------------------

    @handles(a.BeginRecords)
    def begin_audit(self, msg: a.BeginRecords) -> tuple[PageList, PageList]:
        """Begin a round, unless this one has begun."""
        presence, audit = self._presence, self._presence.audit
        if audit is None or audit.number != msg.round:
            presence.audit = RecordAudit(
                presence, msg.round, msg.last, snapshot=self.component.snapshot
            )
        return presence.shared(Tier.L1), presence.shared(Tier.L2)

    @handles(a.ScanRecords)
    def scan(self, msg: a.ScanRecords) -> a.ScannedRecords:
        """Show the next records to an audit."""
        if self._presence.audit is None:
            raise IntegrityError("no round of an audit has begun")
        return self._presence.audit.scan(msg)

    @handles(a.EndRecords)
    def end_audit(self, msg: a.EndRecords) -> a.Faults:
        """Compare the sums with what was counted; nothing need be noted any more."""
        audit, self._presence.audit = self._presence.audit, None
        return () if audit is None else audit.end()
