"""Page bookkeeping of one pool: which ids are free, and which have an owner.

Two kinds of pool answer to `PagePool`: one of a fixed number of pages (here, L1) and one that grows
and shrinks by slabs of a shared arena (`slabs.py`, L2). Neither copies, waits or knows of operations:
quarantine is the tier's business (`tier.py`).
"""

from __future__ import annotations

from array import array
from typing import Protocol

import numpy as np

from ..errors import ConfigError
from ..spec import PageList
from .owners import Owners


class PagePool(Protocol):
    """The pages of one component on one tier. A page is free, owned or quarantined.

    The tier moves pages in this order: `take` (free to owned), `owners.remove` (owned to the caller's
    hands), then `put` (to free), perhaps after a time in quarantine, which the tier counts in
    `quarantined`.
    """

    component: str
    owners: Owners
    page_bytes: int
    quarantined: int

    @property
    def owned(self) -> int:
        """Count the pages that are neither free nor quarantined."""
        ...

    def available(self) -> int:
        """Count the pages that `take` could give now."""
        ...

    def take(self, count: int) -> PageList | None:
        """Give `count` pages to an owner; None, and nothing changed, when there are too few.

        Raises `ConfigError` for a negative count.
        """
        ...

    def put(self, pages: PageList) -> None:
        """Make pages free that have no owner any more."""
        ...

    def free_pages(self) -> PageList:
        """List the free pages that belong to this pool now, in no order: for `check()`."""
        ...

    def free_part(self, part: int, size: int) -> PageList | None:
        """List a part of the free pages; None behind the last. O(size), or O(pages of a slab).

        A page that stays free is in the same part whatever others do, and in no other.
        """
        ...


class FixedPool:
    """A `PagePool` of the ids 0 to capacity - 1.

    The free list is a stack of ids: what was freed last is taken first and in the order in which it
    was freed, so that runs of consecutive ids stay together and their bytes are warm.
    """

    __slots__ = ("_free", "capacity", "component", "owners", "page_bytes", "quarantined")

    def __init__(self, component: str, capacity: int, page_bytes: int) -> None:
        self.component = component
        self.capacity = capacity
        self.page_bytes = page_bytes
        self.quarantined = 0
        self._free = array("i", range(capacity))
        self.owners = Owners(component, capacity)

    @property
    def owned(self) -> int:
        """See `PagePool`."""
        return self.capacity - len(self._free) - self.quarantined

    def available(self) -> int:
        """See `PagePool`."""
        return len(self._free)

    def take(self, count: int) -> PageList | None:
        """See `PagePool`: O(count)."""
        free = self._free
        left = len(free) - count
        if left < 0:
            return None
        if count <= 0:
            if count:
                raise negative(self.component, count)
            return b""
        pages = free[left:].tobytes()
        del free[left:]
        self.owners.add(pages)
        return pages

    def put(self, pages: PageList) -> None:
        """See `PagePool`: O(pages)."""
        self._free.frombytes(pages)

    def give(self, pages: PageList) -> None:
        """Give these pages to owners, and no others; the pool must have given none out. O(capacity)."""
        free = np.ones(self.capacity, dtype=bool)
        free[np.frombuffer(pages, dtype="<u4")] = False
        self._free = array("i", np.flatnonzero(free).astype("<i4").tobytes())
        self.owners.add(pages)

    def free_pages(self) -> PageList:
        """See `PagePool`."""
        return self._free.tobytes()

    def free_part(self, part: int, size: int) -> PageList | None:
        """See `PagePool`: the list is a stack, where what stays free keeps its place."""
        first = part * size
        return self._free[first : first + size].tobytes() if first < len(self._free) else None


def negative(component: str, count: int) -> ConfigError:
    """Say that somebody asked for fewer than no pages."""
    return ConfigError(f"pool {component!r}: asked for {count} pages")
