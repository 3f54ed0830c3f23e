"""The store of a history: honest until a step holds it, makes a call fail, or spoils an object."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import trio
from banyankv import Namespace, Tier
from banyankv.testing import FaultyStore, MemoryStore, StoreFailure, StoreFault
from banyankv.tiers.store.keys import chain, seed
from banyankv.tiers.store.objects import BadObject, decode

from .reference import Flat, Key, Rules, floor

VERBS = ("exists", "get", "put", "delete")
FAILURES = tuple(StoreFailure)
Chunk = tuple[str, bytes]
"""A component and a chain hash: what an object stands for."""


class Held(MemoryStore):
    """A store in memory whose answers a step may hold back."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = trio.Event()
        self.held: tuple[str, ...] = ()
        """Verbs whose answers are held back until `gate` opens."""
        self.changes = 0

    async def _hold(self, verb: str) -> None:
        if verb in self.held:
            await self.gate.wait()

    async def exists(self, keys: Sequence[bytes]) -> list[bool]:
        await self._hold("exists")
        return await super().exists(keys)

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await self._hold("get")
        return await super().get(keys)

    async def put(self, items: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        await self._hold("put")
        self.changes += 1
        return await super().put(items)

    async def delete(self, keys: Sequence[bytes]) -> list[bool]:
        await self._hold("delete")
        self.changes += 1
        return await super().delete(keys)


class HistoryStore:
    """The objects of a history, which outlive its caches, and what goes wrong with them."""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.behind = Held()
        self.store = FaultyStore(self.behind, self._decide)
        self.coming: dict[str, list[StoreFault]] = {verb: [] for verb in VERBS}
        self.harmed = False
        """Whether anything ever went wrong: the store may lack what was to be saved."""
        self._seen = -1
        self._good: dict[Chunk, tuple[int, int]] = {}
        self.bad = 0

    def _decide(self, verb: str) -> StoreFault | None:
        return self.coming[verb].pop() if self.coming[verb] else None

    @property
    def held(self) -> bool:
        """Whether answers are held back."""
        return bool(self.behind.held)

    def hold(self, which: int) -> None:
        """Hold back the answers to what is asked from now on: of all verbs or of one."""
        self.let_go()
        self.behind.held = (VERBS, ("get",), ("get",), ("put",))[which % 4]
        self.behind.gate = trio.Event()

    def let_go(self) -> None:
        """Let every call through."""
        self.behind.held = ()
        self.behind.gate.set()

    def harm(self, failure: int, verb: int, times: int) -> None:
        """Let the next calls of a verb go wrong."""
        self.harmed = True
        turn, what = divmod(failure, len(FAILURES))
        fault = StoreFault(FAILURES[what], 1.0, 7 * failure, every=turn % 2 == 0)
        self.coming[VERBS[verb % len(VERBS)]] += [fault] * times

    def heal(self) -> None:
        """Let no further call go wrong."""
        for faults in self.coming.values():
            faults.clear()

    def spoil(self, way: int, which: int, other: int) -> None:
        """Damage one object: a bit, its end, all of it, or another object in its place."""
        objects = self.behind.objects
        if not objects:
            return
        self.harmed = True
        self.behind.changes += 1
        keys = sorted(objects, key=self._name)
        key, wrong = keys[which % len(keys)], keys[other % len(keys)]
        data = objects[key]
        if way % 4 == 0 and data:
            at = other * 7919 % len(data)
            objects[key] = data[:at] + bytes([data[at] ^ 1 << other % 8]) + data[at + 1 :]
        elif way % 4 == 1:
            objects[key] = data[: len(data) * (other % 8) // 8]
        elif way % 4 == 2:
            del objects[key]
        else:
            objects[key], objects[wrong] = objects[wrong], objects[key]

    def _name(self, key: bytes) -> tuple[str, int, bytes]:
        """Order objects by what they are, so that near dice choose near objects."""
        try:
            header, _ = decode(self.behind.objects[key])
        except BadObject:
            return "", 0, key
        return header.component, header.end, header.chain

    # -- what the referee sees -----------------------------------------------------------------------

    def good(self) -> dict[Chunk, tuple[int, int]]:
        """The token range of every intact object, by what it stands for."""
        if self._seen != self.behind.changes:
            self._seen, self._good, self.bad = self.behind.changes, {}, 0
            for data in self.behind.objects.values():
                try:
                    header, _ = decode(data)
                except BadObject:
                    self.bad += 1
                else:
                    self._good[header.component, header.chain] = header.start, header.end
        return self._good

    def endpoint(
        self, rules: Rules, full: int, namespace: Namespace, tokens: tuple[int, ...]
    ) -> int:
        """The deepest chunk's end to which the objects allow reuse, where L2 has FULL up to `full`;
        0 where there is none."""
        limit = floor(len(tokens) - 1, rules.page)
        chains, good = chains_of(namespace, tokens[:limit], self.chunk), self.good()
        for index in range(len(chains) - 1, -1, -1):
            end = (index + 1) * self.chunk
            if all(self._has(rules, n, chains, end, full, good) for n in rules.names):
                return end
        return 0

    def _has(
        self,
        rules: Rules,
        name: str,
        chains: list[bytes],
        end: int,
        full: int,
        good: dict[Chunk, tuple[int, int]],
    ) -> bool:
        if name in rules.snapshots:
            return (name, chains[end // self.chunk - 1]) in good
        base = name == rules.names[0]
        for page in rules.pages(name, end):
            if base and page <= floor(full, self.chunk):
                continue
            start, stop = good.get((name, chains[(page - 1) // self.chunk]), (0, 0))
            if not start <= page - rules.page < stop:
                return False
        return True

    def unsaved(self, rules: Rules, flat: Flat) -> list[str]:
        """What L2 holds whole and the store lacks: empty where nothing ever went wrong."""
        good, lacking = self.good(), list[str]()
        for key in flat.known:
            end = len(key.prefix)
            if end % self.chunk:
                continue
            here = chains_of(key.namespace, key.prefix, self.chunk)[-1]
            for name in rules.names:
                if name in rules.snapshots:
                    wanted = [end]
                else:
                    wanted = [at for at in rules.pages(name, end) if at > end - self.chunk]
                held = flat.held[name, Tier.L2]
                whole = all(Key(key.namespace, key.prefix[:at]) in held for at in wanted)
                if wanted and whole and (name, here) not in good:
                    lacking.append(f"{name} up to {key}")
                if name == rules.names[0] and not whole:
                    break
        return lacking


@functools.lru_cache(maxsize=1 << 14)
def chains_of(namespace: Namespace, tokens: tuple[int, ...], chunk: int) -> list[bytes]:
    """The chain hashes of all whole chunks."""
    return chain(seed(namespace), np.asarray(tokens, "<u4").tobytes(), chunk)
