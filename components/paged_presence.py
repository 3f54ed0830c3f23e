"""Presence of paged payloads: one slice a node, locked along paths and cut by splits."""

from __future__ import annotations

from typing import Final

from ..errors import IntegrityError
from ..spec import PAGE_ID_BYTES, PageList, Tier
from .messages import Grow, Receipt
from .policies import Key
from .presence import Presence
from .records import NO_KIDS, Payload, Record

_L1: Final = Tier.L1


class PagedPresence(Presence):
    """Own a record for every node of the tree: coverage and locks run over nodes without payload too.

    Of the `base` component each node counts its children's payloads, so that leaves go first.
    """

    def __init__(self, page_size: int, key: Key, *, base: bool) -> None:
        super().__init__(page_size, key)
        self.base = self.counts_children = base

    def _gained(self, record: Record, tier: int) -> None:
        if self.base:
            if self.audit is not None:
                self.audit.before(record.parent)
            record.parent.kids[tier] += 1

    def _lost(self, record: Record, tier: int) -> None:
        if self.base:
            if self.audit is not None:
                self.audit.before(record.parent)
            kids = record.parent.kids
            left = kids[tier] = kids[tier] - 1
            if not left:  # its last child is gone: the parent is a leaf, which may go next
                self.requeue(record.parent, tier)

    def _bare(self, record: Record) -> None:
        """Keep the record: the node is still in the tree."""

    def grow(self, msg: Grow, parent: Record, locked_from: int) -> tuple[Record, Record]:
        """Record new nodes with the payload that comes with them, locked behind a position.

        Returns the last of them, and the lowest that is locked: the parent where none is.
        """
        records, base, tier, page = self.records, self.base, msg.tier, self.page_size
        own, pages, now, priority = msg.own, msg.pages, msg.now, msg.priority
        if self.audit is not None:
            self.audit.before(parent)
        above = low = parent
        start = parent.end
        used = payloads = locked = 0
        for node, end in zip(msg.path, msg.ends, strict=True):
            kids = [0, 0] if base else NO_KIDS
            record = records[node] = Record(node, above, start, end, now, priority, kids)
            if end > locked_from:
                record.lock = 1
                if low is parent:
                    low = record
            if end > own:
                if start < own:
                    raise IntegrityError(f"node {node} was not cut where own pages start: {own}")
                size = (end - start) // page * PAGE_ID_BYTES
                payload = record.at[tier] = Payload(pages[used : used + size])
                used += size
                payloads += 1
                if base:
                    above.kids[tier] += 1
                if record.lock:  # which is for L1 only
                    locked += size
                else:  # it has no children yet: if it gets some, the index passes over it
                    self.indexes[tier].add(record, payload)
            above, start = record, end
        if used != len(pages):
            raise IntegrityError(f"{len(pages)} bytes of page ids for nodes that take {used}")
        self.cached[tier] += used // PAGE_ID_BYTES
        self.payloads[tier] += payloads
        self.locked += locked // PAGE_ID_BYTES
        return above, low

    # -- locks ------------------------------------------------------------------------------------

    def lock_run(
        self, anchor: Record, start: int, now: int
    ) -> tuple[Record, list[PageList] | None]:
        """Lock and touch the nodes from the anchor up to the one in which token `start` is.

        Returns that node and the pages of all of them, bottom first: None unless all are on L1.
        """
        if self.audit is not None:
            self.audit.before_run(anchor, start)
        parts: list[PageList] = []
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
        self.locked += (anchor.end - record.start - before) // self.page_size
        return record, parts if whole else None

    def unlock_run(self, held: Receipt) -> None:
        """Take one lock from each node that a receipt tells of."""
        start, record = held.start, self.records[held.anchor]
        if self.audit is not None:
            self.audit.before_run(record, start)
        free = record.end - start  # tokens that nobody locks now, but for what the loop finds
        while record.end > start:  # at the latest the root ends the way up
            lock = record.lock = record.lock - 1
            if not lock:
                payload = record.at[0]
                if payload is None:
                    free -= record.end - record.start
                elif not (record.kids[0] or payload.queued or payload.writer):  # as in `requeue`
                    self.indexes[0].add(record, payload)
            else:
                if lock < 0:
                    self.check_locked(record)
                free -= record.end - record.start
            record = record.parent
        self.locked -= free // self.page_size

    # -- splits -----------------------------------------------------------------------------------

    def split(self, record: Record, upper_id: int, at: int) -> None:
        """Make two nodes of one, as if it had always been two."""
        if self.audit is not None:
            self.audit.before(record)
        upper = record.split(upper_id, at, self.page_size)
        self.records[upper_id] = upper
        for tier, payload in enumerate(upper.at):
            if payload is None:
                continue
            self.payloads[tier] += 1
            if payload.writer:
                self.arriving[tier] += 1
            for op in (payload.writer, *payload.readers):
                if op:
                    self._ops[op].append(upper)
            self.requeue(upper, tier)
