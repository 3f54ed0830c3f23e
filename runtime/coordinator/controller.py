"""HybridCacheController: carries out what the cache actor decided to move between tiers.

Its operations only start child tasks. Copies, hashing and store calls run there and come back to the
cache as messages, exactly one for each operation: who cannot be told is not waited for in vain, since
an error of a child task is a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
import trio

from ...actors import Coordinator, Message, Ref, handles
from ...errors import ActorCrashed, BanyanError, IntegrityError
from ...tiers.copy import CopyEngine
from ...tiers.store import messages as s
from ...tiers.store.keys import CHAIN_BYTES, chain, encoded_seed
from ...tiers.store.protocol import MissReason
from .. import messages as m
from .endpoints import Endpoints, Spans

_Order = m.Copy | m.Find | m.Fetch | m.Save


class HybridCacheController(Coordinator):
    """Run transfers for one cache, the actor `/cache`, and report to it."""

    def __init__(
        self,
        engine: CopyEngine | None,
        store: Ref[Any] | None,
        endpoints: Endpoints,
    ) -> None:
        super().__init__()
        self._engine = engine
        self._store = store
        self._endpoints = endpoints
        self._working: Counter[int] = Counter()

    async def _report(self, msg: Message[None]) -> None:
        await self.system.find("/cache").ask(msg)

    def _begin(self, work: Callable[[Any], Awaitable[None]], msg: _Order) -> None:
        self._working[msg.op] += 1
        self.start(self._work, work, msg)

    async def _work(self, work: Callable[[Any], Awaitable[None]], msg: _Order) -> None:
        try:
            await work(msg)
        finally:
            # One task ends when the report has been heard, by which the next may have begun.
            self._working[msg.op] -= 1
            if not self._working[msg.op]:
                del self._working[msg.op]

    @handles(m.Working)
    async def working(self, msg: m.Working) -> frozenset[int]:
        """Return the transfers that child tasks work on."""
        return frozenset(self._working)

    # -- copies between L1 and L2 ---------------------------------------------------------------------

    @handles(m.Copy)
    async def copy(self, msg: m.Copy) -> None:
        """Start a batch of copies."""
        self._begin(self._copy, msg)

    async def _copy(self, msg: m.Copy) -> None:
        if self._engine is None:
            raise IntegrityError("there is no lower tier to copy from or to")
        try:
            await self._engine.run(msg.moves, msg.source, msg.target, fence=msg.fence)
        except BanyanError as error:
            await self._report(m.Copied(msg.op, ok=False, error=str(error)))
        else:
            await self._report(m.Copied(msg.op, ok=True))

    # -- the store ------------------------------------------------------------------------------------

    @handles(m.Find)
    async def find(self, msg: m.Find) -> None:
        """Start to look in the store."""
        self._begin(self._find, msg)

    async def _find(self, msg: m.Find) -> None:
        chains = await self._hash(encoded_seed(msg.namespace), msg.tokens)
        wanted = self._endpoints.wanted(len(chains), msg.full, msg.reuse)
        held: dict[str, Spans] = {}
        failed: MissReason | None = None
        if any(wanted.values()):
            probed = await self._probe(
                tuple((rule.name, b"".join(chains[i] for i in at)) for rule, at in wanted.items())
            )
            failed = probed.reason
            for rule, flags in zip(wanted, probed.present, strict=True):
                there = (i for i, flag in zip(wanted[rule], flags, strict=True) if flag)
                held[rule.name] = self._endpoints.spans(rule, there)
        limit = len(chains) * self._endpoints.chunk
        endpoint = self._endpoints.deepest(held, limit, msg.full, msg.reuse)
        items = tuple(
            s.StoreItem(name, chains[index], start, end, b"")
            for name, index, start, end in self._endpoints.objects(endpoint, msg.full)
        )
        full = self._endpoints.full_reach(held, msg.full)
        await self._report(m.Found(msg.op, endpoint, full, items, failed))

    async def _hash(self, previous: bytes, tokens: bytes) -> list[bytes]:
        return await trio.to_thread.run_sync(chain, previous, tokens, self._endpoints.chunk)

    async def _probe(self, wanted: tuple[tuple[str, bytes], ...]) -> s.Probed:
        """Ask which objects are there; where L3's actor crashes over it, none is."""
        try:
            return await self._l3().ask(s.Probe(wanted))
        except ActorCrashed:
            none = tuple(bytes(len(chains) // CHAIN_BYTES) for _, chains in wanted)
            return s.Probed(none, MissReason.STORE_FAILED)

    async def _do(self, msg: s.Fetch | s.Save) -> s.Outcomes:
        """Have objects read or written; where L3's actor crashes over it, none was.

        That is told when nothing of the crashed life is at work any more, which may still write to the
        pages of the message: its next life begins only then.
        """
        try:
            return await self._l3().ask(msg)
        except ActorCrashed:
            await self._next_life()
            return s.Outcomes((MissReason.STORE_FAILED,) * len(msg.items))

    async def _next_life(self) -> None:
        while True:
            try:
                await self._l3().ask(s.Probe(()))
            except ActorCrashed:
                continue  # beyond its supervisor's patience that ends
            return

    def _l3(self) -> Ref[Any]:
        if self._store is None:
            raise IntegrityError("there is no store to ask")
        return self._store

    @handles(m.Fetch)
    async def fetch(self, msg: m.Fetch) -> None:
        """Start to read objects into L2."""
        self._begin(self._fetch, msg)

    async def _fetch(self, msg: m.Fetch) -> None:
        answer = await self._do(s.Fetch(msg.items))
        await self._report(m.Fetched(msg.op, tuple(reason is None for reason in answer.outcomes)))

    @handles(m.Save)
    async def save(self, msg: m.Save) -> None:
        """Start to write objects from L2."""
        self._begin(self._save, msg)

    async def _save(self, msg: m.Save) -> None:
        chunk = self._endpoints.chunk
        previous = msg.chain or encoded_seed(msg.namespace)
        chains = await self._hash(previous, msg.tokens)
        first = msg.base // chunk
        items = [
            msgspec.structs.replace(item, chain=chains[item.end // chunk - first - 1])
            for item in msg.items
        ]
        stored = 0
        found = await self._missing(items)
        lost, missing = (found, []) if isinstance(found, MissReason) else (None, found)
        if missing:
            answer = await self._do(s.Save(tuple(missing)))
            for item, reason in zip(missing, answer.outcomes, strict=True):
                if reason is None:
                    stored += self._endpoints.bytes(item)
                else:
                    lost = reason
        at = msg.base + len(chains) * chunk
        await self._report(m.Saved(msg.op, at, chains[-1] if chains else b"", stored, lost))

    async def _missing(self, items: list[s.StoreItem]) -> list[s.StoreItem] | MissReason:
        """Return the items that the store does not hold yet, or why it cannot say."""
        by_component: dict[str, list[s.StoreItem]] = {}
        for item in items:
            by_component.setdefault(item.component, []).append(item)
        probed = await self._probe(
            tuple((name, _packed(group)) for name, group in by_component.items())
        )
        if probed.reason is not None:
            return probed.reason
        return [
            item
            for group, flags in zip(by_component.values(), probed.present, strict=True)
            for item, flag in zip(group, flags, strict=True)
            if not flag
        ]


def _packed(items: Iterable[s.StoreItem]) -> bytes:
    return b"".join(item.chain for item in items)
