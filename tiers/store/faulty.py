"""A store that goes wrong on purpose, as often and as reproducibly as its maker decides."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec
import trio

from ...errors import TierUnavailable
from .protocol import Store, StoreStatistics


class StoreFailure(enum.Enum):
    """What can go wrong with one store call."""

    FAIL = "fail"  # it raises
    DELAY = "delay"  # it takes `seconds` longer
    HANG = "hang"  # it never ends
    DROP = "drop"  # nothing is done: all is said to be missing, or kept
    PARTIAL = "partial"  # objects come cut in half, other answers for half of the keys
    CORRUPT = "corrupt"  # one byte of each object is another


class StoreFault(msgspec.Struct, frozen=True):
    """One fault; `position` chooses the byte that is corrupted."""

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
    """Pass calls on to a store, each with the fault that `decide` gives for its verb."""

    def __init__(self, store: Store, decide: Callable[[str], StoreFault | None]) -> None:
        self._store = store
        self._decide = decide

    def __repr__(self) -> str:
        return f"<FaultyStore {self._store!r}>"

    async def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """See `Store`."""
        fault = await self._suffer("exists")
        if _is(fault, StoreFailure.DROP):
            return [False] * len(keys)
        return _halved(fault, await self._store.exists(keys))

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `Store`."""
        fault = await self._suffer("get")
        if _is(fault, StoreFailure.DROP):
            return [None] * len(keys)
        found = await self._store.get(keys)
        return [None if data is None else _spoilt(fault, data) for data in found]

    async def put(self, items: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        """See `Store`. What is cut or corrupted here stays so in the store."""
        fault = await self._suffer("put")
        if _is(fault, StoreFailure.DROP):
            return [True] * len(items)
        return await self._store.put([(key, _spoilt(fault, data)) for key, data in items])

    async def delete(self, keys: Sequence[bytes]) -> list[bool]:
        """See `Store`."""
        fault = await self._suffer("delete")
        if _is(fault, StoreFailure.DROP):
            return [True] * len(keys)
        return _halved(fault, await self._store.delete(keys))

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


def _halved(fault: StoreFault | None, answers: list[bool]) -> list[bool]:
    return answers[: len(answers) // 2] if _is(fault, StoreFailure.PARTIAL) else answers


def _spoilt(fault: StoreFault | None, data: bytes) -> bytes:
    if fault is None or not data:
        return data
    if fault.what is StoreFailure.PARTIAL:
        return data[: len(data) // 2]
    if fault.what is StoreFailure.CORRUPT:
        at = fault.position % len(data)
        return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
    return data
