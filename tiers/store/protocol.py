"""What a store of L3 objects must do.

A store knows keys (32 bytes) and opaque objects. What an object means, whether it is intact and
what a failure of the store leads to are the business of the tier in front of it (`l3.py`).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

import msgspec


class MissReason(enum.Enum):
    """Why an object was not served, or not saved. Closed: metrics label by it."""

    MISSING = "missing"  # the store does not have the key
    SHORT = "short"  # its length is not what its header, or the pages, say
    NO_OBJECT = "no_object"  # it does not begin as an object does
    VERSION = "version"  # written by another version of the format
    CHECKSUM = "checksum"
    FOREIGN_MODEL = "foreign_model"
    FOREIGN_COMPONENT = "foreign_component"
    FOREIGN_CHAIN = "foreign_chain"
    RANGE = "range"  # it does not cover the wanted tokens
    CARDINALITY = "cardinality"  # the store answered for another number of keys
    BAD_ANSWER = "bad_answer"  # the store answered something of another type
    REFUSED = "refused"  # the store took no such object (too large, no room)
    STORE_FAILED = "store_failed"
    TIMEOUT = "timeout"
    BREAKER_OPEN = "breaker_open"


class StoreSetAside(UserWarning):
    """A store's data could not be trusted; it was put aside and the store starts empty."""


class StoreNotKept(UserWarning):
    """A store was closed, and its disk did not take all of it: the next one may start with less."""


class StoreStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One store: what it holds, in objects and in the bytes they take, and what it did so far."""

    objects: int
    bytes: int
    max_bytes: int
    evicted_objects: int
    refused_objects: int


class Store(Protocol):
    """Keeps objects by key.

    Every verb takes many keys and answers for each of them, in their order. A verb raises
    `TierUnavailable` where the store as a whole does not work, never for a single key. All are
    cancellable; a cancelled `put` or `delete` may or may not have been done, for each key. Objects
    handed in are immutable and objects handed out belong to the caller.
    """

    async def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """Say which keys have an object now. Does not count as a use of it."""
        ...

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read objects; None for a key without one."""
        ...

    async def put(self, items: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        """Keep (key, object), replacing what a key had; False for an object that was refused."""
        ...

    async def delete(self, keys: Sequence[bytes]) -> list[bool]:
        """Forget objects; False for a key that had none."""
        ...

    async def aclose(self) -> None:
        """Finish what was accepted and let go of everything; verbs raise `TierUnavailable` then."""
        ...

    def statistics(self) -> StoreStatistics:
        """Tell what the store holds and did."""
        ...
