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

from ..spec import PAGE_ID_BYTES, PageList
from .allocator import negative
from .owners import Owners


class SlabSpace:
    """The slabs of one arena: who may claim one, and which are nobody's.

    The lowest free slab goes first, so that the high end of the arena stays untouched (and its memory
    unmapped) while the load is small.
    """

    def __init__(self, slabs: int, slab_bytes: int) -> None:
        self.slabs = slabs
        self.slab_bytes = slab_bytes
        self.nbytes = slabs * slab_bytes
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

    def take(self, count: int) -> PageList:
        """Give `count` pages, or all that are left."""
        freed = self.freed
        left = len(freed) - count
        if left >= 0:
            pages = freed[left:].tobytes()
            del freed[left:]
            return pages
        pages = freed.tobytes()
        del freed[:]
        first = self.fresh
        self.fresh = min(self.end, first - left)
        return pages + np.arange(first, self.fresh, dtype=np.int32).tobytes()

    def free_pages(self) -> PageList:
        """List what `take` could give."""
        return self.freed.tobytes() + np.arange(self.fresh, self.end, dtype=np.int32).tobytes()


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
        self.quarantined = 0
        self._space = space
        self.owners = Owners(component, space.nbytes // page_bytes)
        self._slabs: dict[int, _Slab] = {}
        self._open: list[int] = []  # sorted: our slabs that have a free page
        self._free = 0  # free pages in our slabs
        space.enrol(reserved)

    @property
    def slabs(self) -> int:
        """Count the slabs that this pool holds now."""
        return len(self._slabs)

    @property
    def owned(self) -> int:
        """See `PagePool`."""
        return len(self._slabs) * self.slab_pages - self._free - self.quarantined

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
        parts: list[PageList] = []
        missing = count
        while missing:
            slab = self._slabs[self._open[0]]
            part = slab.take(missing)
            parts.append(part)
            missing -= len(part) // PAGE_ID_BYTES
            if not slab:
                del self._open[0]
        self._free -= count
        pages = b"".join(parts)
        self.owners.add(pages)
        return pages

    def put(self, pages: PageList) -> None:
        """See `PagePool`: O(pages); fastest where pages of one slab stand together."""
        for index, part in self._by_slab(pages):
            slab = self._slabs[index]
            if not slab:
                insort(self._open, index)
            slab.freed.frombytes(part)
            self._free += len(part) // PAGE_ID_BYTES
            if len(slab) == self.slab_pages:
                self._give_back(index)

    def free_pages(self) -> PageList:
        """See `PagePool`: the free pages of our slabs; those of unclaimed slabs are nobody's."""
        return b"".join([self._slabs[index].free_pages() for index in self._open])

    def free_part(self, part: int, size: int) -> PageList | None:
        """See `PagePool`: a part is some slabs of the arena, of which the pool may hold any."""
        slabs = max(1, size // self.slab_pages)
        first = part * slabs
        if first >= self._space.slabs:
            return None
        held = (self._slabs.get(index) for index in range(first, first + slabs))
        return b"".join([slab.free_pages() for slab in held if slab is not None])

    def _by_slab(self, pages: PageList) -> Iterator[tuple[int, PageList]]:
        """Cut a list where the slab changes: seldom, as pages are given out slab by slab."""
        if len(pages) <= PAGE_ID_BYTES:
            if pages:
                yield self._slab_of(int.from_bytes(pages, "little")), pages
            return
        ids = np.frombuffer(pages, dtype=np.int32)
        slabs = ids.astype(np.int64) * self.page_bytes // self._space.slab_bytes
        start = 0
        for end in (*(np.flatnonzero(slabs[1:] != slabs[:-1]) + 1).tolist(), len(ids)):
            yield int(slabs[start]), pages[start * PAGE_ID_BYTES : end * PAGE_ID_BYTES]
            start = end

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
