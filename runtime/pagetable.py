"""A lease's page table of one component: grows at the end, loses its front, is patched in place."""

from __future__ import annotations

from .messages import PAGE


class GrowingTable:
    """Packed int32 page ids with room to grow, so that appending does not copy what is there.

    Views that were handed out stay valid: when the room is used up the table moves to a larger
    buffer and old views keep showing the old one.
    """

    __slots__ = ("_buffer", "_first", "_last")

    def __init__(self, pages: bytes = b"") -> None:
        self._buffer = bytearray(pages)
        self._first = 0
        self._last = len(pages)

    def __len__(self) -> int:
        return (self._last - self._first) // PAGE

    def view(self) -> memoryview:
        """Answer the ids as a read-only memoryview of int32, without a copy."""
        return memoryview(self._buffer)[self._first : self._last].toreadonly().cast("i")

    def append(self, pages: bytes) -> None:
        """Add ids at the end."""
        end = self._last + len(pages)
        if end > len(self._buffer):
            # As much room again, had in one go by repeating what is there.
            self._buffer = (self._buffer[self._first : self._last] + pages) * 2
            self._first, self._last = 0, len(self._buffer) // 2
        else:
            self._buffer[self._last : end] = pages
            self._last = end

    def drop_front(self, count: int) -> None:
        """Forget the first `count` ids."""
        self._first = min(self._first + count * PAGE, self._last)

    def drop_end(self, count: int) -> None:
        """Forget the last `count` ids."""
        self._last = max(self._last - count * PAGE, self._first)

    def patch(self, index: int, pages: bytes) -> None:
        """Replace ids from `index` on; what falls outside the table is left out."""
        if index < 0:
            pages, index = pages[-index * PAGE :], 0
        start = self._first + index * PAGE
        pages = pages[: self._last - start]
        self._buffer[start : start + len(pages)] = pages
