"""A store that goes wrong on purpose, as often and as reproducibly as its maker decides."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
import trio

from ...errors import ConfigError, TierUnavailable
from .protocol import Store, StoreStatistics

_Answer = TypeVar("_Answer")
_ROUNDING = 1e-9


class StoreFailure(enum.Enum):
    """What can go wrong with one store call.

    Some are of the call: it raises (`FAIL`), takes `seconds` longer (`DELAY`), never ends (`HANG`),
    or answers for one key less (`COUNT`).

    The others are of the objects of a call: a key is said to be missing, or an object kept that is
    not (`MISSING`), one of its bits is another (`CORRUPT`), its second half lacks (`SHORT`), or it
    comes under the key before it in the call, and that key's object in its place (`SWAPPED`).
    """

    FAIL = "fail"
    DELAY = "delay"
    HANG = "hang"
    COUNT = "count"
    MISSING = "missing"
    CORRUPT = "corrupt"
    SHORT = "short"
    SWAPPED = "swapped"


class StoreFault(msgspec.Struct, frozen=True):
    """One fault: of every object of a call, or of one that `position` chooses, with its bit."""

    what: StoreFailure
    seconds: float = 0.0
    position: int = 0
    every: bool = True


class SeededFaults:
    """Decide by chance, equally for equal seeds.

    `rates` is the probability of each failure a call; half of those of objects are of one object.
    Raises `ConfigError` where these are no probabilities, or come to more than 1.
    """

    def __init__(
        self, seed: int, rates: Mapping[StoreFailure, float], seconds: float = 1.0
    ) -> None:
        if (
            not all(rate >= 0 for rate in rates.values())
            or not sum(rates.values()) <= 1 + _ROUNDING
        ):
            raise ConfigError(
                f"rates are probabilities, together 1 at most, not {list(rates.values())}"
            )
        self._random = random.Random(seed)  # noqa: S311 - faults are random, not secret
        self._failures = list(rates)
        self._weights = [*rates.values(), max(0.0, 1.0 - sum(rates.values()))]
        self._seconds = seconds

    def __call__(self, verb: str) -> StoreFault | None:
        """Decide about the next call."""
        (chosen,) = self._random.choices([*self._failures, None], self._weights)
        position, every = self._random.randrange(1 << 62), self._random.random() < 0.5
        return None if chosen is None else StoreFault(chosen, self._seconds, position, every)


class FaultyStore:
    """Pass calls on to a store, each with the fault that `decide` gives for its verb.

    The verbs are `exists`, `get`, `put` and `delete`; `decide` answers None for no fault.
    """

    def __init__(self, store: Store, decide: Callable[[str], StoreFault | None]) -> None:
        self._store = store
        self._decide = decide

    def __repr__(self) -> str:
        return f"<FaultyStore {self._store!r}>"

    async def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """See `Store`."""
        fault = await self._suffer("exists")
        there = await self._store.exists(keys)
        missing = _missing(fault, len(keys))
        return _counted(fault, [flag and at not in missing for at, flag in enumerate(there)])

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `Store`."""
        fault = await self._suffer("get")
        return _counted(fault, _harmed(fault, await self._store.get(keys)))

    async def put(self, items: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        """See `Store`. What is harmed here stays so in the store."""
        fault = await self._suffer("put")
        harmed = _harmed(fault, [data for _, data in items])
        kept = [
            (key, data) for (key, _), data in zip(items, harmed, strict=True) if data is not None
        ]
        answers = dict(zip((key for key, _ in kept), await self._store.put(kept), strict=True))
        return _counted(fault, [answers.get(key, True) for key, _ in items])

    async def delete(self, keys: Sequence[bytes]) -> list[bool]:
        """See `Store`."""
        fault = await self._suffer("delete")
        missing = _missing(fault, len(keys))
        done = await self._store.delete([key for at, key in enumerate(keys) if at not in missing])
        answers = iter(done)
        return _counted(fault, [at in missing or next(answers) for at in range(len(keys))])

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


def _counted(fault: StoreFault | None, answers: list[_Answer]) -> list[_Answer]:
    return answers[:-1] if fault and fault.what is StoreFailure.COUNT else answers


def _missing(fault: StoreFault | None, count: int) -> range:
    return _struck(fault, count) if fault and fault.what is StoreFailure.MISSING else range(0)


def _struck(fault: StoreFault, count: int) -> range:
    """Choose the objects of a call that the fault is of."""
    if fault.every or not count:
        return range(count)
    at = fault.position % count
    return range(at, at + 1)


def _harmed(fault: StoreFault | None, objects: Sequence[bytes | None]) -> list[bytes | None]:
    """Return the objects of a call as the fault leaves them."""
    harmed = list(objects)
    if fault is None or not harmed:
        return harmed
    # what is left of the position chooses the bit, so that all bits of all objects can be chosen
    rest, at = divmod(fault.position, len(harmed))
    if fault.what is StoreFailure.SWAPPED:
        if fault.every:
            return [*harmed[1:], harmed[0]]
        harmed[at - 1], harmed[at] = harmed[at], harmed[at - 1]
        return harmed
    for index in _struck(fault, len(harmed)):
        data = harmed[index]
        if fault.what is StoreFailure.MISSING:
            harmed[index] = None
        elif data and fault.what is StoreFailure.SHORT:
            harmed[index] = data[: len(data) // 2]
        elif data and fault.what is StoreFailure.CORRUPT:
            byte, bit = divmod(rest % (8 * len(data)), 8)
            harmed[index] = data[:byte] + bytes([data[byte] ^ 1 << bit]) + data[byte + 1 :]
    return harmed
