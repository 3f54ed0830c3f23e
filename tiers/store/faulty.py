"""A store that goes wrong on purpose, as often and as reproducibly as its maker decides."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
import trio

from ...errors import TierUnavailable
from .protocol import Store, StoreStatistics

_Answer = TypeVar("_Answer")


class StoreFailure(enum.Enum):
    """What can go wrong with one store call.

    Some spoil all of it: it raises (`FAIL`), takes `seconds` longer (`DELAY`), never ends (`HANG`),
    says of everything that it is missing, or kept, and does nothing (`DROP`), brings objects cut in
    half and other answers for half of the keys (`PARTIAL`), changes one byte of each object
    (`CORRUPT`), or answers for one key less (`COUNT`).

    Others spoil one object of a get or a put, and leave the rest of the call as it is: one of its
    bits is another (`BAD`), it is not there (`MISSING`) or not kept though that is said, its end
    lacks (`SHORT`), it comes under another key of the call and that key's object under this one's
    (`SWAPPED`), or it is what the key had before the last put, nothing where that was the first
    (`STALE`, for a get).
    """

    FAIL = "fail"
    DELAY = "delay"
    HANG = "hang"
    DROP = "drop"
    PARTIAL = "partial"
    CORRUPT = "corrupt"
    COUNT = "count"
    BAD = "bad"
    MISSING = "missing"
    SHORT = "short"
    SWAPPED = "swapped"
    STALE = "stale"


class StoreFault(msgspec.Struct, frozen=True):
    """One fault; `position` chooses the object of a call that is spoilt, and the byte or bit of it."""

    what: StoreFailure
    seconds: float = 0.0
    position: int = 0


class SeededFaults:
    """Decide by chance, equally for equal seeds: `rates` is the probability of each failure a call."""

    def __init__(
        self, seed: int, rates: Mapping[StoreFailure, float], seconds: float = 1.0
    ) -> None:
        self._random = random.Random(seed)  # noqa: S311 - faults are random, not secret
        self._failures = list(rates)
        self._weights = [*rates.values(), 1.0 - sum(rates.values())]
        self._seconds = seconds

    def __call__(self, verb: str) -> StoreFault | None:
        """Decide about the next call."""
        (chosen,) = self._random.choices([*self._failures, None], self._weights)
        position = self._random.randrange(1 << 32)
        return None if chosen is None else StoreFault(chosen, self._seconds, position)


class FaultyStore:
    """Pass calls on to a store, each with the fault that `decide` gives for its verb.

    The verbs are `exists`, `get`, `put` and `delete`; `decide` answers None for no fault.
    """

    def __init__(self, store: Store, decide: Callable[[str], StoreFault | None]) -> None:
        self._store = store
        self._decide = decide
        self._put: dict[bytes, bytes] = {}
        self._older: dict[bytes, bytes | None] = {}

    def __repr__(self) -> str:
        return f"<FaultyStore {self._store!r}>"

    async def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """See `Store`."""
        fault = await self._suffer("exists")
        if _is(fault, StoreFailure.DROP):
            return [False] * len(keys)
        return _fewer(fault, await self._store.exists(keys))

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `Store`."""
        fault = await self._suffer("get")
        if _is(fault, StoreFailure.DROP):
            return [None] * len(keys)
        found = await self._store.get(keys)
        if fault is not None and fault.what is StoreFailure.STALE and keys:
            at = fault.position % len(keys)
            found[at] = self._older.get(keys[at])
        return _one_less(fault, _spoilt(fault, found))

    async def put(self, items: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        """See `Store`. What is spoilt here stays so in the store."""
        fault = await self._suffer("put")
        if _is(fault, StoreFailure.DROP):
            return [True] * len(items)
        for key, data in items:
            self._older[key], self._put[key] = self._put.get(key), data
        spoilt = _spoilt(fault, [data for _, data in items])
        kept = [
            (key, data) for (key, _), data in zip(items, spoilt, strict=True) if data is not None
        ]
        answers = dict(zip((key for key, _ in kept), await self._store.put(kept), strict=True))
        return _one_less(fault, [answers.get(key, True) for key, _ in items])

    async def delete(self, keys: Sequence[bytes]) -> list[bool]:
        """See `Store`."""
        fault = await self._suffer("delete")
        if _is(fault, StoreFailure.DROP):
            return [True] * len(keys)
        return _fewer(fault, await self._store.delete(keys))

    async def aclose(self) -> None:
        """Close the store behind."""
        await self._store.aclose()

    def statistics(self) -> StoreStatistics:
        """Tell what the store behind tells."""
        return self._store.statistics()

    async def _suffer(self, verb: str) -> StoreFault | None:
        fault = self._decide(verb)
        if fault is not None:
            if fault.what is StoreFailure.FAIL:
                raise TierUnavailable(f"injected: {verb} failed")
            if fault.what is StoreFailure.DELAY:
                await trio.sleep(fault.seconds)
            elif fault.what is StoreFailure.HANG:
                await trio.sleep_forever()
        return fault


def _is(fault: StoreFault | None, what: StoreFailure) -> bool:
    return fault is not None and fault.what is what


def _fewer(fault: StoreFault | None, answers: list[bool]) -> list[bool]:
    if _is(fault, StoreFailure.PARTIAL):
        return answers[: len(answers) // 2]
    return _one_less(fault, answers)


def _one_less(fault: StoreFault | None, answers: list[_Answer]) -> list[_Answer]:
    return answers[:-1] if _is(fault, StoreFailure.COUNT) else answers


def _spoilt(fault: StoreFault | None, objects: Sequence[bytes | None]) -> list[bytes | None]:
    """Return the objects of a call as the fault leaves them."""
    spoilt = list(objects)
    if fault is None or not spoilt:
        return spoilt
    if fault.what in (StoreFailure.PARTIAL, StoreFailure.CORRUPT):
        return [None if data is None else _damaged(fault, data) for data in spoilt]
    at = fault.position % len(spoilt)
    data = spoilt[at]
    if fault.what is StoreFailure.SWAPPED:
        spoilt[at - 1], spoilt[at] = data, spoilt[at - 1]
    elif fault.what is StoreFailure.MISSING:
        spoilt[at] = None
    elif data is not None:
        spoilt[at] = _damaged(fault, data)
    return spoilt


def _damaged(fault: StoreFault, data: bytes) -> bytes:
    """Cut or change one object; others than those that do that leave it."""
    if fault.what in (StoreFailure.PARTIAL, StoreFailure.SHORT):
        return data[: len(data) // 2]
    if data and fault.what in (StoreFailure.CORRUPT, StoreFailure.BAD):
        at = fault.position % len(data)
        mask = 0xFF if fault.what is StoreFailure.CORRUPT else 1 << fault.position % 8
        return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
    return data
