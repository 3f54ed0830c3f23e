"""The eviction index: unlocked payloads of one component on one tier, least valuable first.

A binary heap with lazy repair. An entry remembers the key that its record had when it was queued;
uses since then only raised it, so an entry that comes up with an old key is put back with the new
one, and using a payload costs nothing here. Each payload has at most one entry; entries of payloads
that went or were locked meanwhile are discarded when they come up. Every step is O(log n).

Entries of payloads that left by another way (with their node's FULL, say) would pile up. When they
are two thirds of all, the heap becomes the *old* one and its live entries move over a few at a time
with each step, so that no single step pays for the cleaning.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from .policies import Key
from .records import Payload, Record

_Entry = tuple[Any, int, int, int, Record, Payload]
"""Key, position, id, a running number (a record may come back with another payload), and the two."""

_CLEAN_FROM = 64
"""Twice the entries of a heap that is worth cleaning."""

_MOVED_A_STEP = 4


class EvictionIndex:
    """Order the payloads that may go. Among equal keys the shallower goes first, then the older id."""

    __slots__ = ("_added", "_heap", "_key", "_old", "_stale", "_tier")

    def __init__(self, tier: int, key: Key) -> None:
        self._tier = tier
        self._key = key
        self._heap: list[_Entry] = []
        self._old: list[_Entry] = []
        self._stale = 0
        self._added = 0

    def __len__(self) -> int:
        return len(self._heap) + len(self._old)

    def add(self, record: Record, payload: Payload) -> None:
        """Queue a payload that has become evictable; the caller has seen that it is not queued."""
        payload.queued = True
        self._added += 1
        entry = (self._key(record), record.end, record.id, self._added, record, payload)
        heappush(self._heap, entry)

    def gone(self) -> None:
        """Note that a queued payload left its node without having been popped."""
        self._stale += 1
        if self._old:
            self._move()
        elif self._stale * 3 > len(self._heap) * 2 > _CLEAN_FROM:
            self._old, self._heap, self._stale = self._heap, [], 0

    def _move(self) -> None:
        """Move some entries over: the last of a heap's list, which the others' order does not need."""
        old, tier = self._old, self._tier
        for entry in old[-_MOVED_A_STEP:]:
            if entry[4].at[tier] is entry[5]:
                heappush(self._heap, entry)
        del old[-_MOVED_A_STEP:]

    def pop(self) -> tuple[Record, Payload] | None:
        """Take the first payload out, None where there is none; who does not drop it adds it again.

        It was queued and still is that record's payload; whether it may go now (no lock, still a
        leaf) is for the caller to see.
        """
        heap, old, tier = self._heap, self._old, self._tier
        risen: set[int] | None = None  # one key may rise at each look: it is looked at once
        while True:
            if old and (not heap or old[0] < heap[0]):
                entry = heappop(old)
            elif heap:
                entry = heappop(heap)
            else:
                return None
            before, end, id, number, record, payload = entry
            if record.at[tier] is payload:
                key = self._key(record)
                if not key > before or (risen is not None and number in risen):
                    payload.queued = False
                    return record, payload
                risen = risen or set()
                risen.add(number)
                heappush(heap, (key, end, id, number, record, payload))
            elif self._stale:
                self._stale -= 1
