"""Page tables: where the payload of a coverage is on L1, in the order of its tokens."""

from __future__ import annotations

from ..spec import PAGE_ID_BYTES, PageList
from .contract import TreeComponent
from .messages import Locked, NodePages, Receipt
from .records import Payload, Record

_NO_PAGE = b"\xff\xff\xff\xff"


def page_table(
    rule: TreeComponent, anchor: Record, receipts: tuple[Receipt, ...], low: Record
) -> Locked:
    """Return the table of a paged coverage, or what of it L1 lacks; `low` is its lowest node."""
    missing: list[NodePages] = []
    joins: list[int] = []
    page, position = rule.page_size, anchor.end
    parts: list[PageList] = []
    record = anchor
    for start, end in reversed(rule.need(anchor.end)):
        low_page, high_page = start // page * page, min(-(-end // page) * page, position)
        if low_page >= high_page:  # all its pages are those of the range above
            continue
        parts.append(_NO_PAGE * ((position - high_page) // page))
        while record.start >= high_page:
            record = record.parent
        while True:
            payload = record.at[0]
            if payload is None:
                lacks = NodePages(record.id, (record.end - record.start) // page)
                if not missing or missing[-1] != lacks:  # two ranges may touch one node
                    missing.append(lacks)
            elif payload.writer:
                joins.append(payload.writer)
            elif record.start >= low_page and record.end <= high_page:
                parts.append(payload.pages)
            else:
                parts.append(pages_between(record, payload, low_page, high_page, page))
            if record.start <= low_page:
                break
            record = record.parent
        position = low_page
    if missing or joins:
        return Locked(receipts, low.end, position, b"", tuple(missing), tuple(joins))
    parts.reverse()
    return Locked(receipts, low.end, position, b"".join(parts))


def pages_between(
    record: Record, payload: Payload, start: int, end: int, page_size: int
) -> PageList:
    """Return the pages of a node's payload for what of the tokens from start to end is its own."""
    first = max(0, start - record.start) // page_size
    last = (min(end, record.end) - record.start) // page_size
    return payload.pages[first * PAGE_ID_BYTES : last * PAGE_ID_BYTES]
