"""The threads host, as scenarios see it: verbs are submitted, and polled for in a trio task."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Self

import banyankv
import trio
from banyankv import Cache, CacheConfig, threads

from .host import Trio

_POLL = 0.0002
"""Seconds from the first look at a ticket to the next; then ever longer, so that a call has few steps."""

_LONGEST = 0.005

VERBS = ("extend", "trim", "snapshot", "publish", "release")


async def outcome_of(ticket: threads.Ticket[Any]) -> Any:
    """Poll until the answer is there; who is cancelled cancels the ticket, and sees its call out."""
    try:
        await _ready(ticket)
    except trio.Cancelled:
        ticket.cancel()
        with trio.CancelScope(shield=True):
            await _ready(ticket)
        raise
    return ticket.result()


async def _ready(ticket: threads.Ticket[Any]) -> None:
    await trio.lowlevel.checkpoint()  # each call has a step to be cancelled at, be it ready by then
    pause = _POLL
    while not ticket.poll():
        await trio.sleep(pause)
        pause = min(2 * pause, _LONGEST)


class AwaitedLease:
    """A lease of a cache in another thread, whose verbs are awaited."""

    def __init__(self, cache: threads.Cache, lease: threads.Lease) -> None:
        self._cache = cache
        self.lease = lease

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.lease, name)
        return partial(self._await, found) if name in VERBS else found

    async def _await(self, verb: Callable[..., Any], *args: Any, **parts: Any) -> Any:
        await trio.lowlevel.checkpoint_if_cancelled()
        return await outcome_of(self._cache.submit(verb, *args, **parts))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with trio.CancelScope(shield=True):
            await self._await(self.lease.release)


class AwaitedCache:
    """A cache in another thread, whose verbs are awaited."""

    def __init__(self, cache: threads.Cache) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cache, name)
        return partial(self._await, found) if callable(found) else found

    def try_acquire(self, *args: Any, **parts: Any) -> Any:
        return self._wrapped(self._cache.try_acquire(*args, **parts))

    async def _await(self, verb: Callable[..., Any], *args: Any, **parts: Any) -> Any:
        await trio.lowlevel.checkpoint_if_cancelled()
        return self._wrapped(await outcome_of(self._cache.submit(verb, *args, **parts)))

    def _wrapped(self, answer: Any) -> Any:
        if isinstance(answer, list):
            return [self._wrapped(each) for each in answer]
        return AwaitedLease(self._cache, answer) if isinstance(answer, threads.Lease) else answer


class Threads(Trio):
    """Scenarios run in a trio of their own, and the cache in its thread."""

    name = "threads"

    def open(self, config: CacheConfig, **parts: Any) -> AbstractAsyncContextManager[Cache]:
        return self._opened(config, parts)

    @asynccontextmanager
    async def _opened(self, config: CacheConfig, parts: dict[str, Any]) -> AsyncIterator[Any]:
        opening = banyankv.threads.open_cache(config, **parts)
        cache = await trio.to_thread.run_sync(opening.__enter__)
        try:
            yield AwaitedCache(cache)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(opening.__exit__, *sys.exc_info())
