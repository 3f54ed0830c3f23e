"""The simplest store: a dictionary."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from .protocol import StoreStatistics


class MemoryStore:
    """A `Store` in a dictionary, unbounded: for tests, and to see what a tier alone costs."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self.objects)} objects>"

    async def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """See `Store`. A checkpoint."""
        await trio.lowlevel.checkpoint()
        return [key in self.objects for key in keys]

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `Store`. A checkpoint."""
        await trio.lowlevel.checkpoint()
        return [self.objects.get(key) for key in keys]

    async def put(self, items: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        """See `Store`. A checkpoint."""
        await trio.lowlevel.checkpoint()
        self.objects.update(items)
        return [True] * len(items)

    async def delete(self, keys: Sequence[bytes]) -> list[bool]:
        """See `Store`. A checkpoint."""
        await trio.lowlevel.checkpoint()
        return [self.objects.pop(key, None) is not None for key in keys]

    async def aclose(self) -> None:
        """See `Store`. A checkpoint."""
        await trio.lowlevel.checkpoint()

    def statistics(self) -> StoreStatistics:
        """See `Store`."""
        held = sum(map(len, self.objects.values()))
        return StoreStatistics(
            objects=len(self.objects),
            bytes=held,
            max_bytes=0,
            evicted_objects=0,
            refused_objects=0,
        )
