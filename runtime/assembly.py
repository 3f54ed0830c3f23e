"""Assembly: make the actors of one cache from its configuration, bottom up, and wire them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from ..actors import (
    Actor,
    ActorSystem,
    FaultPlan,
    Faults,
    Journal,
    Observer,
    Ref,
    Strategy,
    open_system,
)
from ..components.chunked import ChunkedComponent
from ..components.component import ComponentActor
from ..components.contract import TreeComponent
from ..components.full import FullComponent
from ..components.kinds import make_actor
from ..components.mamba import MambaComponent
from ..components.policies import Policy
from ..components.swa import SWAComponent
from ..components.tree import UnifiedTreeCore
from ..errors import ConfigError
from ..spec import ModelSpec, Tier
from ..tiers.store.keys import chunk_tokens
from .config import CacheConfig
from .coordinator.auditor import Auditor
from .coordinator.cache_actors import CacheActors, ComponentRef
from .coordinator.controller import HybridCacheController
from .coordinator.counters import Counters
from .coordinator.endpoints import Endpoints
from .coordinator.lease_book import LiveLeases
from .coordinator.recovery import Recoveries
from .coordinator.unified_radix_cache import UnifiedRadixCache
from .crew import Crew
from .readings import read

if TYPE_CHECKING:
    import torch

    from ..telemetry import Reading
    from ..tiers.arena import HostArena
    from ..tiers.fences import Fences
    from ..tiers.pools import DevicePools
    from ..tiers.store.protocol import Store
    from ..tiers.tier import PageTier

RULES: dict[str, type[TreeComponent]] = {
    "full": FullComponent,
    "swa": SWAComponent,
    "chunked": ChunkedComponent,
    "mamba": MambaComponent,
}


class Assembled(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The running actors of a cache, and what the public face needs of them."""

    system: ActorSystem
    cache: Ref[Any]
    needed: tuple[Ref[Any], ...]
    leases: LiveLeases
    pools: DevicePools
    fences: Fences
    readings: Callable[[], Iterable[Reading]]


