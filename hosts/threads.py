"""A cache for synchronous engines: it lives in a thread of its own, and any thread may call it.

Reached as `banyankv.threads`. Every verb of a cache and of its leases has three forms:

* `cache.acquire(tokens, timeout=1.0)` blocks until the answer is there;
* `cache.submit(cache.acquire, tokens)` answers a `Ticket` at once, which a step loop polls;
* a batch, blocking or submitted, serves a whole step by one trip to the cache's thread:
  `acquire_batch`, `extend_batch`, `publish_batch`, `release_batch`.

A batch answers a list in the order of its items: what the call returned, or the error that it raised.
One item that is refused does not fail the others.

Tokens are packed, and the stream that the calling thread has set is looked up, when the call is made.
A stream must live until its call is over.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from ..errors import BanyanError, ConfigError
from ..runtime import cache as on_trio
from ..runtime.arguments import stream_handle
from ..runtime.coordinator.inspection import Inspection
from ..runtime.coordinator.planning import Verdict
from ..runtime.coordinator.stats import CacheStats
from ..runtime.messages import EvictReport, Peeked
from ..runtime.tokens import Tokens, pack
from ..spec import Namespace, Tier
from . import tickets
from .bridge import Bridge
from .thread_lease import Lease
from .tickets import Call, Ticket, Verb, blocking

__all__ = ["Cache", "Lease", "Ticket", "open_cache"]

P = ParamSpec("P")
T = TypeVar("T")


class Cache:
    """A prefix cache in a thread of its own. Made by `open_cache`; any thread may use it.

    The verbs are those of a cache on trio, with their contracts: `deadline` is the cache's patience.
    `timeout`, in seconds, is the caller's: after it the call is given up, and DeadlineExceeded says
    that it is as if it had not been made. None, the default, waits without end.

    In the cache's own thread, where a policy, a store and `before_copy` run, blocking verbs raise
    WrongHost, and so does everything in a process that was forked. After the block Closed is raised.
    """

    def __init__(self, bridge: Bridge, cache: on_trio.Cache) -> None:
        self.bridge = bridge
        self.config = cache.config
        self.pools = cache.pools
        """The L1 tensors, by component."""
        self.page_size = cache.page_size
        self._cache = cache

    def __repr__(self) -> str:
        return f"<{self._cache!r} in a thread of its own>"

    def submit(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Ticket[T]:
        """Begin a blocking verb of this cache or of a lease without waiting; return its ticket.

        As in `cache.submit(cache.acquire, tokens, deadline=1.0)`. From the cache's own thread, too,
        and from a signal's handler. Calls that one thread submits are begun in that order.
        """
        return tickets.submit(verb, *args, **kwargs)

    # -- requests -------------------------------------------------------------------------------------

    @blocking
    def acquire(
        self,
        tokens: Tokens,
        *,
        namespace: Namespace | None = None,
        session: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        stream: int | None = None,
        timeout: float | None = None,
    ) -> Ticket[Lease]:
        """Lease the longest reusable prefix of a prompt, bringing it to L1 where it is lower."""
        verb = partial(
            self._cache.acquire,
            _pack(tokens),
            namespace=namespace,
            session=session,
            priority=priority,
            deadline=deadline,
        )
        return self._send(partial(self._lease, verb, self.stream(stream)), timeout, traced=True)

    @blocking
    def try_acquire(
        self,
        tokens: Tokens,
        *,
        namespace: Namespace | None = None,
        session: str | None = None,
        priority: int = 0,
        stream: int | None = None,
        timeout: float | None = None,
    ) -> Ticket[Lease | None]:
        """Lease what is reusable from L1 at once, without waiting; None where that cannot be told now."""
        verb = partial(
            self._cache.try_acquire,
            _pack(tokens),
            namespace=namespace,
            session=session,
            priority=priority,
        )
        return self._send(partial(self._try_lease, verb, self.stream(stream)), timeout, traced=True)

    @blocking
    def acquire_batch(
        self,
        prompts: Sequence[Tokens],
        *,
        namespace: Namespace | None = None,
        priority: int = 0,
        stream: int | None = None,
        timeout: float | None = None,
    ) -> Ticket[list[Lease | BanyanError]]:
        """Lease for every prompt of a scheduler step what L1 has of it now, in their order.

        A prompt that is no list of tokens has its ConfigError in the answer. Brings nothing up from
        lower tiers: submit an `acquire` for what `peek` says is there.
        """
        if not isinstance(prompts, Sequence):
            raise ConfigError(f"prompts must be a sequence of prompts, not {prompts!r}")
        packed: list[bytes | BanyanError]
        try:
            packed = [_pack(each) for each in prompts]
        except ConfigError:
            packed = [_pack_or_error(each) for each in prompts]
        verb = partial(self._cache.acquire_batch, namespace=namespace, priority=priority)
        return self._send(
            partial(self._lease_all, packed, verb, self.stream(stream)), timeout, traced=True
        )

    @blocking
    def extend_batch(
        self,
        leases: Sequence[Lease],
        counts: Sequence[int] | int,
        *,
        deadline: float | None = None,
        stream: int | None = None,
        timeout: float | None = None,
    ) -> Ticket[list[BanyanError | None]]:
        """Take private pages for so many more tokens of each lease: `counts` are theirs, or one for all.

        Each waits for room by itself, first come first served.
        """
        verb = Lease.extending
        return self._each(verb, leases, counts, deadline=deadline, stream=stream, timeout=timeout)

    @blocking
    def publish_batch(
        self,
        leases: Sequence[Lease],
        uptos: Sequence[int | None] | None = None,
        *,
        stream: int | None = None,
        timeout: float | None = None,
    ) -> Ticket[list[int | BanyanError]]:
        """Publish each lease up to its `upto`, by default all that is computed and known."""
        return self._each(Lease.publishing, leases, uptos, stream=stream, timeout=timeout)

    @blocking
    def release_batch(self, leases: Sequence[Lease], *, stream: int | None = None) -> Ticket[None]:
        """Release all of these leases, as `release` does. Raises ConfigError for what is none."""
        handle = self.stream(stream)
        bridge = self.bridge
        for lease in leases:
            if not (isinstance(lease, Lease) and lease.bridge is bridge):
                raise _foreign(lease)
        ticket: Ticket[None] = Ticket(self.bridge, firm=True)
        if self.bridge.closed:
            ticket.settle_call(0, None)
        else:
            leaves = [lease.leaving(handle) for lease in leases]
            self.bridge.send([Call(ticket, partial(_one_by_one, leaves))])
        for lease in leases:
            lease.left()
        return ticket

    @blocking
    def peek(
        self, tokens: Tokens, *, namespace: Namespace | None = None, timeout: float | None = None
    ) -> Ticket[Peeked]:
        """Return how much of a prompt could be reused; never changes anything."""
        return self._send(partial(self._cache.peek, pack(tokens), namespace=namespace), timeout)

    @blocking
    def explain(
        self, tokens: Tokens, *, namespace: Namespace | None = None, timeout: float | None = None
    ) -> Ticket[tuple[Verdict, ...]]:
        """Return, per component, how far it would go, which node stops it, and why."""
        return self._send(partial(self._cache.explain, pack(tokens), namespace=namespace), timeout)

    # -- upkeep ---------------------------------------------------------------------------------------

    @blocking
    def evict(
        self, component: str, pages: int, tier: Tier = Tier.L1, *, timeout: float | None = None
    ) -> Ticket[EvictReport]:
        """Evict unlocked payload of a component until `pages` are free or pending, or nothing is left."""
        return self._send(partial(self._cache.evict, component, pages, tier), timeout)

    @blocking
    def flush(self, *, timeout: float | None = None) -> Ticket[None]:
        """Forget everything that no lease holds, on L1 and L2, in slices between other work."""
        return self._send(self._cache.flush, timeout)

    @blocking
    def settle(self, *, timeout: float | None = None) -> Ticket[None]:
        """Wait until no copy and no store call is in flight or due."""
        return self._send(self._cache.settle, timeout)

    @blocking
    def stats(self, *, timeout: float | None = None) -> Ticket[CacheStats]:
        """Return counters and usage."""
        return self._send(self._cache.stats, timeout)

    @blocking
    def inspect(self, *, timeout: float | None = None) -> Ticket[Inspection]:
        """Return all bookkeeping at this moment: costs as much as the cache is large."""
        return self._send(self._cache.inspect, timeout)

    @blocking
    def check(self, *, timeout: float | None = None) -> Ticket[None]:
        """Prove all invariants; raises IntegrityError naming the first that does not hold."""
        return self._send(self._cache.check, timeout)

    @blocking
    def tree(self, *, timeout: float | None = None) -> Ticket[Any]:
        """Return the actors of this cache with their statistics."""
        return self._send(self._tree, timeout)

    # -- in the caller's thread -----------------------------------------------------------------------

    def stream(self, stream: int | None) -> int:
        """Return the handle of a call's stream: by default the one that this thread has set."""
        return self.bridge.fences.current() if stream is None else stream_handle(stream)

    def _send(self, verb: Verb, timeout: float | None, *, traced: bool = False) -> Ticket[Any]:
        self.bridge.require_open()
        ticket: Ticket[Any] = Ticket(self.bridge, timeout=timeout)
        # A request's span becomes a child of what its caller is doing.
        call = Call(ticket, verb, context=contextvars.copy_context() if traced else None)
        ticket.calls.append(call)
        self.bridge.send([call])
        return ticket

    def _each(
        self,
        verb: Callable[[Lease, Any, float | None, int], Verb],
        leases: Sequence[Lease],
        given: Sequence[Any] | int | None,
        *,
        deadline: float | None = None,
        stream: int | None,
        timeout: float | None,
    ) -> Ticket[list[Any]]:
        """Send one call for each lease, with what is given for it or for all.

        Who is refused at once has the error as outcome.
        """
        try:
            count = len(leases)
            arguments = [given] * count if given is None or isinstance(given, int) else list(given)
        except TypeError as error:
            raise ConfigError(
                f"a batch takes a sequence of leases, and one of what each is called with: {error}"
            ) from error
        if len(arguments) != count:
            raise ConfigError(f"{count} leases, but {len(arguments)} numbers for them")
        self.bridge.require_open()
        handle = self.stream(stream)
        ticket: Ticket[list[Any]] = Ticket(self.bridge, count, batch=True, timeout=timeout)
        calls: list[Call] = []
        for index, (lease, argument) in enumerate(zip(leases, arguments, strict=True)):
            try:
                if not (isinstance(lease, Lease) and lease.bridge is self.bridge):
                    raise _foreign(lease)
                call = lease.call(ticket, verb(lease, argument, deadline, handle), handle, index)
            except BanyanError as error:
                ticket.settle_call(index, error)
            else:
                calls.append(call)
        if calls:
            ticket.calls = calls.copy()
            self.bridge.send(calls)
        return ticket

    # -- in the cache's thread ------------------------------------------------------------------------

    async def _lease(self, acquire: Callable[..., Any], handle: int) -> Lease:
        return Lease(self, await acquire(stream=handle), handle)

    async def _try_lease(self, try_acquire: Callable[..., Any], handle: int) -> Lease | None:
        lease = try_acquire(stream=handle)
        return None if lease is None else Lease(self, lease, handle)

    async def _lease_all(
        self, prompts: list[bytes | BanyanError], acquire: Callable[..., Any], handle: int
    ) -> list[Lease | BanyanError]:
        good = [each for each in prompts if isinstance(each, bytes)]
        leases = iter(await acquire(good, stream=handle))
        return [
            Lease(self, next(leases), handle) if isinstance(each, bytes) else each
            for each in prompts
        ]

    async def _tree(self) -> Any:
        return self._cache.tree()


