"""Snapshot components: one state per boundary, at the end of a node, in a record of its own."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from ..actors import handles
from ..spec import PageList, Tier
from . import messages as m
from .component import ComponentActor
from .contract import TreeComponent
from .messages import Locked, NodePages, Receipt
from .move_messages import Read, Slice
from .policies import Policy, eviction_key
from .presence import Presence
from .records import NO_KIDS, Record


class SnapshotPresence(Presence):
    """Own a record only where a state stands or a lock does. Records have no parent but the root."""

    def _gained(self, record: Record, tier: int) -> None:
        """Follow nothing: states stand alone."""

    def _lost(self, record: Record, tier: int) -> None:
        if not record.lock:
            self._bare(record)

    def _bare(self, record: Record) -> None:
        if record.at == [None, None]:
            del self.records[record.id]

    def record(self, state: m.State, now: int, priority: int) -> Record:
        """Record a node at whose end a state stands."""
        if self.audit is not None:
            self.audit.before_record_of(state.node)
        root = self.records[m.ROOT]
        record = Record(state.node, root, state.start, state.end, now, priority, NO_KIDS)
        self.records[state.node] = record
        return record


class SnapshotActor(ComponentActor[SnapshotPresence]):
    """Hold one state per boundary. It stays with the lower node of a split, and is copied, not shared."""

    def __init__(self, component: TreeComponent, policy: str | Policy = "lru") -> None:
        super().__init__(component, SnapshotPresence(component.page_size, eviction_key(policy)))

    # -- validity -----------------------------------------------------------------------------------

    @handles(m.Claim)
    def claim(self, msg: m.Claim) -> m.Claimed:
        """Find the deepest state; lock it unless it is on L1, where it is to be copied at once."""
        boundary = self._deepest(msg)
        if not boundary:
            return m.Claimed(0)
        anchor = self._records[msg.path[bisect_left(msg.ends, boundary)]]
        payload = anchor.at[0]
        if payload is None or payload.writer:
            return m.Claimed(boundary, self._lock(anchor, msg.now, msg.priority))
        self._touch(anchor, msg.now, msg.priority)
        return m.Claimed(boundary, Locked((), boundary, boundary, payload.pages))

    def _deepest(self, msg: m.Reach | m.Claim) -> int:
        ends, records = msg.ends, self._records
        at = bisect_right(ends, msg.limit) - 1
        if msg.partial and at == len(ends) - 1:
            at -= 1  # no state stands inside an edge
        while at >= 0:
            record = records.get(msg.path[at])
            if record is not None:
                payload = record.at[0]
                if (payload is not None and not payload.writer) or (
                    msg.host and self._obtainable(record)
                ):
                    return ends[at]
            at -= 1
        return 0

    def _resident(self, path: tuple[int, ...], ends: tuple[int, ...], boundary: int) -> bool:
        payload = self._records[path[bisect_left(ends, boundary)]].at[0]
        return payload is not None and not payload.writer

    # -- locks --------------------------------------------------------------------------------------

    @handles(m.Lock)
    def lock(self, msg: m.Lock) -> Locked:
        """Lock the state at the end of a node, and touch it where it is a use."""
        return self._lock(self._records[msg.node], msg.now, msg.priority)

    def _lock(self, anchor: Record, now: int, priority: int) -> Locked:
        self._presence.lock(anchor)
        if now:
            self._touch(anchor, now, priority)
        return _state_table(anchor, (Receipt(anchor.id, anchor.start),))

    @handles(m.Table)
    def table(self, msg: m.Table) -> Locked:
        """Return where the state of a locked node is."""
        return _state_table(self._records[msg.node], msg.receipts)

    @handles(m.Unlock)
    def unlock(self, msg: m.Unlock) -> None:
        """Take back the counts of these receipts; a state may then be evicted."""
        for receipt in msg.receipts:
            self._presence.unlock(self._records[receipt.anchor])

    # -- publishing and moves -----------------------------------------------------------------------

    @handles(m.Keep)
    def keep(self, msg: m.Keep) -> m.Adopted:
        """Attach states to nodes that lack one, and give the others back."""
        presence, tier = self._presence, msg.tier
        free: list[PageList] = []
        attached: list[int] = []
        for state in msg.states:
            node, slot = state.node, state.slot
            record = self._records.get(node)
            if record is None:
                record = presence.record(state, msg.now, msg.priority)
            else:
                self._used(record, msg.now, msg.priority)
            if record.at[tier] is not None:
                free.append(slot)
            else:
                presence.attach(record, tier, slot)
                attached.append(node)
        return m.Adopted(b"".join(free), (), tuple(attached))

    @handles(m.SplitDone)
    def split_done(self, msg: m.SplitDone) -> None:
        """Follow a split of the tree: the state stays with the lower node."""
        record = self._records.get(msg.node)
        if record is not None:
            if self._presence.audit is not None:
                self._presence.audit.before(record)
            record.start = msg.at

    def _gone(self, nodes: list[int]) -> tuple[int, ...]:
        return ()

    @handles(Read)
    def read(self, msg: Read) -> Slice:
        """Mark and return the state that stands at the end of the range on L2."""
        record = self._records.get(msg.node)
        payload = None if record is None or record.end != msg.end else record.at[Tier.L2]
        if record is None or payload is None or payload.writer:
            return Slice(msg.end, b"")
        self._presence.read(record, Tier.L2, msg.op)
        return Slice(msg.end, payload.pages)


def _state_table(anchor: Record, receipts: tuple[Receipt, ...]) -> Locked:
    """Return where the state of a node is, or that L1 lacks it."""
    payload, end = anchor.at[0], anchor.end
    if payload is None:
        return Locked(receipts, end, end, b"", missing=(NodePages(anchor.id, 1),))
    if payload.writer:
        return Locked(receipts, end, end, b"", joins=(payload.writer,))
    return Locked(receipts, end, end, payload.pages)
