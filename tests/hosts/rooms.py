"""Caches that are small enough to wait for, and what a scenario holds up or looks at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from banyankv import (
    Cache,
    CacheConfig,
    Lease,
    ModelSpec,
    PagedSpec,
    SnapshotSpec,
    StateTensor,
    StoreConfig,
)
from banyankv.testing import MemoryStore

from .host import Host, until

if TYPE_CHECKING:
    import torch

MODEL = ModelSpec(
    name="m",
    page_size=2,
    components=(
        PagedSpec(name="full"),
        PagedSpec(name="swa", rule="swa", window=4),
        SnapshotSpec(states=(StateTensor("s", (1,), "float32"),)),
    ),
)
PROMPT = list(range(8))
NEXT = [*PROMPT, 50]
"""A prompt that can reuse all of PROMPT, once that was served."""
OTHER = list(range(100, 108))


def config(
    dispatch: str, *, pages: int = 16, l2: int = 0, folder: Path | None = None, **more: Any
) -> CacheConfig:
    """Return the configuration of a cache with so many pages of each component."""
    room = {"full": pages, "swa": pages, "mamba": 6}
    return CacheConfig(
        model=MODEL,
        l1=room,
        l2={"full": l2, "swa": l2, "mamba": 6} if l2 else None,
        store=None if folder is None else StoreConfig(path=str(folder), max_bytes=1 << 22),
        dispatch=dispatch,
        prefetch_threshold=2,
        **more,
    )


class Gate:
    """Holds what passes it until it is opened: copies, or a store's reads.

    Awaited by trio on every host, perhaps in another thread than the scenario's.
    """

    def __init__(self) -> None:
        self._run: trio.lowlevel.TrioToken | None = None
        self._open = trio.Event()
        self._open.set()
        self.held = 0

    def close(self) -> None:
        self._open = trio.Event()

    def open(self) -> None:
        if self._run is None:
            self._open.set()
        else:
            self._run.run_sync_soon(self._open.set)

    async def __call__(self, *_: object) -> None:
        self._run = trio.lowlevel.current_trio_token()
        self.held += 1
        await self._open.wait()
        self.held -= 1


class GatedStore(MemoryStore):
    """A store whose reads pass a gate."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await self._gate()
        return await super().get(keys)


async def turn(cache: Cache, tokens: list[int], *, deadline: float | None = None) -> int:
    """Serve one request from acquire to release; return what it reused."""
    async with await cache.acquire(tokens, deadline=deadline) as lease:
        await lease.extend(len(tokens) - lease.extent, deadline=deadline)
        if len(tokens) % MODEL.page_size == 0:
            await lease.snapshot(at=len(tokens))
        await lease.publish()
        return lease.length


def _pages(cache: Cache, lease: Lease) -> Iterator[tuple[int, torch.Tensor]]:
    """Give each page of FULL and of the window that a lease shows: its place, and its bytes."""
    for name in ("full", "swa"):
        first = lease.start(name) // MODEL.page_size
        for place, page in enumerate(lease.pages(name), first):
            yield place, cache.pools.raw(name)[0][page]


def compute(cache: Cache, lease: Lease, mark: int) -> None:
    """Fill all pages of a lease that found nothing with bytes of its own, as an engine would."""
    for place, row in _pages(cache, lease):
        row.fill_(mark + place)


def bytes_are_right(cache: Cache, lease: Lease, mark: int) -> None:
    """Prove that all pages still hold what `compute` wrote."""
    shown = list(_pages(cache, lease))
    assert shown
    for place, row in shown:
        assert row.eq(mark + place).all()


async def nothing_is_held(host: Host, cache: Cache) -> None:
    """Prove that no lease is live and every invariant holds."""
    await cache.settle()
    left: Any = True
    for _ in range(500):
        left = (await cache.inspect()).leases
        if not left:
            break
        await host.sleep(0.002)
    assert not left
    await cache.check()


__all__ = [
    "MODEL",
    "NEXT",
    "OTHER",
    "PROMPT",
    "Gate",
    "GatedStore",
    "bytes_are_right",
    "compute",
    "config",
    "nothing_is_held",
    "turn",
    "until",
]
