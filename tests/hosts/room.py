"""Small caches in threads of their own, and waiting for what another thread does."""

from __future__ import annotations

import threading
import time
from typing import Self

from banyankv import CacheConfig, ModelSpec, PagedSpec, SnapshotSpec, StateTensor

PROMPT = list(range(40))

_KINDS = {
    "full": PagedSpec(name="full"),
    "swa": PagedSpec(name="swa", rule="swa", window=2),
    "mamba": SnapshotSpec(states=(StateTensor("s", (1,), "float32"),)),
}


def config(dispatch: str, l1: dict[str, int], l2: int = 0) -> CacheConfig:
    """Pages of one token; components as `l1` names them; who waits for room has time."""
    model = ModelSpec(name="m", page_size=1, components=tuple(_KINDS[name] for name in l1))
    lower = dict.fromkeys(l1, l2) if l2 else None
    return CacheConfig(model=model, l1=l1, l2=lower, dispatch=dispatch, room_timeout=99)


def serve(cache, tokens) -> int:
    """Publish a prompt, and say how much of it was there."""
    with cache.acquire(tokens) as lease:
        lease.extend(len(tokens) - lease.length)
        lease.publish()
        return lease.length


def until(what) -> None:
    """Wait until something holds, as a step loop would: by looking."""
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.001)


def waiting(cache, count: int = 1) -> None:
    """Wait until so many requests wait for room."""
    until(lambda: cache.stats().waiting == count)


def clean(cache) -> None:
    until(lambda: cache.stats().leases == 0)
    cache.settle()
    cache.check()


class Gate:
    """Holds the cache's thread in a call, so that what is submitted meanwhile has not begun."""

    def __init__(self, cache) -> None:
        self._open = threading.Event()
        self._cache = cache

    def __enter__(self) -> Self:
        entered = threading.Event()

        async def hold() -> None:
            entered.set()
            self._open.wait(20)

        self._cache._send(hold, None)
        assert entered.wait(20)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.set()
