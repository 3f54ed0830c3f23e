"""Which nodes hold payload on which tier: records, ledgers, marks of operations, eviction indexes.

The part of a component's bookkeeping that every handler shares. All of it is plain state of one
actor; nothing here waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

import msgspec

from ..errors import IntegrityError
from ..spec import PAGE_ID_BYTES, PageList, Tier
from .eviction import EvictionIndex
from .messages import ROOT
from .move_messages import Freed, Late, Pending
from .policies import Key
from .record_audit import RecordAudit
from .records import Payload, Record, root_record

_L1: Final = Tier.L1
_NOWHERE = [None, None]


class Withdrawal(msgspec.Struct, eq=False):
    """What leaves nodes on one tier in one step; `Presence.freed` counts it.

    `busy` pages are still being copied, `kept` ones stay on the other tier.
    """

    free: list[PageList] = []
    pending: list[Pending] = []
    nodes: list[int] = []
    gone: list[int] = []
    busy: int = 0
    kept: int = 0


class Presence(ABC):
    """Own the records of one component. `cached` and `locked` count pages, `payloads` payloads.

    Nobody else changes these sums, a payload's place, or what the eviction indexes hold. The two kinds
    of payload differ in the hooks, which follow what has changed. `audit` hears of every record before it
    changes, while a round runs.
    """

    counts_children = False
    """Whether records count the children that hold payload."""

    def __init__(self, page_size: int, key: Key) -> None:
        self.page_size = page_size
        self.records: dict[int, Record] = {ROOT: root_record()}
        self.indexes = (EvictionIndex(Tier.L1, key), EvictionIndex(Tier.L2, key))
        self.cached = [0, 0]
        self.payloads = [0, 0]
        self.arriving = [0, 0]
        self.locked = 0
        self.audit: RecordAudit | None = None
        self._ops: dict[int, list[Record]] = {}
        self._shared: list[tuple[int, set[int], PageList]] = []

    @abstractmethod
    def _gained(self, record: Record, tier: int) -> None:
        """Follow a payload that a node has got."""

    @abstractmethod
    def _lost(self, record: Record, tier: int) -> None:
        """Follow a payload that has left its node."""

    @abstractmethod
    def _bare(self, record: Record) -> None:
        """Follow the last lock of a node that has nothing on L1."""

    # -- presence ---------------------------------------------------------------------------------

    @staticmethod
    def evictable(record: Record, payload: Payload, tier: int) -> bool:
        """Say whether a payload may go: complete, unlocked (L1), and for FULL a leaf."""
        return not (payload.writer or record.kids[tier] or (record.lock and tier == _L1))

    def requeue(self, record: Record, tier: int) -> None:
        """Let the eviction index know a payload that may go."""
        payload = record.at[tier]
        if payload is not None and not payload.queued and self.evictable(record, payload, tier):
            self.indexes[tier].add(record, payload)

    def attach(self, record: Record, tier: int, pages: PageList, writer: int = 0) -> None:
        """Give a node a payload that it lacks: present, and queued if it may go, or arriving."""
        if record.at[tier] is not None:
            raise IntegrityError(f"node {record.id} has a payload on {Tier(tier).name} already")
        if self.audit is not None:
            self.audit.before(record)
        record.at[tier] = Payload(pages, writer)
        count = len(pages) // PAGE_ID_BYTES
        self.cached[tier] += count
        self.payloads[tier] += 1
        if writer:
            self.arriving[tier] += 1
        if record.lock and tier == _L1:
            self.locked += count
        self._gained(record, tier)
        self.requeue(record, tier)

    def withdraw(self, record: Record, tier: int, out: Withdrawal) -> None:
        """Take a payload from its node; what is taken in one step counts when `freed` does."""
        at = record.at
        payload = at[tier]
        if payload is None:
            raise IntegrityError(f"node {record.id} has no payload on {Tier(tier).name}")
        if self.audit is not None:
            self.audit.before(record)
        at[tier] = None
        if payload.queued:
            self.indexes[tier].gone()
        if record.lock and tier == _L1:
            self.locked -= len(payload.pages) // PAGE_ID_BYTES
        if payload.writer or payload.readers:
            self._part(payload, tier, out)
        else:
            out.free.append(payload.pages)
        out.nodes.append(record.id)
        if at[1 - tier] is not None:
            out.kept += len(payload.pages) // PAGE_ID_BYTES
        else:
            out.gone.append(record.id)
        self._lost(record, tier)

    def _part(self, payload: Payload, tier: int, out: Withdrawal) -> None:
        """Part with pages that are being copied.

        Those that one operation still reads or writes become pending under it; under several, they
        stay here until the last is over.
        """
        pages, readers = payload.pages, payload.readers
        out.busy += len(pages) // PAGE_ID_BYTES
        if payload.writer:
            self.arriving[tier] -= 1
            out.pending.append(Pending(payload.writer, pages))
        elif len(readers) == 1:
            out.pending.append(Pending(readers[0], pages))
        else:
            self._shared.append((tier, set(readers), pages))

    def freed(self, out: Withdrawal, tier: int, unusable: tuple[int, ...] = ()) -> Freed:
        """Count what was withdrawn on a tier, and return it."""
        free = b"".join(out.free)
        pages = len(free) // PAGE_ID_BYTES + out.busy
        self.cached[tier] -= pages
        self.payloads[tier] -= len(out.nodes)
        return Freed(
            free,
            tuple(out.pending),
            tuple(out.nodes),
            tuple(out.gone),
            pages,
            pages - out.kept,
            unusable,
        )

    def forget(self, nodes: Iterable[int]) -> None:
        """Delete the records of nodes that leave the tree, where there are any."""
        records = self.records
        for node in nodes:
            record = records.get(node)
            if record is None:
                continue  # no state stands there
            if record.lock or record.at != _NOWHERE:
                raise IntegrityError(f"node {node} is locked or held and cannot leave the tree")
            if self.audit is not None:
                self.audit.before(record)
            del records[node]

    # -- locks ------------------------------------------------------------------------------------

    def lock(self, record: Record) -> None:
        """Add one lock."""
        if self.audit is not None:
            self.audit.before(record)
        if not record.lock:
            payload = record.at[0]
            if payload is not None:
                self.locked += len(payload.pages) // PAGE_ID_BYTES
        record.lock += 1

    def unlock(self, record: Record) -> None:
        """Take one lock away; the payload may be evictable then."""
        if self.audit is not None:
            self.audit.before(record)
        record.lock -= 1
        if record.lock > 0:
            return
        self.check_locked(record)
        payload = record.at[0]
        if payload is None:
            self._bare(record)
        else:
            self.locked -= len(payload.pages) // PAGE_ID_BYTES
            self.requeue(record, _L1)

    @staticmethod
    def check_locked(record: Record) -> None:
        """Raise IntegrityError where a lock was taken away that was never there, and restore that."""
        if record.lock < 0:
            record.lock += 1
            raise IntegrityError(f"node {record.id} is unlocked more often than it was locked")

    # -- operations between tiers -------------------------------------------------------------------

    def mark(self, record: Record, op: int) -> None:
        """Note that `op` has to do with this record's payloads, so that its end finds it."""
        self._ops.setdefault(op, []).append(record)

    def arrive(self, record: Record, tier: int, pages: PageList, op: int) -> PageList:
        """Start to fill a node from its payload on the other tier; return the source pages."""
        source = record.at[1 - tier]
        if source is None or source.writer:
            raise IntegrityError(f"node {record.id} has nothing to fill {Tier(tier).name} from")
        source.readers += (op,)
        self.attach(record, tier, pages, op)
        self.mark(record, op)
        return source.pages

    def read(self, record: Record, tier: int, op: int) -> None:
        """Mark a payload as read by `op`."""
        payload = record.at[tier]
        if payload is None or payload.writer:
            raise IntegrityError(f"node {record.id} has nothing to read on {Tier(tier).name}")
        if op not in payload.readers:
            payload.readers += (op,)
            self.mark(record, op)

    def moved(self, op: int, *, ok: bool) -> Freed:
        """End an operation: its arrivals are present or withdrawn, its marks are gone.

        `nodes` of what it returns are those whose arrival ended, either way.
        """
        out = Withdrawal()
        arrived: list[int] = []
        filled = 0
        for record in self._ops.pop(op, ()):
            if self.audit is not None:
                self.audit.before(record)
            for tier, payload in enumerate(record.at):
                if payload is None:
                    continue
                if op in payload.readers:
                    payload.readers = tuple(reader for reader in payload.readers if reader != op)
                if payload.writer == op:
                    payload.writer = 0
                    self.arriving[tier] -= 1
                    if ok:
                        arrived.append(record.id)
                        self.requeue(record, tier)
                    else:
                        filled = tier  # an operation fills one tier
                        self.withdraw(record, tier, out)
        freed = self.freed(out, filled)
        late = self._last_user(op) if self._shared else ()
        return msgspec.structs.replace(freed, nodes=(*freed.nodes, *arrived), late=late)

    def _last_user(self, op: int) -> tuple[Late, ...]:
        """Take an operation from the users of shared pages; return those that nobody uses any more."""
        for _, users, _ in self._shared:
            users.discard(op)
        late = tuple(Late(Tier(tier), pages) for tier, users, pages in self._shared if not users)
        self._shared = [entry for entry in self._shared if entry[1]]
        return late

    def shared(self, tier: int) -> PageList:
        """Return the pages that several operations still read after their node let them go."""
        return b"".join(pages for at, _, pages in self._shared if at == tier)
