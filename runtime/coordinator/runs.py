"""Runs: pages together with the token range that they hold, so that none can slip to another place."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ...errors import IntegrityError
from ...spec import PAGE_ID_BYTES
from ...tiers.store.messages import StoreItem


class Run(msgspec.Struct, frozen=True, gc=False):
    """The pages of tokens [start, end) of one component, in order, without a gap."""

    start: int
    end: int
    pages: bytes


def joined(items: Iterable[StoreItem], page: int) -> list[Run]:
    """Join the objects of one paged component where one ends at the token at which the next begins.

    Raises `IntegrityError` where pages and range of an object differ, or two objects overlap.
    """
    runs: list[list[StoreItem]] = []
    for item in sorted(items, key=lambda item: item.start):
        if len(item.pages) != (item.end - item.start) // page * PAGE_ID_BYTES:
            raise IntegrityError(
                f"{item.component}: {len(item.pages)} bytes of page ids for tokens "
                f"[{item.start}, {item.end})"
            )
        last = runs[-1][-1].end if runs else -1
        if item.start < last:
            raise IntegrityError(f"{item.component}: two objects hold token {item.start}")
        if item.start == last:
            runs[-1].append(item)
        else:
            runs.append([item])
    return [Run(run[0].start, run[-1].end, b"".join(item.pages for item in run)) for run in runs]
