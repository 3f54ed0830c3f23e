"""One round of an audit over the records of a component, a few at a time, while they change.

As `tree_audit` does: what is about to change is noted first, so that the round proves the records and
the sums of the moment in which it began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ..spec import PAGE_ID_BYTES, PageList, Tier
from .audit_messages import Faults, LockedNode, ScannedRecords, ScanRecords
from .messages import ROOT

if TYPE_CHECKING:
    from .presence import Presence
    from .records import Record

_L2_KIDS: Final = 32
"""By how many bits a count of children on L2 is shifted, so that one number holds those of both tiers."""

_NOTHING = ScannedRecords(b"", b"", b"", (), frozenset(), ())


class _Seen(NamedTuple):
    """A record as it was; `arriving` are payloads whose pages are still being filled."""

    start: int
    end: int
    lock: int
    parent: int
    at: tuple[PageList | None, PageList | None]
    arriving: tuple[bool, bool]
    kids: int


class RecordAudit:
    """One round: `number` tells it from others, `last` is the highest id that a node has.

    Slices come in the order of ids.
    """

    def __init__(self, presence: Presence, number: int, last: int, *, snapshot: bool) -> None:
        self.number = number
        self._presence = presence
        self._records = presence.records
        self._base = presence.counts_children
        self._snapshot = snapshot
        self._last = last
        self._cursor = 0
        self._noted: dict[int, _Seen | None] = {}
        self._sums = _Sums(presence)
        # Children found less children counted: all zero in the end.
        self._missing: dict[int, int] = {}
        if self._base:
            on_l1, on_l2 = presence.records[ROOT].kids
            self._count(ROOT, -(on_l1 + (on_l2 << _L2_KIDS)))
        self._heard = 0
        self._answer = _NOTHING

    # -- what changes meanwhile -------------------------------------------------------------------

    def before(self, record: Record) -> None:
        """Note a record that is about to change, or to leave, unless it has been looked at."""
        id = record.id
        if self._cursor < id <= self._last and id not in self._noted:
            self._noted[id] = _seen(record)

    def before_run(self, anchor: Record, start: int) -> None:
        """Note the records from an anchor up to the one in which token `start` is."""
        cursor, last, noted = self._cursor, self._last, self._noted
        record = anchor
        while record.end > start:  # at the latest the root ends the way up
            id = record.id
            if cursor < id <= last and id not in noted:
                noted[id] = _seen(record)
            record = record.parent

    def before_record_of(self, id: int) -> None:
        """Note that a node has no record, which is about to get one."""
        if self._cursor < id <= self._last:
            self._noted.setdefault(id, None)

    # -- a slice --------------------------------------------------------------------------------------

    def scan(self, msg: ScanRecords) -> ScannedRecords:
        """Look at the next records."""
        if msg.number <= self._heard:
            return self._answer
        self._heard = msg.number
        records, noted, sums = self._records, self._noted, self._sums
        pages: tuple[list[PageList], list[PageList]] = ([], [])
        held = bytearray(len(msg.ids))
        locked: list[LockedNode] = []
        transfers: set[int] = set()
        faults: list[tuple[str, str]] = []
        for index, (id, start, end) in enumerate(zip(msg.ids, msg.starts, msg.ends, strict=True)):
            record = records.get(id)
            if record is not None:
                self._check_now(record, transfers, faults)
            seen = noted.pop(id) if id in noted else _seen(record)
            if seen is None:
                if not self._snapshot:
                    faults.append(("T2", f"node {id} has no record"))
                continue
            if (seen.start, seen.end) != (start, end):
                faults.append(("T2", f"node {id} has another extent here"))
            held[index] = self._weigh(id, seen, pages, faults)
            if seen.lock:
                locked.append(LockedNode(id, seen.lock, seen.parent, seen.start))
            sums.records += 1
        if msg.ids:
            self._cursor = msg.ids[-1]
        l1, l2 = map(b"".join, pages)
        self._answer = ScannedRecords(
            l1, l2, bytes(held), tuple(locked), frozenset(transfers), tuple(faults)
        )
        return self._answer

    def _check_now(
        self, record: Record, transfers: set[int], faults: list[tuple[str, str]]
    ) -> None:
        """Look at what must hold at any moment: payloads that may go are queued for that."""
        for tier, payload in enumerate(record.at):
            if payload is None:
                continue
            if payload.writer:
                transfers.add(payload.writer)
            transfers.update(payload.readers)
            if not payload.queued and self._presence.evictable(record, payload, tier):
                faults.append(("E1", f"node {record.id} may go and is not queued for eviction"))

    def _weigh(
        self,
        id: int,
        seen: _Seen,
        pages: tuple[list[PageList], list[PageList]],
        faults: list[tuple[str, str]],
    ) -> int:
        """Add a record to the sums; return on which tiers it holds something."""
        size = 1 if self._snapshot else (seen.end - seen.start) // self._presence.page_size
        sums, held, kids = self._sums, 0, 0
        for tier, payload in enumerate(seen.at):
            if payload is None:
                continue
            if len(payload) != size * PAGE_ID_BYTES:
                faults.append(("T7", f"node {id} holds {len(payload)} bytes"))
            pages[tier].append(payload)
            held |= 1 << tier
            kids += 1 << tier * _L2_KIDS
            sums.cached[tier] += size
            sums.payloads[tier] += 1
            sums.arriving[tier] += seen.arriving[tier]
            if seen.lock and tier == Tier.L1:
                sums.locked += size
        if self._base:
            self._count(seen.parent, kids)
            self._count(id, -seen.kids)
            if not (held or seen.lock):
                faults.append(("T4", f"node {id} holds FULL nowhere"))
            for tier, count in enumerate(_both(seen.kids)):
                if count and seen.at[tier] is None:
                    name = Tier(tier).name
                    law = "T5" if tier == Tier.L1 else "T6"
                    faults.append((law, f"a child of node {id} is on {name}, the node is not"))
        elif self._snapshot and not (held or seen.lock):
            faults.append(("T2", f"a record of node {id} for nothing"))
        return held

    def _count(self, parent: int, kids: int) -> None:
        missing = self._missing.get(parent, 0) + kids
        if missing:
            self._missing[parent] = missing
        else:
            self._missing.pop(parent, None)

    # -- the end --------------------------------------------------------------------------------------

    def end(self) -> Faults:
        """Compare what was counted with what the component says of itself."""
        faults = self._sums.faults()
        faults += [
            ("S9", f"node {parent} counts {_both(-missing)} children more than it has")
            for parent, missing in self._missing.items()
        ]
        return tuple(faults)


class _Sums:
    """What a component said of itself when the round began, and what is counted."""

    def __init__(self, presence: Presence) -> None:
        self._said = {
            "cached pages": tuple(presence.cached),
            "payloads": tuple(presence.payloads),
            "arriving payloads": tuple(presence.arriving),
            "locked pages": presence.locked,
            "records": len(presence.records) - 1,  # but for the root's
        }
        self.cached = [0, 0]
        self.payloads = [0, 0]
        self.arriving = [0, 0]
        self.locked = 0
        self.records = 0

    def faults(self) -> list[tuple[str, str]]:
        """Return where the two differ."""
        counted = (
            tuple(self.cached),
            tuple(self.payloads),
            tuple(self.arriving),
            self.locked,
            self.records,
        )
        return [
            ("S8", f"{said} {what} by the ledger, {found} counted")
            for (what, said), found in zip(self._said.items(), counted, strict=True)
            if said != found
        ]


def _seen(record: Record | None) -> _Seen | None:
    if record is None:
        return None
    l1, l2 = record.at
    on_l1, on_l2 = record.kids
    return _Seen(
        record.start,
        record.end,
        record.lock,
        record.parent.id,
        (None if l1 is None else l1.pages, None if l2 is None else l2.pages),
        (l1 is not None and l1.writer > 0, l2 is not None and l2.writer > 0),
        on_l1 + (on_l2 << _L2_KIDS),
    )


def _both(kids: int) -> tuple[int, int]:
    """Return the counts of L1 and L2 that one number holds; each may be below zero."""
    half = 1 << (_L2_KIDS - 1)
    l1 = (kids + half) % (1 << _L2_KIDS) - half
    return l1, (kids - l1) >> _L2_KIDS