def make_rules(
    model: ModelSpec, extra: Mapping[str, type[TreeComponent]] | None
) -> tuple[TreeComponent, ...]:
    """Make each component's rule; raises ConfigError for a rule that nobody knows."""
    known = {**RULES, **(extra or {})}
    rules: list[TreeComponent] = []
    for spec in model.components:
        if spec.rule not in known:
            raise ConfigError(
                f"component {spec.name!r}: rule {spec.rule!r} is not one of {', '.join(known)}; "
                f"pass your own as open_cache(..., rules={{...}})"
            )
        rule = known[spec.rule]
        if not (isinstance(rule, type) and issubclass(rule, TreeComponent)):
            raise ConfigError(f"rule {spec.rule!r} must be a class of TreeComponent, not {rule!r}")
        rules.append(rule.from_spec(spec, model.page_size))
    return tuple(rules)


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def assemble(
    config: CacheConfig,
    *,
    policy: str | Policy,
    store: Store | None,
    lent: Mapping[str, Sequence[torch.Tensor]] | None,
    rules: Mapping[str, type[TreeComponent]] | None,
    observer: Observer | None,
    before_copy: Callable[..., Awaitable[None]] | None,
    journal: Journal | None,
    faults: FaultPlan | None,
) -> AsyncGenerator[Assembled, None]:
    """Start everything; leaving the block stops it in reverse and gives the memory back."""
    from ..tiers.engines import copy_engine
    from ..tiers.fences import fences_for
    from ..tiers.l1 import L1Tier
    from ..tiers.pools import DevicePools

    model = config.model
    made = make_rules(model, rules)
    sizes = {component.name: model.page_bytes(component) for component in model.components}
    chunk = chunk_tokens(model.page_size)
    async with AsyncExitStack() as stack:
        pools = DevicePools(model, config.l1, config.device, lent)
        fences = fences_for(pools.device)
        engine = None
        arena = None
        if config.l2 is not None:
            from ..tiers.arena import HostArena

            arena = HostArena.for_pages(model, config.l2, pin=config.device.startswith("cuda"))
            stack.callback(arena.close)
            engine = copy_engine(
                pools,
                arena,
                fences,
                observer=observer,
                before=before_copy,
                faults=Faults(faults) if faults else None,
            )
            stack.callback(engine.close)
        if store is None and config.store is not None:
            from ..tiers.store.lmdb_store import LmdbStore

            store = await LmdbStore.open(config.store.path, config.store.max_bytes)
            stack.push_async_callback(_to_its_end, store.aclose)
        system = await stack.enter_async_context(
            open_system(
                "banyankv",
                dispatch=config.dispatch,
                observer=observer,
                journal=journal,
                faults=faults,
                seed=config.seed,
                strategy=Strategy.ONE_FOR_ALL,
            )
        )
        crew = Crew(system)
        tree = await crew.start("tree", lambda: UnifiedTreeCore(model.page_size))
        components: list[ComponentRef] = []
        recoveries = Recoveries()
        for index, rule in enumerate(made):
            make = partial(_component, crew, rule, policy, recoveries)
            ref = await crew.start(rule.name, make)
            components.append(ComponentRef.of(index, rule, ref))
        tiers = {Tier.L1: await crew.start("l1", lambda: L1Tier(pools, fences))}
        store_ref: Ref[Any] | None = None
        if arena is not None:
            tiers[Tier.L2] = await crew.start("l2", partial(_l2, arena))
            if store is not None:
                _one_range_each(made)
                store_tier = partial(_store_tier, store, config, arena)
                store_ref = await crew.start_apart("store", "l3", store_tier)
        leases, counters = LiveLeases(), Counters(len(made))
        endpoints = Endpoints(made, chunk, sizes)
        controller = await crew.start(
            "controller", lambda: HybridCacheController(engine, store_ref, endpoints)
        )
        wired = CacheActors.of(
            tuple(components),
            tiers,
            page=model.page_size,
            chunk=chunk,
            tree=tree,
            controller=controller,
            store=store_ref,
        )
        cache = await crew.start(
            "cache",
            lambda: UnifiedRadixCache(
                wired,
                tuple(sizes.values()),
                leases,
                counters,
                recoveries,
                endpoints=endpoints,
                fences=fences,
                store_figures=lambda: None if store_ref is None else crew.present("l3").glance(),
                room_timeout=config.room_timeout,
                store_timeout=config.store_timeout,
                prefetch_threshold=config.prefetch_threshold,
            ),
        )
        await _start_auditor(crew, cache, wired, config.audit_rate)
        yield Assembled(
            system=system,
            cache=cache,
            needed=(cache, tree, *(part.ref for part in components), *tiers.values(), controller),
            leases=leases,
            pools=pools,
            fences=fences,
            readings=lambda: read(crew, tuple(tiers)),
        )


async def _to_its_end(close: Callable[[], Awaitable[None]]) -> None:
    """Await what must not be cut short: in a task of its own, where no Ctrl-C arrives."""
    try:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(close)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def _component(
    crew: Crew, rule: TreeComponent, policy: str | Policy, recoveries: Recoveries
) -> ComponentActor[Any]:
    before: ComponentActor[Any] | None = crew.present(rule.name)
    if rule.base and before is not None:
        recoveries.held = before.cached
    return make_actor(rule, policy)


def _l2(arena: HostArena) -> PageTier:
    from ..tiers.l2 import L2Tier

    return L2Tier(arena)


async def _start_auditor(crew: Crew, cache: Ref[Any], actors: CacheActors, rate: float) -> None:
    if rate:
        await crew.start_apart("audit", "auditor", lambda: Auditor(cache, actors, rate))


def _one_range_each(rules: tuple[TreeComponent, ...]) -> None:
    """Refuse rules whose need has gaps: an object of the store is one run of pages."""
    for rule in rules:
        if len(rule.need(1 << 20)) > 1:
            raise ConfigError(f"component {rule.name!r} needs several ranges: no store can hold it")


def _store_tier(store: Store, config: CacheConfig, arena: HostArena) -> Actor:
    from ..tiers.store.breaker import Breaker
    from ..tiers.store.l3 import StoreTier

    breaker = Breaker(seed=config.seed)
    return StoreTier(store, config.model, arena, breaker=breaker, timeout=config.store_timeout)
