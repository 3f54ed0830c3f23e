"""The eviction index: unlocked payloads of one component on one tier, least valuable first.

A binary heap with lazy repair. An entry remembers the key that its record had when it was queued;
uses since then only raised it, so an entry that comes up with an old key is put back with the new
one, and using a payload costs nothing here. Each payload has at most one entry; entries of payloads
that went or were locked meanwhile are discarded when they come up. Every step is O(log n).

Entries of payloads that left by another way (with their node's FULL, say) would pile up. When they
are the larger part, the heap becomes the *old* one and its live entries move over a few at a time
with each step, so that no single step pays for the cleaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

from .policies import Key
from .records import Payload, Record

_Entry = tuple[Any, int, int, int, Record, Payload]
"""Key, position, id, a running number (a record may come back with another payload), and the two."""

_CLEAN_FROM = 64
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
        self._push(self._key(record), record, payload)

    def _push(self, key: Any, record: Record, payload: Payload) -> None:
        self._added += 1
        heappush(self._heap, (key, record.end, record.id, self._added, record, payload))

    def gone(self) -> None:
        """Note that a queued payload left its node without having been drained."""
        self._stale += 1
        if not self._old and self._stale * 2 > len(self._heap) > _CLEAN_FROM:
            self._old, self._heap, self._stale = self._heap, [], 0
        for _ in range(min(_MOVED_A_STEP, len(self._old))):
            # The last element of a heap's list can go without disturbing the others' order.
            entry = self._old.pop()
            if entry[4].at[self._tier] is entry[5]:
                heappush(self._heap, entry)

    def drain(self) -> Iterator[tuple[Record, Payload]]:
        """Take payloads out in order, each once; what the caller does not drop it adds again.

        Yields whatever was queued and still is that record's payload; whether it may go now (no
        lock, still a leaf) is for the caller to see. Payloads queued while this runs take part.
        """
        tier = self._tier
        while self._heap or self._old:
            from_old = not self._heap or (self._old and self._old[0][:3] < self._heap[0][:3])
            key, _, _, _, record, payload = heappop(self._old if from_old else self._heap)
            if record.at[tier] is not payload:
                self._stale = max(0, self._stale - 1)
                continue
            current = self._key(record)
            if current > key:
                self._push(current, record, payload)
                continue
            payload.queued = False
            yield record, payload
