"""Caches in which something waits: for room, for a copy or for the store."""

from __future__ import annotations

from typing import Any

from banyankv import Cache, Lease

from .host import Host
from .rooms import NEXT, OTHER, PROMPT, Gate, GatedStore, config, turn


async def below(host: Host, cache: Cache) -> None:
    """Have PROMPT lie below L1 only."""
    await turn(cache, PROMPT)
    await cache.settle()
    for component in ("full", "swa", "mamba"):
        await cache.evict(component, 99)


async def in_the_store(host: Host, cache: Cache) -> None:
    """Have a chunk of a prompt lie in the store only."""
    await turn(cache, LONG[:256])
    await cache.settle()
    await cache.flush()


LONG = list(range(258))
"""A chunk of the store, and a page."""


class Waits:
    """A cache in which something waits: for room, for a copy or for the store."""

    def __init__(self, kind: str, dispatch: str) -> None:
        self.kind = kind
        self.gate = Gate()
        self.parts: dict[str, Any] = {"before_copy": self.gate}
        self.config = config(dispatch, pages=16, l2=16)
        if kind == "room":
            self.parts = {}
            self.config = config(dispatch, pages=8)
        elif kind == "store":
            self.parts = {"store": GatedStore(self.gate)}
            self.config = config(dispatch, pages=140, l2=140, store_timeout=60.0)
        self._holder: Lease | None = None

    async def prepare(self, host: Host, cache: Cache) -> None:
        """Bring it about that `call` will wait."""
        if self.kind == "room":
            self._holder = await cache.acquire(OTHER)
            await self._holder.extend(12)
        elif self.kind == "copy":
            await below(host, cache)
        else:
            await in_the_store(host, cache)
        self.gate.close()

    async def call(self, cache: Cache) -> int:
        """Wait for it, and give back what came; return how much was reused."""
        async with await cache.acquire(LONG if self.kind == "store" else NEXT) as lease:
            if self.kind == "room":
                await lease.extend(9)
            return lease.length

    async def go(self) -> None:
        """Let come what is waited for."""
        self.gate.open()
        if self._holder is not None:
            await self._holder.release()

    def waiting(self) -> bool:
        return self.kind == "room" or self.gate.held > 0
