"""Carry L3 objects between a store and L2 pages, verified: what the L3 actor's calls do.

No actor here, and no state: a `Progress` says how far a call came, also when it was cut short.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import NoneType
from typing import Protocol, TypeVar, TypeVarTuple

import trio

from ...errors import ConfigError, IntegrityError
from ...spec import PAGE_ID_BYTES, ModelSpec, PagedSpec, PageList
from .keys import CHAIN_BYTES, KeyMaker
from .messages import StoreItem
from .objects import FINGERPRINT_BYTES, BadObject, Header, encode, select
from .protocol import MissReason, Store, StoreStatistics

_PART_ITEMS = 256
_PART_BYTES = 32 << 20
_PROBE_KEYS = 4096

_Question = TypeVar("_Question")
_Answer = TypeVar("_Answer")
_Arguments = TypeVarTuple("_Arguments")


class L2Bytes(Protocol):
    """The bytes of L2 pages, page-first. Called in worker threads, for pages that nobody writes."""

    def gather(self, component: str, pages: PageList) -> bytes | memoryview:
        """Give the bytes of `pages`, one page behind the other."""
        ...

    def scatter(self, component: str, pages: PageList, body: memoryview) -> None:
        """Fill `pages` from `body`, which has exactly their bytes."""


class StoreFailed(Exception):
    """The store, not one of its objects, did not do what a store does."""

    def __init__(self, reason: MissReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Progress:
    """How far a call came: `outcomes` or `flags` of what is over, in order; `moved` bytes."""

    def __init__(self) -> None:
        self.outcomes: list[MissReason | None] = []
        self.flags = bytearray()
        self.moved = 0


class StoreIO:
    """Reads and writes objects of one model, layout and shard.

    Every verb raises `StoreFailed`, and `IntegrityError` where L2 itself is wrong. A verb may be
    cancelled while it waits for the store, and not while it reads or writes bytes of L2 pages: when
    it is over, however it ended, it touches no page any more.
    """

    def __init__(
        self, store: Store, model: ModelSpec, l2: L2Bytes, layout: str, shard: str
    ) -> None:
        for verb in ("exists", "get", "put", "delete"):
            if not callable(getattr(store, verb, None)):
                raise ConfigError(f"{store!r} is no store: it has no method {verb!r}")
        self._store = store
        self._l2 = l2
        self._page_size = model.page_size
        self._paged = {c.name: isinstance(c, PagedSpec) for c in model.components}
        self._page_bytes = {c.name: model.page_bytes(c) for c in model.components}
        fingerprint = model.fingerprint()
        self._fingerprint = fingerprint[:FINGERPRINT_BYTES]
        self._keys = KeyMaker(fingerprint, layout, shard)
        self._threads = trio.CapacityLimiter(2)

    def check_wanted(self, wanted: Sequence[tuple[str, bytes]]) -> None:
        """Raise `ConfigError` for a probe that cannot be meant."""
        for component, chains in wanted:
            self._check_component(component)
            if len(chains) % CHAIN_BYTES:
                raise ConfigError(
                    f"chain hashes take {CHAIN_BYTES} bytes each; {len(chains)} bytes were given"
                )

    def check_items(self, items: Sequence[StoreItem]) -> None:
        """Raise `ConfigError` for an item that cannot be meant."""
        for item in items:
            self._check_component(item.component)
            if len(item.chain) != CHAIN_BYTES:
                raise ConfigError(f"a chain hash has {CHAIN_BYTES} bytes, not {len(item.chain)}")
            tokens = item.end - item.start
            if self._paged[item.component]:
                pages, odd = divmod(tokens, self._page_size)
                valid = pages > 0 and not odd
            else:
                pages, valid = 1, tokens == 0
            if not valid or item.start < 0 or len(item.pages) != pages * PAGE_ID_BYTES:
                raise ConfigError(
                    f"{item.component}: tokens [{item.start}, {item.end}) of pages of "
                    f"{self._page_size} do not go with {len(item.pages)} bytes of page ids"
                )

    async def probe(self, wanted: Sequence[tuple[str, bytes]], progress: Progress) -> None:
        """Ask which objects are there: one flag for each chain hash, in order."""
        keys = [
            self._keys.key(component, chains[offset : offset + CHAIN_BYTES])
            for component, chains in wanted
            for offset in range(0, len(chains), CHAIN_BYTES)
        ]
        for first in range(0, len(keys), _PROBE_KEYS):
            there: list[bool] = await _ask(
                self._store.exists, keys[first : first + _PROBE_KEYS], bool
            )
            progress.flags += bytes(there)

    async def fetch(self, items: Sequence[StoreItem], progress: Progress) -> None:
        """Read objects and put what is intact into its pages.

        Objects that can never serve their key are deleted, so that a probe does not find them and
        somebody saves them anew.
        """
        useless: list[bytes] = []
        for part in self._parts(items):
            keys = [self._keys.key(item.component, item.chain) for item in part]
            found = await _ask(self._store.get, keys, bytes, NoneType)
            outcomes = await self._in_thread(self._deliver, part, found)
            for item, key, outcome in zip(part, keys, outcomes, strict=True):
                if outcome is None:
                    progress.moved += self._body_bytes(item)
                elif outcome not in (MissReason.MISSING, MissReason.RANGE):
                    useless.append(key)
            progress.outcomes += outcomes
        if useless:
            await _ask(self._store.delete, useless, bool)

    async def save(self, items: Sequence[StoreItem], progress: Progress) -> None:
        """Make objects of pages and write them."""
        for part in self._parts(items):
            objects = await self._in_thread(self._collect, part)
            for item, kept in zip(part, await _ask(self._store.put, objects, bool), strict=True):
                progress.outcomes.append(None if kept else MissReason.REFUSED)
                if kept:
                    progress.moved += self._body_bytes(item)

    def statistics(self) -> StoreStatistics | None:
        """Return what the store says of itself, None where it fails to."""
        try:
            said = self._store.statistics()
        except Exception:  # noqa: BLE001 - as in `_ask`
            return None
        return said if isinstance(said, StoreStatistics) else None

    # -- in threads -----------------------------------------------------------------------------

    def _deliver(
        self, items: Sequence[StoreItem], found: Sequence[bytes | None]
    ) -> list[MissReason | None]:
        outcomes: list[MissReason | None] = []
        intact: dict[str, list[tuple[PageList, memoryview]]] = {}
        for item, data in zip(items, found, strict=True):
            if data is None:
                outcomes.append(MissReason.MISSING)
                continue
            try:
                body = select(data, self._header(item))
            except BadObject as error:
                outcomes.append(error.reason)
                continue
            if len(body) != self._body_bytes(item):
                outcomes.append(MissReason.SHORT)
                continue
            intact.setdefault(item.component, []).append((item.pages, body))
            outcomes.append(None)
        for component, parts in intact.items():
            # many small pages at once: a call costs more than one more copy of them
            pages = b"".join(pages for pages, _ in parts)
            whole = parts[0][1] if len(parts) == 1 else memoryview(b"".join(b for _, b in parts))
            self._l2.scatter(component, pages, whole)
        return outcomes

    def _collect(self, items: Sequence[StoreItem]) -> list[tuple[bytes, bytes]]:
        pages: dict[str, list[PageList]] = {}
        for item in items:
            pages.setdefault(item.component, []).append(item.pages)
        bodies = {name: self._gathered(name, b"".join(lists)) for name, lists in pages.items()}
        objects: list[tuple[bytes, bytes]] = []
        taken = dict.fromkeys(bodies, 0)
        now = int(time.time())
        for item in items:
            start = taken[item.component]
            end = taken[item.component] = start + self._body_bytes(item)
            body = bodies[item.component][start:end]
            key = self._keys.key(item.component, item.chain)
            objects.append((key, encode(self._header(item, now), body)))
        return objects

    def _gathered(self, component: str, pages: PageList) -> memoryview:
        body = memoryview(self._l2.gather(component, pages)).cast("B")
        expected = len(pages) // PAGE_ID_BYTES * self._page_bytes[component]
        if len(body) != expected:
            raise IntegrityError(f"L2 {component!r} gave {len(body)} bytes for {expected}")
        return body

    async def _in_thread(
        self, work: Callable[[*_Arguments], _Answer], *arguments: *_Arguments
    ) -> _Answer:
        # not abandoned when cancelled: its pages may have another owner right after
        return await trio.to_thread.run_sync(work, *arguments, limiter=self._threads)

    # -- helpers --------------------------------------------------------------------------------

    def _check_component(self, component: str) -> None:
        if component not in self._paged:
            raise ConfigError(f"the model has no component {component!r}")

    def _header(self, item: StoreItem, written: int = 0) -> Header:
        return Header(
            item.component,
            self._fingerprint,
            item.chain,
            item.start,
            item.end,
            self._page_size,
            written,
        )

    def _body_bytes(self, item: StoreItem) -> int:
        return len(item.pages) // PAGE_ID_BYTES * self._page_bytes[item.component]

    def _parts(self, items: Sequence[StoreItem]) -> Iterator[list[StoreItem]]:
        """Cut a call so that no part takes much memory, or the event loop for long."""
        part: list[StoreItem] = []
        size = 0
        for item in items:
            if part and (len(part) >= _PART_ITEMS or size + self._body_bytes(item) > _PART_BYTES):
                yield part
                part, size = [], 0
            part.append(item)
            size += self._body_bytes(item)
        if part:
            yield part


async def _ask(
    verb: Callable[[Sequence[_Question]], Awaitable[list[_Answer]]],
    questions: Sequence[_Question],
    *kinds: type,
) -> list[_Answer]:
    """Ask a store and judge its answer: one of these `kinds` for each key, or the store has failed.

    A store is code of anybody: whatever it raises or answers must not end more than this call.
    """
    try:
        answers = await verb(questions)
    except Exception as error:
        raise StoreFailed(
            MissReason.STORE_FAILED, f"{type(error).__qualname__}: {error}"
        ) from error
    if not isinstance(answers, list | tuple):
        raise StoreFailed(MissReason.BAD_ANSWER, f"answered a {type(answers).__name__}, no list")
    if len(answers) != len(questions):
        raise StoreFailed(
            MissReason.CARDINALITY, f"{len(questions)} keys were asked, {len(answers)} answered"
        )
    for answer in answers:
        if not isinstance(answer, kinds):
            raise StoreFailed(
                MissReason.BAD_ANSWER, f"answered a {type(answer).__name__} for a key"
            )
    return answers
