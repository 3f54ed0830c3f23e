"""What the L3 actor hears, answers and reports."""

from __future__ import annotations

import msgspec

from ...actors import Fact, Message, Reply
from ...spec import PageList
from .protocol import MissReason, StoreStatistics


class StoreItem(Reply, frozen=True):
    """One L3 object, and which L2 pages its body is read from or written to, in order.

    The body covers tokens [start, end) of the prefix that `chain` identifies (a snapshot: start ==
    end == its boundary). Where L2 has nothing for the head of the chunk, `start` is later than the
    chunk's first token.
    """

    component: str
    chain: bytes
    start: int
    end: int
    pages: PageList


class Probed(Reply, frozen=True):
    """One byte a chain hash, 1 where there is an object, in the order of the `Probe`.

    `reason` says why the store was not asked, or not to the end; what it was not asked is 0.
    """

    present: tuple[bytes, ...]
    reason: MissReason | None = None


class Probe(Message[Probed], frozen=True):
    """Ask which objects are there: `wanted` is (component, chain hashes of 32 bytes each, packed).

    To be there is no promise: only a `Fetch` verifies.
    """

    wanted: tuple[tuple[str, bytes], ...]


class Outcomes(Reply, frozen=True):
    """One for each item, in its order: None where it was done, else why not."""

    outcomes: tuple[MissReason | None, ...]


class Fetch(Message[Outcomes], frozen=True):
    """Read objects into L2 pages."""

    items: tuple[StoreItem, ...]


class Save(Message[Outcomes], frozen=True):
    """Write objects from L2 pages, replacing what their keys had."""

    items: tuple[StoreItem, ...]


class CallOver(Message[None], frozen=True):
    """From a call's own task to its actor: what came of it.

    `flags` is what a `Probe` found, which has an outcome only where the store was not asked to the
    end. `worked` says what the call tells about the store, None where it tells nothing. `moved` is
    bytes of objects, `error` what went wrong, for people.
    """

    call: int
    outcomes: tuple[MissReason | None, ...]
    flags: bytes
    moved: int
    worked: bool | None
    error: str


class StoreTierStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What the L3 actor did so far.

    `calls`, `keys`, `hits` and `bytes` are (verb, number), `misses` is (verb, reason, keys). Hits
    are keys that were there (probe), read and intact (fetch) or kept (save). `store` is what the
    store says of itself, None where it fails to.
    """

    calls: tuple[tuple[str, int], ...]
    keys: tuple[tuple[str, int], ...]
    hits: tuple[tuple[str, int], ...]
    bytes: tuple[tuple[str, int], ...]
    misses: tuple[tuple[str, str, int], ...]
    in_flight: int
    breaker: str
    breaker_opened: int
    store: StoreStatistics | None


class StoreCall(Fact, frozen=True, kw_only=True):
    """One `Probe`, `Fetch` or `Save` is over.

    `hits` of its `keys` were there (probe), read and intact (fetch) or kept (save). `outcome` is
    "ok" where that is all of them, else the first reason.
    """

    verb: str
    keys: int
    hits: int
    bytes: int
    outcome: str
