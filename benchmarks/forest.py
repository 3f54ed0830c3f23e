"""Trees of a given size: what hits, evictions and publishes are measured in.

Fillers are leaves of one page under parents of one page, so that a tree of n nodes has about n
leaves. Beside them stand paths to be hit: a chain of short edges, as a conversation leaves it, and
one long edge for each length.
"""

from __future__ import annotations

import random

from ..runtime.cache import Cache
from ..runtime.lease import Lease
from ..spec import TOKEN_BYTES
from .workload import random_tokens

SHORT_EDGE = 2048
"""Tokens of an edge of the chain."""

_SEED = 7
_MARK = 1_000_000
"""Beyond the vocabulary: first tokens from here on make paths differ in their first page."""


class Forest:
    """Grow trees in a cache through its public API; deterministic."""

    def __init__(self, cache: Cache, page: int, *, states: bool) -> None:
        self._cache = cache
        self._page = page
        self._states = states
        self._source = random.Random(_SEED)
        self._marks = _MARK
        self._parents: list[bytes] = []
        self._leaves = 0

    def fresh(self, count: int) -> bytes:
        """Return `count` new tokens that agree with nothing in their first page."""
        self._marks += 1
        return (
            self._marks.to_bytes(TOKEN_BYTES, "little")
            + random_tokens(self._source, count)[TOKEN_BYTES:]
        )

    async def publish(self, tokens: bytes) -> None:
        """Publish a prompt, with a state at its end where the model has states."""
        lease = await self.prepare(tokens)
        await lease.publish()
        await lease.release()

    async def prepare(self, tokens: bytes) -> Lease:
        """Lease and compute a prompt, so that only publishing it is left."""
        lease = await self._cache.acquire(tokens)
        count = len(tokens) // TOKEN_BYTES
        await lease.extend(count - lease.length)
        if self._states:
            await lease.snapshot(at=count // self._page * self._page)
        return lease

    async def fill(self, nodes: int) -> None:
        """Add so many nodes: leaves in groups under parents."""
        groups = max(1, int(nodes**0.5))
        for _ in range(groups):
            self._parents.append(self.fresh(self._page))
            await self.publish(self._parents[-1])
        await self.leaves(nodes - groups)

    async def leaves(self, count: int) -> None:
        """Add so many leaves of one page."""
        for _ in range(count):
            parent = self._parents[self._leaves % len(self._parents)]
            self._leaves += 1
            await self.publish(parent + self.fresh(self._page))

    async def chain(self, length: int) -> bytes:
        """Publish a path of short edges, turn by turn; answer its tokens."""
        tokens = self.fresh(length)
        for end in range(SHORT_EDGE, length + 1, SHORT_EDGE):
            await self.publish(tokens[: end * TOKEN_BYTES])
        return tokens

    async def edge(self, length: int) -> bytes:
        """Publish a path of one edge; answer its tokens."""
        tokens = self.fresh(length)
        await self.publish(tokens)
        return tokens
