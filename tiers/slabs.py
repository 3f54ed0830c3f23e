"""Elastic pools: components that share one arena by slabs.

A slab belongs to one component while any page of it is in use, and to nobody else. Each component
can always get its reserved number of slabs; the rest float, first come first served.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator

import numpy as np

from ..errors import IntegrityError
from .allocator import INT32, negative, not_owned
from .messages import PageList


class SlabSpace:
    """The slabs of one arena: who may claim one, and which are nobody's.

    The lowest free slab goes first, so that the high end of the arena stays untouched (and its memory
    unmapped) while the load is small.
    """

    def __init__(self, slabs: int, slab_bytes: int) -> None:
        self.slab_bytes = slab_bytes
        self._common = list(range(slabs))
        self._promised = 0  # slabs that pools below their reserve may still claim

    def enrol(self, reserved: int) -> None:
        """Promise `reserved` slabs to a new pool."""
        self._promised += reserved

    def claimable(self, held: int, reserved: int) -> int:
        """Count the slabs that a pool which holds `held` of them could claim now."""
        own = max(0, reserved - held)
        return len(self._common) - (self._promised - own)

    def claim(self, held: int, reserved: int) -> int:
        """Give a slab to a pool that holds `held`; `claimable` must have said that there is one."""
        if held < reserved:
            self._promised -= 1
        return heapq.heappop(self._common)

    def give_back(self, slab: int, held: int, reserved: int) -> None:
        """Take back a slab of a pool that holds `held` with it."""
        if held <= reserved:
            self._promised += 1
        heapq.heappush(self._common, slab)


class _Slab:
    """The free pages of one slab: a stack of freed ones, then those never used in this tenure."""

    __slots__ = ("end", "freed", "fresh")

    def __init__(self, first: int, pages: int) -> None:
        self.fresh = first
        self.end = first + pages
        self.freed: array[int] = array("i")

    def __len__(self) -> int:
        return self.end - self.fresh + len(self.freed)

    def take_into(self, out: array[int], count: int) -> None:
        again = min(count, len(self.freed))
        if again:
            out.extend(self.freed[-again:])
            del self.freed[-again:]
        new = count - again
        if new:
            out.frombytes(np.arange(self.fresh, self.fresh + new, dtype=np.int32).tobytes())
            self.fresh += new


class SlabPool:
    """A `PagePool` that grows and shrinks by whole slabs of a `SlabSpace`.

    Pages come from the lowest slab that has a free one, so that the higher ones empty out and go
    back. `available` counts what the shared space could give to this pool alone: pools that draw on
    the same floating slabs see the same ones.
    """

    def __init__(
        self, space: SlabSpace, component: str, page_bytes: int, slab_pages: int, reserved: int
    ) -> None:
        self.component = component
        self.page_bytes = page_bytes
        self.slab_pages = slab_pages
        self.reserved = reserved
        self.owned = 0
        self.quarantined = 0
        self._space = space
        self._slabs: dict[int, _Slab] = {}
        self._open: list[int] = []  # sorted: our slabs that have a free page
        self._free = 0  # free pages in our slabs
        space.enrol(reserved)

    @property
    def slabs(self) -> int:
        """Count the slabs that this pool holds now."""
        return len(self._slabs)

    def available(self) -> int:
        """See `PagePool`; includes the slabs that this pool could still claim."""
        return self._free + self.slab_pages * self._space.claimable(len(self._slabs), self.reserved)

    def take(self, count: int) -> PageList | None:
        """See `PagePool`: O(count)."""
        if count > self._free:
            if count > self.available():
                return None
            while self._free < count:
                self._claim()
        elif count < 0:
            raise negative(self.component, count)
        pages: array[int] = array("i")
        missing = count
        while missing:
            index = self._open[0]
            slab = self._slabs[index]
            part = min(missing, len(slab))
            slab.take_into(pages, part)
            missing -= part
            if not slab:
                del self._open[0]
        self._free -= count
        self.owned += count
        return pages.tobytes()

    def disown(self, pages: PageList) -> int:
        """See `PagePool`: O(1); also refuses a list whose first page is in a slab of others."""
        size = len(pages)
        count = size // INT32
        if size % INT32 or count > self.owned:
            raise not_owned(self.component, pages, self.owned)
        if count and self._slab_of(int.from_bytes(pages[:INT32], "little")) not in self._slabs:
            raise not_owned(self.component, pages, self.owned)
        self.owned -= count
        return count

    def put(self, pages: PageList) -> None:
        """See `PagePool`: O(pages log pages) where they are of several slabs, else O(pages).

        Raises `IntegrityError` when a slab is not ours or would hold more pages than it has: a page
        was freed twice, or never was ours.
        """
        for index, part in self._by_slab(array("i", pages)):
            slab = self._slabs.get(index)
            if slab is None or len(slab) + len(part) > self.slab_pages:
                raise IntegrityError(
                    f"pool {self.component!r}: pages freed in slab {index} have no owner there"
                )
            if not slab:
                insort(self._open, index)
            slab.freed.extend(part)
            self._free += len(part)
            if len(slab) == self.slab_pages:
                self._give_back(index)

    def free_pages(self) -> PageList:
        """See `PagePool`: the free pages of our slabs; those of unclaimed slabs are nobody's."""
        pages: array[int] = array("i")
        for index in self._open:
            slab = self._slabs[index]
            pages.extend(slab.freed)
            pages.extend(range(slab.fresh, slab.end))
        return pages.tobytes()

    def _by_slab(self, pages: array[int]) -> Iterator[tuple[int, array[int]]]:
        """Split pages by slab; nearly always they are all of one, which costs no sorting."""
        if not pages:
            return
        low = self._slab_of(min(pages))
        if low == self._slab_of(max(pages)):
            yield low, pages
            return
        ids = np.frombuffer(pages, dtype=np.int32)
        slabs = ids.astype(np.int64) * self.page_bytes // self._space.slab_bytes
        order = np.argsort(slabs, kind="stable")
        cuts = np.flatnonzero(np.diff(slabs[order])) + 1
        for part in np.split(order, cuts):
            yield int(slabs[part[0]]), array("i", ids[part].tobytes())

    def _slab_of(self, page: int) -> int:
        return page * self.page_bytes // self._space.slab_bytes

    def _claim(self) -> None:
        index = self._space.claim(len(self._slabs), self.reserved)
        first = -(-index * self._space.slab_bytes // self.page_bytes)
        self._slabs[index] = _Slab(first, self.slab_pages)
        insort(self._open, index)
        self._free += self.slab_pages

    def _give_back(self, index: int) -> None:
        self._space.give_back(index, len(self._slabs), self.reserved)
        del self._slabs[index]
        del self._open[bisect_left(self._open, index)]
        self._free -= self.slab_pages
