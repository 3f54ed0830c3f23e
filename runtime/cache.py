"""The public face of a cache: `open_cache` and `Cache`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from trio.lowlevel import checkpoint, checkpoint_if_cancelled

from ..components.contract import TreeComponent
from ..components.policies import Policy
from ..errors import ActorStopped, Closed, ConfigError, WouldWait
from ..spec import TOKEN_BYTES, Namespace, PagedSpec, Tier
from ..telemetry import Telemetry
from . import messages as m
from .arguments import seconds, space, whole, word
from .arguments import tier as page_tier
from .assembly import Assembled, assemble
from .checking import check
from .config import CacheConfig
from .coordinator.inspection import Inspection
from .coordinator.planning import Verdict
from .coordinator.stats import CacheStats
from .lease import Lease
from .request import Request
from .tokens import Tokens, pack

if TYPE_CHECKING:
    import torch

    from ..actors import FaultPlan, Journal, Message, Trace
    from ..tiers.pools import DevicePools
    from ..tiers.store.protocol import Store

T = TypeVar("T")

_BREATH = 0.001
"""Seconds that a caller may run on answers that never waited before a call yields for it."""


class Cache:
    """A prefix cache inside this process. Made by `open_cache`; use it from the same trio run.

    Async methods check for cancellation before they begin, never after: what they took is yours or
    was given back. They yield when they must wait, or when the caller has run for a millisecond.
    """

    def __init__(self, config: CacheConfig, assembled: Assembled, telemetry: Telemetry) -> None:
        self.config = config
        self._telemetry = telemetry
        self.pools: DevicePools = assembled.pools
        """The L1 tensors, by component."""
        self.page_size = config.model.page_size
        self.rules = assembled.rules
        """The component rules, in the model's order."""
        # Those whose need does not reach back to the first token, each with its place.
        self.windowed = tuple(
            (index, rule)
            for index, rule in enumerate(self.rules)
            if not (rule.snapshot or rule.base)
        )
        self._system = assembled.system
        self._ref = assembled.cache
        self._needed = assembled.needed
        self.fences = assembled.fences
        components = list(enumerate(config.model.components))
        self._paged = {c.name: index for index, c in components if isinstance(c, PagedSpec)}
        self._snapshots = {c.name: index for index, c in components if c.name not in self._paged}
        self._breath_due = 0.0

    def __repr__(self) -> str:
        return f"<Cache of {self.config.model.name!r} [{self._ref!r}]>"

    # -- for leases -----------------------------------------------------------------------------------

    def component_index(self, component: str, *, snapshot: bool) -> int:
        """Answer a component's place in the model; refuse the wrong kind."""
        known = self._snapshots if snapshot else self._paged
        index = known.get(word("component", component))
        if index is None:
            kind = "snapshot" if snapshot else "paged"
            names = ", ".join(known) or "none"
            raise ConfigError(f"{component!r} is no {kind} component; there is {names}")
        return index

    async def ask(
        self, msg: Message[T], *, deadline: float | None = None, trace: Trace | None = None
    ) -> T:
        """Have an operation done, waiting where it waits."""
        await self.breathe()
        try:
            return await self._ref.ask(msg, deadline=deadline, trace=trace)
        except ActorStopped as error:
            raise Closed("the cache has closed; what it held is forgotten", error) from error

    def breathe(self) -> Awaitable[None]:
        """Answer what checks for cancellation, and yields where the caller has run for a millisecond."""
        now = time.monotonic()
        if now > self._breath_due:
            self._breath_due = now + _BREATH
            return checkpoint()  # noqa: ASYNC105 - the caller awaits it
        return checkpoint_if_cancelled()  # noqa: ASYNC105 - the caller awaits it

    async def ask_now(self, msg: Message[T], trace: Trace | None) -> T:
        """Have an operation done without looking for cancellation first."""
        try:
            return await self._ref.ask(msg, trace=trace)
        except ActorStopped as error:
            raise Closed("the cache has closed; what it held is forgotten", error) from error

    async def ask_shielded(self, msg: Message[Any], trace: Trace | None) -> Any:
        """Have an operation done even for a cancelled caller."""
        try:
            return self._ref.call(msg, trace)
        except WouldWait:
            # A release that had begun is asked again: that finds nothing left to do.
            with trio.CancelScope(shield=True):
                return await self._ref.ask(msg, trace=trace)
        except ActorStopped as error:
            raise Closed("the cache has closed; what it held is forgotten", error) from error

    # -- requests -------------------------------------------------------------------------------------

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

        `deadline` is in seconds from now: DeadlineExceeded after it, with everything given back. At
        least one token is always left to compute. `session` only names the request in traces and
        logs so far.
        """
        msg = self._acquire(tokens, namespace, priority, stream)
        until = None
        if deadline is not None:
            until = trio.current_time() + seconds("deadline", deadline)
        count = len(msg.tokens) // TOKEN_BYTES
        request = Request(self._telemetry, session, count)
        try:
            acquired: m.Acquired = await self.ask(msg, deadline=until, trace=request.trace)
        except BaseException as error:
            request.failed(error)
            raise
        request.leased()
        return Lease(self, acquired, count, request)

    def try_acquire(
        self,
        tokens: Tokens,
        *,
        namespace: Namespace | None = None,
        session: str | None = None,
        priority: int = 0,
        stream: int | None = None,
    ) -> Lease | None:
        """Lease what is reusable from L1 at once, without waiting; None where that cannot be told now."""
        for ref in self._needed:
            if not ref.ready:
                return None
        msg = self._acquire(tokens, namespace, priority, stream, wait=False)
        count = len(msg.tokens) // TOKEN_BYTES
        request = Request(self._telemetry, session, count)
        try:
            acquired: m.Acquired = self._ref.call(msg, trace=request.trace)
        except WouldWait as error:
            request.failed(error)
            return None
        except BaseException as error:
            request.failed(error)
            raise
        request.leased()
        return Lease(self, acquired, count, request)

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
        requests = tuple(
            [self._acquire(each, namespace, priority, stream, wait=False) for each in prompts]
        )
        if not requests:
            return []
        traced = [Request(self._telemetry, None, len(r.tokens) // TOKEN_BYTES) for r in requests]
        msg = m.AcquireBatch(requests, tuple([request.trace for request in traced]))
        try:
            leased: tuple[m.Acquired, ...] = await self.ask(msg)
        except BaseException as error:
            for request in traced:
                request.failed(error)
            raise
        leases: list[Lease] = []
        for acquired, asked, request in zip(leased, requests, traced, strict=True):
            request.leased()
            leases.append(Lease(self, acquired, len(asked.tokens) // TOKEN_BYTES, request))
        return leases

    def _acquire(
        self,
        tokens: Tokens,
        namespace: Namespace | None,
        priority: int,
        stream: int | None,
        *,
        wait: bool = True,
    ) -> m.Acquire:
        packed = pack(tokens)
        if not packed:
            raise ConfigError("an empty prompt has nothing to reuse or compute")
        return m.Acquire(space(namespace), packed, whole("priority", priority), wait, stream or 0)

    async def peek(self, tokens: Tokens, *, namespace: Namespace | None = None) -> m.Peeked:
        """Answer how much of a prompt could be reused; never changes anything."""
        peeked: m.Peeked = await self.ask(m.Peek(space(namespace), pack(tokens)))
        return peeked

    async def explain(
        self, tokens: Tokens, *, namespace: Namespace | None = None
    ) -> tuple[Verdict, ...]:
        """Answer, per component, how far it would go, which node stops it, and why."""
        verdicts: tuple[Verdict, ...] = await self.ask(m.Explain(space(namespace), pack(tokens)))
        return verdicts

    # -- upkeep ---------------------------------------------------------------------------------------

    async def evict(self, component: str, pages: int, tier: Tier = Tier.L1) -> m.EvictReport:
        """Evict unlocked payload of a component until `pages` are free or pending, or nothing is left."""
        report: m.EvictReport = await self.ask(
            m.EvictPages(word("component", component), whole("pages", pages, 0), page_tier(tier))
        )
        return report

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
        await self.ask(m.Settle())

    async def stats(self) -> CacheStats:
        """Answer counters and usage."""
        stats: CacheStats = await self.ask(m.Stats())
        return stats

    async def inspect(self) -> Inspection:
        """Answer all bookkeeping at this moment: costs as much as the cache is large."""
        seen: Inspection = await self.ask(m.Inspect())
        return seen

    async def check(self) -> None:
        """Prove all invariants; raises IntegrityError naming the first that does not hold."""
        check(await self.inspect())

    def tree(self) -> Any:
        """Answer the actors of this cache with their statistics."""
        return self._system.tree()


_FLUSH_PAGES = 256


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
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
    of the embedded one (its maker closes it); `lent` L1 tensors by component; `rules` further
    component rules by name; `telemetry` one that was made with providers of one's own, in place of
    the host's global ones; `before_copy` is awaited before each batch of copies (tests stall or
    fail them there); `journal` records every message, `faults` says what goes wrong at message edges
    and copies. Raises ConfigError before anything is started where the configuration cannot
    work, and Closed on leaving where an actor failed beyond its supervisor's patience.
    """
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
        try:
            yield Cache(config, assembled, telemetry)
        finally:
            close()
