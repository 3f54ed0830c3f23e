"""The public face of a cache: `open_cache` and `Cache`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import trio

from ..actors import FaultPlan, Journal, protected_context
from ..components.contract import TreeComponent
from ..components.policies import Policy
from ..errors import ConfigError, WouldWait, WrongHost
from ..spec import TOKEN_BYTES, ModelSpec, Namespace, Tier
from ..telemetry import Telemetry
from . import messages as m
from .arguments import (
    optional,
    optional_text,
    require_int,
    require_namespace,
    require_seconds,
    require_text,
    require_tier,
    stream_handle,
)
from .assembly import Assembled, assemble
from .checking import check
from .config import CacheConfig
from .coordinator.inspection import Inspection
from .coordinator.planning import Verdict
from .coordinator.stats import CacheStats
from .lease import Lease
from .port import Port
from .request_timer import RequestTimer
from .tokens import Tokens, pack

if TYPE_CHECKING:
    import torch

    from ..tiers.pools import DevicePools
    from ..tiers.store.protocol import Store


class Cache:
    """A prefix cache inside this process. Made by `open_cache`; use it from the same trio run.

    One that `banyankv.asyncio.open_cache` made is used from tasks of the same asyncio loop instead.

    Async methods check for cancellation before they begin, never after: what they took is yours or
    was given back. They yield when they must wait, or when the caller has run for a millisecond.

    Tokens are a sequence of ids, or a buffer of integers (array, numpy, torch). `bytes` are packed
    ids, four bytes (little-endian uint32) a token: text of one byte a token is `list(text)`.
    """

    def __init__(
        self, config: CacheConfig, assembled: Assembled, port: Port, telemetry: Telemetry
    ) -> None:
        self.config = config
        self.pools: DevicePools = assembled.pools
        """The L1 tensors, by component."""
        self.page_size = config.model.page_size
        self._telemetry = telemetry
        self._assembled = assembled
        self._port = port

    def __repr__(self) -> str:
        return f"<Cache of {self.config.model.name!r} [{self._port.ref!r}]>"

    # -- requests -------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def acquire(
        self,
        tokens: Tokens,
        *,
        namespace: Namespace | None = None,
        session: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        stream: int | None = None,
    ) -> Lease:
        """Lease the longest reusable prefix of a prompt, bringing it to L1 where it is lower.

        `deadline` is in seconds from now: DeadlineExceeded after it, with everything given back; 0
        or less means not to wait: then what L1 has now is leased. At least one token is always left
        to compute. `session` only names the request in traces and logs so far.
        """
        until = None
        if deadline is not None:
            patience = require_seconds("deadline", deadline)
            if patience > 0:
                until = self._port.time() + patience
        wait = deadline is None or until is not None
        msg = self._acquire(tokens, namespace, priority, stream, wait=wait)
        count = len(msg.tokens) // TOKEN_BYTES
        request = RequestTimer(self._telemetry, optional_text("session", session), count)
        try:
            await self._port.yield_if_due()
            acquired = await self._port.answer(msg, deadline=until, trace=request.trace)
        except BaseException as error:
            request.failed(error)
            self._port.refuse_stopped(error)
            raise
        request.leased()
        return Lease(self._port, acquired, count, request, msg.stream)

    @trio.lowlevel.enable_ki_protection
    def try_acquire(
        self,
        tokens: Tokens,
        *,
        namespace: Namespace | None = None,
        session: str | None = None,
        priority: int = 0,
        stream: int | None = None,
    ) -> Lease | None:
        """Lease what is reusable from L1 at once, without waiting; None where that cannot be told now.

        Raises Closed where the cache has closed: None means that another try may succeed.
        """
        self._port.require_thread()
        for ref in self._assembled.needed:
            if not ref.ready:
                self._port.refuse_closed()
                return None
        msg = self._acquire(tokens, namespace, priority, stream, wait=False)
        count = len(msg.tokens) // TOKEN_BYTES
        request = RequestTimer(self._telemetry, optional_text("session", session), count)
        try:
            acquired = self._port.ref.call(msg, request.trace)
        except WouldWait as error:
            request.failed(error)
            return None
        except BaseException as error:
            request.failed(error)
            self._port.refuse_stopped(error)
            raise
        request.leased()
        return Lease(self._port, acquired, count, request, msg.stream)

    @trio.lowlevel.enable_ki_protection
    async def acquire_batch(
        self,
        prompts: Sequence[Tokens],
        *,
        namespace: Namespace | None = None,
        priority: int = 0,
        stream: int | None = None,
    ) -> list[Lease]:
        """Lease for every prompt of a scheduler step what L1 has of it now, in their order.

        One message to the tree and one to each component serve all of them. As `try_acquire`, it
        brings nothing up from lower tiers: `acquire` what `peek` says is there. Cancelled, or refused
        for one prompt, it takes nothing for any.
        """
        if not isinstance(prompts, Sequence):
            raise ConfigError(f"prompts must be a sequence of prompts, not {prompts!r}")
        requests = tuple(
            [self._acquire(each, namespace, priority, stream, wait=False) for each in prompts]
        )
        if not requests:
            return []
        traced = [
            RequestTimer(self._telemetry, None, len(r.tokens) // TOKEN_BYTES) for r in requests
        ]
        msg = m.AcquireBatch(requests, tuple([request.trace for request in traced]))
        try:
            leased = await self._port.ask(msg)
        except BaseException as error:
            for request in traced:
                request.failed(error)
            raise
        leases: list[Lease] = []
        for acquired, asked, request in zip(leased, requests, traced, strict=True):
            request.leased()
            count = len(asked.tokens) // TOKEN_BYTES
            leases.append(Lease(self._port, acquired, count, request, asked.stream))
        return leases

    def _acquire(
        self,
        tokens: Tokens,
        namespace: Namespace | None,
        priority: int,
        stream: int | None,
        *,
        wait: bool,
    ) -> m.Acquire:
        packed = pack(tokens)
        if not packed:
            raise ConfigError("an empty prompt has nothing to reuse or compute")
        return m.Acquire(
            require_namespace(namespace),
            packed,
            require_int("priority", priority),
            wait,
            stream_handle(stream),
        )

    async def peek(self, tokens: Tokens, *, namespace: Namespace | None = None) -> m.Peeked:
        """Return how much of a prompt could be reused; never changes anything."""
        return await self._port.ask(m.Peek(require_namespace(namespace), pack(tokens)))

    async def explain(
        self, tokens: Tokens, *, namespace: Namespace | None = None
    ) -> tuple[Verdict, ...]:
        """Return, per component, how far it would go, which node stops it, and why."""
        return await self._port.ask(m.Explain(require_namespace(namespace), pack(tokens)))

    # -- upkeep ---------------------------------------------------------------------------------------

    async def evict(self, component: str, pages: int, tier: Tier = Tier.L1) -> m.EvictReport:
        """Evict unlocked payload of a component until `pages` are free or pending, or nothing is left."""
        return await self._port.ask(
            m.EvictPages(
                require_text("component", component),
                require_int("pages", pages, 0),
                require_tier(tier),
            )
        )

    async def flush(self) -> None:
        """Forget everything that no lease holds, on L1 and L2, in slices between other work."""
        tiers = [Tier.L1] if self.config.l2 is None else [Tier.L1, Tier.L2]
        for tier in tiers:
            for component in self.config.model.components:
                while True:
                    report = await self.evict(component.name, _FLUSH_PAGES, tier)
                    if not report.nodes:
                        break

    async def settle(self) -> None:
        """Wait until no copy and no store call is in flight or due."""
        await self._port.ask(m.Settle())

    async def stats(self) -> CacheStats:
        """Return counters and usage."""
        return await self._port.ask(m.Stats())

    async def inspect(self) -> Inspection:
        """Return all bookkeeping at this moment: costs as much as the cache is large."""
        return await self._port.ask(m.Inspect())

    async def check(self) -> None:
        """Prove all invariants; raises IntegrityError naming the first that does not hold."""
        check(await self.inspect())

    def tree(self) -> Any:
        """Return the actors of this cache with their statistics."""
        return self._assembled.system.tree()

    def leave(self) -> None:
        """Note that the block is being left: what its leases hold is forgotten with the cache."""
        self._port.closed = True

    def through(self, port: Callable[[ModelSpec, Assembled], Port]) -> Cache:
        """Return this cache as another host reaches it; one that is opened here closes it here."""
        made = port(self.config.model, self._assembled)
        return Cache(self.config, self._assembled, made, self._telemetry)


_FLUSH_PAGES = 256


@protected_context
async def open_cache(
    config: CacheConfig,
    *,
    policy: Policy | None = None,
    store: Store | None = None,
    lent: Mapping[str, Sequence[torch.Tensor]] | None = None,
    rules: Mapping[str, type[TreeComponent]] | None = None,
    telemetry: Telemetry | None = None,
    before_copy: Callable[..., Awaitable[None]] | None = None,
    journal: Journal | None = None,
    faults: FaultPlan | None = None,
) -> AsyncGenerator[Cache, None]:
    """Open a cache for the length of a block.

    `policy` is a callable in place of the configured name; `store` an L3 store of one's own in place
    of the embedded one (its maker closes it); `lent` L1 tensors by component, with as many pages as
    `config.l1` says; `rules` further component rules by name; `telemetry` one that was made with
    providers of one's own, in place of the host's global ones; `before_copy` is awaited before each
    batch of copies (tests stall or fail them there); `journal` records every message, `faults` says
    what goes wrong at message edges and copies. Raises ConfigError before anything is started where
    the configuration cannot work, and Closed on leaving where an actor failed beyond its
    supervisor's patience.
    """
    if not trio.lowlevel.in_trio_task():
        raise WrongHost(
            "this opens a cache for trio, and this is no trio task: where your program runs on asyncio, "
            "open it with banyankv.asyncio.open_cache, and from plain threads with "
            "banyankv.threads.open_cache"
        )
    if not isinstance(config, CacheConfig):
        raise ConfigError(f"config must be a CacheConfig, not {config!r}")
    if store is not None and config.l2 is None:
        raise ConfigError("a store needs an l2: objects are read into host memory first")
    for name, part, kind in (
        ("lent", lent, Mapping),
        ("rules", rules, Mapping),
        ("telemetry", telemetry, Telemetry),
        ("journal", journal, Journal),
        ("faults", faults, FaultPlan),
    ):
        optional(name, part, kind)
    if not (before_copy is None or callable(before_copy)):
        raise ConfigError(f"before_copy must be an async function or None, not {before_copy!r}")
    telemetry = telemetry or Telemetry()
    async with assemble(
        config,
        policy=config.policy if policy is None else policy,
        store=store,
        lent=lent,
        rules=rules,
        observer=telemetry,
        before_copy=before_copy,
        journal=journal,
        faults=faults,
    ) as assembled:
        close = telemetry.register_metrics(assembled.readings)
        cache = Cache(config, assembled, Port(config.model, assembled), telemetry)
        try:
            yield cache
        finally:
            cache.leave()
            close()