def _foreign(lease: object) -> ConfigError:
    return ConfigError(f"a batch takes leases of this cache, not {lease!r}")


def _pack(prompt: Tokens) -> bytes:
    packed = pack(prompt)
    if not packed:
        raise ConfigError("an empty prompt has nothing to reuse or compute")
    return packed


def _pack_or_error(prompt: Tokens) -> bytes | BanyanError:
    try:
        return _pack(prompt)
    except ConfigError as error:
        return error


async def _one_by_one(verbs: list[Verb]) -> None:
    for verb in verbs:
        await verb()


class Opening(AbstractContextManager[Cache]):
    """Opens a cache in a thread of its own, and closes it, once."""

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[on_trio.Cache]]) -> None:
        self._bridge: Bridge | None = None
        self._opening = opening

    def __enter__(self) -> Cache:
        if self._bridge is not None:
            raise ConfigError("this block has been entered before: call open_cache again")
        self._bridge = Bridge(self._opening)
        return Cache(self._bridge, self._bridge.open())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        failure = cast("Bridge", self._bridge).close()
        if failure is not None and error is None:
            raise failure


def _in_a_thread(
    opening: Callable[P, AbstractAsyncContextManager[on_trio.Cache]],
) -> Callable[P, Opening]:
    def open_cache(*args: P.args, **kwargs: P.kwargs) -> Opening:
        """Open a cache in a thread of its own for the length of a `with` block.

        Takes what `banyankv.open_cache` takes. What is called back (a policy, a store, `before_copy`)
        runs in the cache's thread.
        """
        return Opening(partial(opening, *args, **kwargs))

    # `help` shows what it takes
    signature = inspect.signature(opening).replace(return_annotation="Opening")
    open_cache.__signature__ = signature  # type: ignore[attr-defined]
    return open_cache


open_cache = _in_a_thread(on_trio.open_cache)
