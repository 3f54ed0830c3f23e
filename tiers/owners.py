"""Which pages of a pool have an owner: what keeps a page from being freed twice."""

from __future__ import annotations

from struct import Struct

import numpy as np

from ..errors import IntegrityError
from ..spec import PAGE_ID_BYTES, PageList

_FIRST = Struct("<I").unpack_from
_OWNED = 0xFFFF_FFFF
"""The mark of a page that has an owner; any id marks one that has none."""

_FEW = 16 * PAGE_ID_BYTES
"""Bytes of a list up to which a loop is faster than numpy."""

_BYTE = b"\xff"
_MARK = np.dtype("<u4")
_INDEX = np.dtype(np.intp)


class Owners:
    """A mark for each of the ids 0 to capacity - 1 of a pool, none of which has an owner at first.

    Most lists are runs of consecutive ids, because pools give them out so: a run is marked and
    compared as bytes, which takes a third of the time that scattered ids take.
    """

    __slots__ = ("_bytes", "_cells", "_component", "_marks", "_run")

    def __init__(self, component: str, capacity: int) -> None:
        self._component = component
        self._run = np.arange(capacity, dtype=_MARK).tobytes()
        self._bytes = bytearray(self._run)
        self._marks = np.frombuffer(self._bytes, dtype=_MARK)
        self._cells = memoryview(self._bytes).cast("I")

    def __len__(self) -> int:
        return len(self._cells)

    def given(self, part: slice) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Say of a part of the pages which have an owner."""
        given: np.ndarray[tuple[int], np.dtype[np.bool_]] = self._marks[part] == _OWNED
        return given

    def add(self, pages: PageList) -> None:
        """Mark pages that have no owner; they must be ids of the pool, each once."""
        if not pages:
            return
        size = len(pages)
        start = _FIRST(pages)[0] * PAGE_ID_BYTES
        if self._run.startswith(pages, start):
            self._bytes[start : start + size] = _BYTE * size
        elif size <= _FEW:
            cells = self._cells
            for id in memoryview(pages).cast("I"):
                cells[id] = _OWNED
        else:
            self._marks[_indexes(pages)] = _OWNED

    def remove(self, pages: PageList) -> None:
        """Unmark pages, which are not free yet.

        Raises `IntegrityError`, with nothing changed, where not every one of them has an owner: it was
        freed before, comes twice in the list, or never was given out.
        """
        if not self._removed(pages):
            raise IntegrityError(
                f"pool {self._component!r}: {len(pages)} bytes of page ids freed, not all of pages "
                f"that have an owner: one was freed before, comes twice, or never was given out"
            )

    def _removed(self, pages: PageList) -> bool:
        if not pages:
            return True
        size = len(pages)
        if size % PAGE_ID_BYTES:
            return False
        run, owned = self._run, _BYTE * size
        start = _FIRST(pages)[0] * PAGE_ID_BYTES
        if run.startswith(pages, start):
            if not self._bytes.startswith(owned, start):
                return False
            self._bytes[start : start + size] = pages
            return True
        if size <= _FEW:
            return self._remove_few(memoryview(pages).cast("I"))
        if size > len(run):
            return False
        marks, indexes = self._marks, _indexes(pages)
        try:
            if marks[indexes].tobytes() != owned:
                return False
        except IndexError:
            return False
        # Each is marked by its place in the list: of an id that comes twice the last place stays.
        places = run[:size]
        marks[indexes] = np.frombuffer(places, _MARK)
        if marks[indexes].tobytes() == places:
            return True
        marks[indexes] = _OWNED
        return False

    def _remove_few(self, ids: memoryview[int]) -> bool:
        cells = self._cells
        for place, id in enumerate(ids):
            if id >= len(cells) or cells[id] != _OWNED:
                for undone in ids[:place]:
                    cells[undone] = _OWNED
                return False
            cells[id] = 0
        return True


def _indexes(pages: PageList) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    # unsigned, so that an id below zero is too high and not one from the end
    return np.frombuffer(pages, _MARK).astype(_INDEX)
