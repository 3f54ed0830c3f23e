"""What a component keeps for one node: a record, and a payload for each tier that holds one."""

from __future__ import annotations

import msgspec

from ..spec import PAGE_ID_BYTES, PageList
from .messages import ROOT

NO_KIDS = [0, 0]
"""The counts of all records that count no children: one list for thousands, never changed."""


class Payload(msgspec.Struct, eq=False, gc=False):
    """Pages that one node holds on one tier.

    `writer` is the operation that still fills them (0: present); `readers` are operations that copy
    from them. `queued` says that the eviction index knows the payload.
    """

    pages: PageList
    writer: int = 0
    readers: tuple[int, ...] = ()
    queued: bool = False


class Record:
    """One node in one component: extent, locks, recency, and a payload (or None) per tier.

    `kids` counts, per tier, the children whose payload is held there: what makes a leaf a leaf
    without looking for children. Only the base component counts, the others share one NO_KIDS.
    `stamp` and `previous` are the last two uses on the cache's logical clock, `born` the first,
    `hits` the uses. The root is its own parent, so that walks up end at it; it is also the parent of
    every record of a snapshot component, which needs none.
    """

    __slots__ = (
        "at",
        "born",
        "end",
        "hits",
        "id",
        "kids",
        "lock",
        "parent",
        "previous",
        "priority",
        "stamp",
        "start",
    )

    def __init__(  # noqa: PLR0917 - made several times a turn: keywords would cost as much as it
        self,
        id: int,
        parent: Record | None,
        start: int,
        end: int,
        now: int,
        priority: int,
        kids: list[int],
    ) -> None:
        self.id = id
        self.parent = self if parent is None else parent
        self.start = start
        self.end = end
        self.at: list[Payload | None] = [None, None]
        self.kids = kids
        self.lock = self.previous = self.hits = 0
        self.stamp = self.born = now
        self.priority = priority

    def split(self, upper_id: int, at: int, page_size: int) -> Record:
        """Put a new record above this one that takes its head; pages, locks and age go to both."""
        kids = NO_KIDS if self.kids is NO_KIDS else [0, 0]
        upper = Record(upper_id, self.parent, self.start, at, self.born, self.priority, kids)
        upper.stamp, upper.previous, upper.hits = self.stamp, self.previous, self.hits
        self.parent = upper
        self.start = at
        upper.lock = self.lock
        cut = (at - upper.start) // page_size * PAGE_ID_BYTES
        for tier, payload in enumerate(self.at):
            if payload is not None:
                head = Payload(payload.pages[:cut], payload.writer)
                head.readers = payload.readers
                payload.pages = payload.pages[cut:]
                upper.at[tier] = head
                if kids is not NO_KIDS:
                    kids[tier] = 1
        return upper


def root_record() -> Record:
    """Make the record that stands above every namespace: empty, held by nobody, never evicted."""
    return Record(ROOT, None, 0, 0, 0, 0, [0, 0])
