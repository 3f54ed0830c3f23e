"""A lease's page table of one component: grows at the end, loses its front, is patched in place."""

from __future__ import annotations

from ..spec import PAGE_ID_BYTES


class GrowingTable:
    """Packed int32 page ids with room to grow, so that appending does not copy what is there.

    The first page begins at token `start`. Views that were handed out stay valid: when the room is
    used up the table moves to a larger buffer and old views keep showing the old one.
    """

    __slots__ = ("_buffer", "_first", "_last", "start")

    def __init__(self, start: int = 0, pages: bytes = b"") -> None:
        self.begin(start, pages)

    def begin(self, start: int, pages: bytes) -> None:
        """Begin anew with these ids."""
        self.start = start
        self._buffer = bytearray(pages)
        self._first = 0
        self._last = len(pages)

    def __len__(self) -> int:
        return (self._last - self._first) // PAGE_ID_BYTES

    def view(self) -> memoryview:
        """Return the ids as a read-only memoryview of int32, without a copy."""
        return memoryview(self._buffer)[self._first : self._last].toreadonly().cast("i")

    def tail(self, start: int, page_size: int) -> bytes:
        """Copy the ids of the pages from a page's beginning on."""
        first = self._first + max(0, start - self.start) // page_size * PAGE_ID_BYTES
        return bytes(self._buffer[first : self._last])

    def between(self, start: int, end: int, page_size: int) -> bytes:
        """Copy the ids of the pages from one page's beginning to another's, as far as there are any."""
        first = self._first + max(0, start - self.start) // page_size * PAGE_ID_BYTES
        last = self._first + max(0, end - self.start) // page_size * PAGE_ID_BYTES
        return bytes(self._buffer[first : min(last, self._last)])

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

    def begin_at(self, start: int, page_size: int) -> None:
        """Forget the ids of pages before a token."""
        passed = (start - self.start) // page_size
        if passed > 0:
            self._first = min(self._first + passed * PAGE_ID_BYTES, self._last)
            self.start = start

    def drop_end(self, count: int) -> None:
        """Forget the last `count` ids."""
        self._last = max(self._last - count * PAGE_ID_BYTES, self._first)

    def patch(self, position: int, pages: bytes, page_size: int) -> None:
        """Replace ids from a token on; what falls outside the table is left out."""
        index = (position - self.start) // page_size
        if index < 0:
            pages, index = pages[-index * PAGE_ID_BYTES :], 0
        at = self._first + index * PAGE_ID_BYTES
        pages = pages[: self._last - at]
        self._buffer[at : at + len(pages)] = pages
