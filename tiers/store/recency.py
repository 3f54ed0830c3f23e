"""Which objects a bounded store holds, how large they are, and in what order they were last used.

All of it is in memory, so that a read writes nothing. What changed goes to the store as one record
with the next write, in the same transaction; the records, oldest first, give the state back.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Collection, Iterable

_ENTRY = struct.Struct("<32sI")
_GONE = 0xFFFFFFFF
_SLACK_ENTRIES = 65536

ENTRY_BYTES = _ENTRY.size
"""Bytes of one entry: a record may be cut between any two."""

RECORD_KEY_BYTES = 8
"""Bytes of a record's key: its number, big-endian."""

LARGEST_OBJECT = _GONE - 1
"""The most bytes that one object may have."""


class Pages:
    """What an object costs in an LMDB file of one page size, in bytes on disk.

    Larger objects take whole pages of their own, behind a 16-byte header, and an entry in a leaf;
    small ones lie in the leaf. Leaves are about two thirds full when keys are random.
    """

    _PAGE_HEADER = 16
    _ENTRY_BYTES = 96

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._inline = (page_bytes - self._PAGE_HEADER) // 2 - 64

    def cost(self, length: int) -> int:
        """Compute the bytes on disk of an object of `length` bytes."""
        if length <= self._inline:
            return self._ENTRY_BYTES + length * 3 // 2
        pages = -(-(self._PAGE_HEADER + length) // self._page_bytes)
        return self._ENTRY_BYTES + pages * self._page_bytes


class Recency:
    """Objects by key, least recently used first, with their lengths; `total` is their cost.

    Not synchronised: the store's lock is. `in`, `len` and `length` may be used without it.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._lengths: OrderedDict[bytes, int] = OrderedDict()
        self._touched: dict[bytes, None] = {}
        self.total = 0

    def __repr__(self) -> str:
        return f"<Recency {len(self)} objects, {self.total} bytes>"

    def __len__(self) -> int:
        return len(self._lengths)

    def __contains__(self, key: bytes) -> bool:
        return key in self._lengths

    def length(self, key: bytes) -> int | None:
        """Return the length of an object, None where there is none."""
        return self._lengths.get(key)

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note a use of `keys`; those without an object are passed over."""
        for key in keys:
            if key in self._lengths:
                self._lengths.move_to_end(key)
                # taken out first, so that the record keeps the order of the last uses
                self._touched.pop(key, None)
                self._touched[key] = None

    def victims(self, change: int, limit: int, spared: Collection[bytes]) -> list[bytes]:
        """Name the least recently used objects to drop so that `total + change <= limit`."""
        excess = self.total + change - limit
        chosen: list[bytes] = []
        if excess > 0:
            for key, length in self._lengths.items():
                if key not in spared:
                    chosen.append(key)
                    excess -= self._pages.cost(length)
                    if excess <= 0:
                        break
        return chosen

    def change(self, changes: dict[bytes, int | None]) -> int:
        """Compute what `total` would change by: new lengths, None for an object that goes."""
        difference = 0
        for key, length in changes.items():
            old = self._lengths.get(key)
            if old is not None:
                difference -= self._pages.cost(old)
            if length is not None:
                difference += self._pages.cost(length)
        return difference

    def apply(self, changes: dict[bytes, int | None]) -> None:
        """Take changes over, in order; what gets a length is the most recently used."""
        for key, length in changes.items():
            self._set(key, length)
            self._touched.pop(key, None)

    # -- records --------------------------------------------------------------------------------

    def take_uses(self) -> bytes:
        """Pack the uses since the last call, oldest first, and forget that they were new.

        Where the record is lost with its transaction, so are these uses: order is kept roughly.
        """
        touched, self._touched = self._touched, {}
        return b"".join(
            _ENTRY.pack(key, self._lengths[key]) for key in touched if key in self._lengths
        )

    def snapshot(self) -> bytes:
        """Pack everything there is, least recently used first: replaces all records."""
        return b"".join(_ENTRY.pack(key, length) for key, length in self._lengths.items())

    def replay(self, records: Iterable[bytes]) -> None:
        """Rebuild from records, oldest first. Raises `struct.error` for a torn record."""
        for record in records:
            for key, length in _ENTRY.iter_unpack(record):
                self._set(key, None if length == _GONE else length)

    def wants_snapshot(self, logged: int) -> bool:
        """Tell whether records of `logged` bytes are so many that a snapshot pays."""
        return logged > (2 * len(self) + _SLACK_ENTRIES) * _ENTRY.size

    def _set(self, key: bytes, length: int | None) -> None:
        old = self._lengths.pop(key, None)
        if old is not None:
            self.total -= self._pages.cost(old)
        if length is not None:
            self._lengths[key] = length
            self.total += self._pages.cost(length)


def pack_changes(changes: dict[bytes, int | None]) -> bytes:
    """Pack changes as a part of a record."""
    return b"".join(
        _ENTRY.pack(key, _GONE if length is None else length) for key, length in changes.items()
    )
