"""A lease of a cache that lives in another thread."""

from __future__ import annotations

import threading
import warnings
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ..errors import LeaseInUse, StaleLease
from ..runtime import lease as on_trio
from ..runtime.messages import HitTokens
from ..runtime.tokens import Tokens, pack
from .tickets import Call, Ticket, Verb, blocking

if TYPE_CHECKING:
    from .threads import Cache

T = TypeVar("T")


class Lease:
    """A locked prefix plus private pages. Use it as `with`; leaving the block gives all back.

    As a lease on trio, with its names and contracts, but that its verbs block, and `submit` begins
    them without waiting. Any thread may use it, one call at a time: while one is under way every
    other raises LeaseInUse, reading page tables included, but `release`, which ends that call. The
    tables are read without a trip to the cache's thread.

    A lease that is dropped without being released is given back, with a ResourceWarning.
    """

    __slots__ = ("__weakref__", "_cache", "_handle", "_lease", "_live", "bridge", "turn")

    def __init__(self, cache: Cache, lease: on_trio.Lease, handle: int) -> None:
        self.bridge = cache.bridge
        self.turn = threading.Lock()
        self._cache = cache
        self._lease = lease
        self._handle = handle
        """The stream of the last call: what a lease is given back on that nobody releases."""
        self._live = True

    def __repr__(self) -> str:
        return repr(self._lease)

    def __del__(self) -> None:
        if self._live and not self.bridge.closed:
            self.bridge.send([Call(Ticket(self.bridge), self.leaving(self._handle))])
            warnings.warn(
                f"{self!r} was dropped and not released: it is given back now; use `with`, or release()",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    # -- without a trip ---------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """The number by which the cache knows it."""
        return self._lease.id

    @property
    def length(self) -> int:
        """Tokens that need no recompute: whole pages, and never the prompt's last token."""
        return self._lease.length

    @property
    def full_match(self) -> int:
        """How far FULL agreed; a state kept there would lift the next request that far."""
        return self._lease.full_match

    @property
    def hit(self) -> HitTokens:
        """Where the reused tokens were when the request came."""
        return self._lease.hit

    @property
    def extent(self) -> int:
        """Tokens that have pages."""
        return self._lease.extent

    @property
    def published(self) -> int:
        """Tokens that the tree owns."""
        return self._lease.published

    @property
    def known(self) -> int:
        """Tokens whose ids are known."""
        return self._lease.known

    def pages(self, component: str) -> memoryview:
        """Return the page table of a paged component: int32 ids of the tokens from `start(component)` on."""
        self._require_idle()
        return self._lease.pages(component)

    def start(self, component: str) -> int:
        """Return the token at which the first page of `pages(component)` begins."""
        self._require_idle()
        return self._lease.start(component)

    def state(self, component: str = "mamba") -> int | None:
        """Return the slot of the working state: the request's own, to be updated in place."""
        self._require_idle()
        return self._lease.state(component)

    def append(self, tokens: Tokens) -> None:
        """Tell the ids of generated tokens behind those known, so that they can be published."""
        packed = pack(tokens)
        self._require_live()
        if not self.turn.acquire(blocking=False):
            raise LeaseInUse
        try:
            self._lease.append(packed)
        finally:
            self.turn.release()

    def _require_live(self) -> None:
        self.bridge.require_process()
        if not self._live:
            raise StaleLease(self._lease.id)

    def _require_idle(self) -> None:
        self._require_live()
        if self.turn.locked():
            raise LeaseInUse

    # -- verbs ------------------------------------------------------------------------------------

    @blocking
    def extend(
        self,
        count: int,
        *,
        deadline: float | None = None,
        stream: int | None = None,
        timeout: float | None = None,
    ) -> Ticket[None]:
        """Take private pages for `count` more tokens, evicting under pressure.

        `deadline` is the cache's patience, after which it says NoCapacity; `timeout` the caller's.
        """
        handle = self._cache.stream(stream)
        verb = self.extending(count, deadline, handle)
        return self._send(Ticket(self.bridge, timeout=timeout), verb, handle)

    @blocking
    def snapshot(
        self,
        component: str = "mamba",
        *,
        at: int,
        stream: int | None = None,
        timeout: float | None = None,
    ) -> Ticket[int | None]:
        """Keep the working state as it is now as the state at `at`; return its slot, or None."""
        handle = self._cache.stream(stream)
        verb = partial(self._lease.snapshot, component, at=at, stream=handle)
        return self._send(Ticket(self.bridge, timeout=timeout), verb, handle)

    @blocking
    def trim(
        self, count: int, *, stream: int | None = None, timeout: float | None = None
    ) -> Ticket[None]:
        """Give back the last `count` tokens' room, and all ids told behind what is left."""
        handle = self._cache.stream(stream)
        verb = partial(self._lease.trim, count, stream=handle)
        return self._send(Ticket(self.bridge, timeout=timeout), verb, handle)

    @blocking
    def publish(
        self, upto: int | None = None, *, stream: int | None = None, timeout: float | None = None
    ) -> Ticket[int]:
        """Hand computed pages up to `upto` (floored to a page) over; return the length reached."""
        handle = self._cache.stream(stream)
        verb = self.publishing(upto, None, handle)
        return self._send(Ticket(self.bridge, timeout=timeout), verb, handle)

    @blocking
    def release(self, *, stream: int | None = None) -> Ticket[None]:
        """Give back everything; idempotent, and not cancelled half-way.

        A call of the lease that waits raises StaleLease then. Never raises for what happened to
        the cache; in a forked child it does nothing, since the lease is the parent's.
        """
        return self._release(self._cache.stream(stream))

    def _release(self, handle: int) -> Ticket[None]:
        ticket: Ticket[None] = Ticket(self.bridge, firm=True)
        if self._live and not self.bridge.closed:
            self.bridge.send([Call(ticket, self.leaving(handle))])
        else:
            ticket.settle_call(0, None)
        self._live = False
        return ticket

    def _send(self, ticket: Ticket[T], verb: Verb, handle: int) -> Ticket[T]:
        self.bridge.require_open()
        ticket.calls.append(self.call(ticket, verb, handle))
        self.bridge.send(ticket.calls)
        return ticket

    def give_back(self) -> None:
        """Release without waiting: what nobody has taken."""
        self._release(self._handle)

    # -- for the cache's batches ------------------------------------------------------------------

    def call(self, ticket: Ticket[Any], verb: Verb, handle: int, index: int = 0) -> Call:
        """Make a call of this lease, which takes its turn. Raises StaleLease, LeaseInUse."""
        if not self._live:
            raise StaleLease(self._lease.id)
        if not self.turn.acquire(blocking=False):
            raise LeaseInUse
        self._handle = handle
        return Call(ticket, verb, index, self)

    def extending(self, count: int, deadline: float | None, handle: int) -> Verb:
        """Return the verb of an extend."""
        return partial(self._lease.extend, count, deadline=deadline, stream=handle)

    def publishing(self, upto: int | None, deadline: float | None, handle: int) -> Verb:
        """Return the verb of a publish, which has no deadline."""
        return partial(self._lease.publish, upto, stream=handle)

    def leaving(self, handle: int) -> Verb:
        """Return the verb of a release; a call that is under way then raises StaleLease."""
        return partial(self._lease.release, stream=handle)

    def left(self) -> None:
        """Note that a release has been sent."""
        self._live = False
