"""A cache for programs that run on asyncio: `banyankv.asyncio.open_cache`.

The same `Cache` and `Lease`, awaited in asyncio's tasks. trio runs as a guest in the thread of the loop.
What needs no waiting is answered in the caller's own step; what must wait is waited for in a future of
the loop. Works with asyncio's own loops and with uvloop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, ParamSpec

from ..actors import protected_context
from ..runtime import cache as on_trio
from ..runtime.cache import Cache
from .guest import Stay, guest_here
from .loop_port import LoopPort

__all__ = ["open_cache"]

P = ParamSpec("P")


def _takes_what(
    opener: Callable[P, AbstractAsyncContextManager[Cache]],
) -> Callable[
    [Callable[..., AbstractAsyncContextManager[Cache]]],
    Callable[P, AbstractAsyncContextManager[Cache]],
]:
    """Give a function the parameters of another one, for readers and for type checkers."""

    def typed(
        function: Callable[..., AbstractAsyncContextManager[Cache]],
    ) -> Callable[P, AbstractAsyncContextManager[Cache]]:
        function.__wrapped__ = opener  # type: ignore[attr-defined]
        return function

    return typed


@_takes_what(on_trio.open_cache)
def open_cache(*args: Any, **parts: Any) -> AbstractAsyncContextManager[Cache]:
    """Open a cache for the length of a block of an asyncio program.

    Takes what `banyankv.open_cache` takes; a store and `before_copy` are awaited by trio. The cache
    and its leases are used in tasks of this loop; elsewhere they raise WrongHost. `task.cancel()` and
    `asyncio.timeout` cancel as trio does: before an operation, or while it waits, and what it had
    taken is given back. A cancellation that comes too late for that is raised when the operation is
    over. Several caches can be open in a loop, and trio must not run in its thread otherwise.
    """
    return _opened(on_trio.open_cache(*args, **parts))


@protected_context
async def _opened(opening: AbstractAsyncContextManager[Cache]) -> AsyncGenerator[Cache, None]:
    # A generator is also what asyncio.run closes, while its loop still runs, where nobody left the block.
    stay = Stay(await guest_here(), opening)
    cache = (await stay.enter()).through(LoopPort)
    failure: BaseException | None = None
    try:
        yield cache
    except BaseException as error:  # noqa: BLE001 - raised again when the cache is closed
        failure = error
    cache.leave()
    try:
        await stay.exit()
    except Exception:
        if failure is None:
            raise
    if failure is not None:
        raise failure
