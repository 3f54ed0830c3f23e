"""One round of an audit over the pages of a tier: each has one owner, and who has none is free.

Owners are counted as they were when the round began: that is the sender's business. What the tier
itself says of a page is looked at later, and only of pages that it has not given out or taken back
since: these are noted as they go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from ..errors import IntegrityError
from ..spec import PAGE_ID_BYTES, PageList
from .allocator import PagePool
from .audit_messages import CountPages, Faults, JudgePages

_PART = 1 << 14
"""Pages that one slice judges at most."""

_NAMED = 5
"""Pages that one finding names at most."""

_UNFOLDED = 256
"""Lists of changed pages that are marked in one go."""


class PageAudit:
    """One round over all pools of a tier: `number` tells it from others."""

    def __init__(self, number: int, pools: Mapping[str, PagePool]) -> None:
        self.number = number
        self._pools = {name: _PoolAudit(pool) for name, pool in pools.items()}
        self._work = self._judging()
        self._heard = 0
        self._answer: Faults | None = ()

    def changed(self, component: str, pages: PageList) -> None:
        """Note pages that were given out or taken back."""
        self._pools[component].changed(pages)

    def count(self, msg: CountPages) -> Faults:
        """Count owners."""
        if msg.number > self._heard:
            self._heard = msg.number
            self._answer = tuple(
                fault for name, pages in msg.items for fault in self._pools[name].count(pages)
            )
        return self._answer or ()

    def judge(self, msg: JudgePages) -> Faults | None:
        """Judge some more pages; None where all are judged."""
        if msg.number > self._heard:
            self._heard = msg.number
            self._answer = next(self._work, None)
        return self._answer

    def _judging(self) -> Iterator[Faults]:
        for pool in self._pools.values():
            yield from pool.judging()


class _PoolAudit:
    """A mark a page: whether it had an owner, whether it is free, whether it has changed hands."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._said = pool.owned
        self._counted = 0
        pages = len(pool.owners)
        self._owned = np.zeros(pages, np.bool_)
        self._free = np.zeros(pages, np.bool_)
        self._places = np.empty(pages, np.int32)
        self._changed = np.zeros(pages, np.bool_)
        self._unfolded: list[PageList] = []

    def changed(self, pages: PageList) -> None:
        """Note pages, to be marked when there are some more."""
        self._unfolded.append(pages)
        if len(self._unfolded) == _UNFOLDED:
            self._fold()

    def _fold(self) -> None:
        self._changed[_ids(b"".join(self._unfolded))] = True
        self._unfolded.clear()

    def count(self, pages: PageList) -> Faults:
        """Count one owner of each page."""
        ids = _ids(pages)
        self._counted += ids.size
        return self._mark(self._owned, ids, "have two owners")

    def _mark(self, marks: NDArray[np.bool_], ids: NDArray[np.intp], wrong: str) -> Faults:
        """Mark pages, none of which is marked; say which are, or come twice."""
        if not ids.size:
            return ()
        if int(ids.max()) >= marks.size:
            return self._fault("P2", ids[ids >= marks.size], "are none of this pool")
        # Each is noted by its place in the list: of one that comes twice the last place stays.
        places = np.arange(ids.size, dtype=np.int32)
        self._places[ids] = places
        twice = marks[ids] | (self._places[ids] != places)
        marks[ids] = True
        return self._fault("P2", ids[twice], wrong) if twice.any() else ()

    def _fault(self, law: str, ids: NDArray[np.intp], wrong: str) -> Faults:
        named = sorted(set(ids[:_NAMED].tolist()))
        return ((law, f"{self._pool.component}: pages {named} {wrong}"),)

    def judging(self) -> Iterator[Faults]:
        """Look at the free list, then at every page, some in each step."""
        part = 0
        while (free := self._pool.free_part(part, _PART)) is not None:
            yield self._freed(free)
            part += 1
        for first in range(0, self._owned.size, _PART):
            yield self._judged(slice(first, first + _PART))
        if self._counted != self._said:
            component = self._pool.component
            wrong = f"{component}: {self._counted} pages have owners, not {self._said}"
            yield (("P1", wrong),)

    def _freed(self, pages: PageList) -> Faults:
        self._fold()
        ids = _ids(pages)
        changed = self._changed[ids[ids < self._changed.size]]
        still = ids[~changed] if changed.size == ids.size else ids
        return self._mark(self._free, still, "are free twice")

    def _judged(self, part: slice) -> Faults:
        self._fold()
        still = ~self._changed[part]
        held, free = self._owned[part], self._free[part]
        given = self._pool.owners.given(part)
        found: Faults = ()
        for wrong, law, what in (
            (given & ~held, "P1", "were given out and have no owner"),
            (held & ~given, "P2", "were taken back and have an owner"),
            (free & given, "P2", "are free and were given out"),
        ):
            at = np.flatnonzero(wrong & still)
            if at.size:
                found += self._fault(law, at + part.start, what)
        return found


def _ids(pages: PageList) -> NDArray[np.intp]:
    if len(pages) % PAGE_ID_BYTES:
        raise IntegrityError(f"{len(pages)} bytes are no list of page ids")
    # unsigned, so that an id below zero is too high and not one from the end
    return np.frombuffer(pages, np.dtype("<u4")).astype(np.intp)
