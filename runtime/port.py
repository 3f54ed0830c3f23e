"""The way from the public face to the cache actor: all that `Cache` and its leases need of their host.

This one is for trio. A host of another kind gives the same `Cache` and `Lease` a port of its own, and
nothing else: what waits, tells the time, looks for cancellation or yields goes through here.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Awaitable, Callable
from threading import get_ident
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

import trio
from trio.lowlevel import checkpoint, checkpoint_if_cancelled, in_trio_task

from ..actors import Message, Trace
from ..errors import ActorStopped, Closed, ConfigError, WrongHost
from ..spec import ModelSpec, PagedSpec
from .arguments import require_text

if TYPE_CHECKING:
    from .assembly import Assembled

T = TypeVar("T")

YIELD_SECONDS = 0.001
"""Seconds that a caller may run on answers that never waited before a call yields for it."""

_CLOSED = "the cache has closed; what it held is forgotten"

FORKED = (
    "this process was forked while the cache was open, which lives on in its parent only: start the "
    "child by spawn instead, and open a cache of its own there"
)


class Answering(Protocol):
    """Ask the cache actor, and wait where it waits; cancellation is not looked for where it does not."""

    def __call__(
        self, msg: Message[T], *, deadline: float | None = None, trace: Trace | None = None
    ) -> Awaitable[T]:
        """Return the answer, or raise what the actor refuses with."""
        ...


class Port:
    """Ask the cache actor on behalf of callers, and know what its leases need to know of the model.

    `leases` are the records that faces share with the cache actor. `closed` says that the block of
    `open_cache` has been left: nothing is held any more.
    """

    __slots__ = (
        "__weakref__",
        "_paged",
        "_snapshots",
        "_thread",
        "_yield_due",
        "answer",
        "closed",
        "fences",
        "leases",
        "page_size",
        "ref",
    )

    def __init__(self, model: ModelSpec, assembled: Assembled) -> None:
        self.ref = assembled.cache
        self.fences = assembled.fences
        self.leases = assembled.leases
        self.closed = False
        self.page_size = model.page_size
        components = list(enumerate(model.components))
        self._paged = {c.name: index for index, c in components if isinstance(c, PagedSpec)}
        self._snapshots = {c.name: index for index, c in components if c.name not in self._paged}
        self._yield_due = 0.0
        # 0 in a child after a fork, so that the one comparison that each call makes finds that out too
        self._thread = get_ident()
        _OPEN.add(self)
        self.answer: Answering = self.ref.ask
        """The ask itself, for who has looked for cancellation: nothing stands between on a hot path."""

    def index(self, component: str, *, snapshot: bool) -> int:
        """Return a component's place in the model; refuse the wrong kind."""
        known = self._snapshots if snapshot else self._paged
        index = known.get(require_text("component", component))
        if index is None:
            kind = "snapshot" if snapshot else "paged"
            names = ", ".join(known) or "none"
            raise ConfigError(f"{component!r} is no {kind} component; there is {names}")
        return index

    # -- the host ---------------------------------------------------------------------------------

    def yield_if_due(self) -> Awaitable[None]:
        """Check for cancellation, and yield where the caller has run for a millisecond."""
        self.require_host()
        now = time.monotonic()
        if now > self._yield_due:
            self._yield_due = now + YIELD_SECONDS
            return checkpoint()  # noqa: ASYNC105 - the caller awaits it
        return checkpoint_if_cancelled()  # noqa: ASYNC105 - the caller awaits it

    def require_host(self) -> None:
        """Raise WrongHost where the caller cannot wait for this cache."""
        if self._thread != get_ident() or not in_trio_task():
            self._refuse_host()

    def require_thread(self) -> None:
        """Raise WrongHost where the caller cannot call this cache, not even without waiting."""
        if self._thread != get_ident():
            self._refuse_host()

    def _refuse_host(self) -> NoReturn:
        self.refuse_closed()
        if not self._thread:
            raise WrongHost(FORKED)
        if self._thread != get_ident():
            raise WrongHost(
                "the cache was opened in a trio run of another thread: call it there, by "
                "trio.from_thread.run, or open it with banyankv.threads.open_cache"
            )
        raise WrongHost(
            "the cache was opened for trio, and this is no trio task: call it from one, or open it "
            "with banyankv.asyncio.open_cache where your program runs on asyncio"
        )

    def time(self) -> float:
        """Return the time by which deadlines are said to the cache actor."""
        self.require_host()
        self.refuse_closed()
        return trio.current_time()

    async def shielded(self, call: Callable[[], Awaitable[None]]) -> None:
        """Await what must come to its end even for a cancelled caller."""
        with trio.CancelScope(shield=True):
            await call()

    # -- for every host ---------------------------------------------------------------------------

    async def ask(self, msg: Message[T], trace: Trace | None = None) -> T:
        """Have an operation done, waiting where it waits; look for cancellation first."""
        await self.yield_if_due()
        try:
            return await self.answer(msg, trace=trace)
        except ActorStopped as error:
            self.refuse_stopped(error)
            raise

    def refuse_stopped(self, error: BaseException) -> None:
        """Raise Closed in place of the kernel's word that the cache actor has stopped."""
        if isinstance(error, ActorStopped):
            raise Closed(_CLOSED, error) from error

    def refuse_closed(self) -> None:
        """Raise Closed where the cache actor has stopped for good."""
        if self.ref.stopped:
            raise Closed(_CLOSED)

    def forked(self) -> None:
        """Hear that this is a forked child: the cache lives on in the parent only."""
        self._thread = 0


_OPEN: weakref.WeakSet[Port] = weakref.WeakSet()


def _after_fork() -> None:
    for port in _OPEN:
        port.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
