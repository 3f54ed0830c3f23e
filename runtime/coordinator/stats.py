"""What a cache counts, and how it reports it."""

from __future__ import annotations

from collections.abc import Sized

import msgspec

from ...components.messages import Count
from ...spec import Tier
from ...tiers import messages as t
from ...tiers.store import messages as s
from .. import messages as m
from .backups import Backups
from .cache_actors import CacheActors
from .capacity import Capacity
from .prefetching import Prefetching
from .promoting import Promoting
from .recovery import Recoveries
from .transfers import DIRECTIONS, Transfers


class ComponentStats(msgspec.Struct, frozen=True, gc=False):
    """Pages of one component that moved down, up or away since the cache opened."""

    component: str
    evicted_l1: int
    evicted_l2: int
    demoted: int
    promoted: int


class CacheStats(msgspec.Struct, frozen=True):
    """Counters since the cache opened, and usage now. Tokens, pages and bytes as the names say.

    `waiting` requests wait for room, `in_flight` copies and store calls are under way, `due` nodes are to
    be backed up or saved. `recoveries` counts crashes that the cache went through, by the path of the
    actor, `forgotten_tokens` by tier what it forgot at them. `store` is what the tier in front of the store did, None without one.
    """

    requests: int
    tokens: int
    hit_tokens: m.HitTokens
    components: tuple[ComponentStats, ...]
    moved_bytes: dict[str, int]
    prefetches: dict[str, int]
    skipped_backups: int
    nodes: int
    leases: int
    waiting: int
    in_flight: int
    due: int
    recoveries: dict[str, int]
    forgotten_tokens: dict[str, int]
    pools: dict[str, tuple[t.PoolUsage, ...]]
    store: s.StoreTierStatistics | None


class Totals(msgspec.Struct, frozen=True, gc=False):
    """The running numbers of a cache, copied: see `CacheStats`. `moved` is (direction, bytes)."""

    requests: int
    tokens: int
    hits: tuple[int, ...]
    components: tuple[ComponentStats, ...]
    moved: tuple[tuple[str, int], ...]
    recoveries: tuple[tuple[str, int], ...]
    forgotten: tuple[tuple[str, int], ...]
    leases: int
    waiting: int
    in_flight: int


class Counters:
    """What the cache actor counts itself; of the reused tokens, `lower` were on L2 and L3."""

    __slots__ = ("lower", "requests", "reused", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self.reused = 0
        self.lower = [0, 0]

    @property
    def hits(self) -> tuple[int, int, int]:
        """Reused tokens by the tier that held them."""
        l2, l3 = self.lower
        return self.reused - l2 - l3, l2, l3


class Statistics(msgspec.Struct, kw_only=True, eq=False):
    """Reads the numbers of a cache where they are counted."""

    actors: CacheActors
    counters: Counters
    capacity: Capacity
    transfers: Transfers
    backups: Backups
    promoting: Promoting
    prefetching: Prefetching
    leases: Sized
    recoveries: Recoveries
    waiting: Sized

    def totals(self) -> Totals:
        """Copy the running numbers; may be called from another thread."""
        capacity, moved = self.capacity, self.transfers.moved_bytes
        return Totals(
            requests=self.counters.requests,
            tokens=self.counters.tokens,
            hits=self.counters.hits,
            components=tuple(
                ComponentStats(
                    part.name,
                    capacity.evicted[Tier.L1][part.index],
                    capacity.evicted[Tier.L2][part.index],
                    capacity.demoted[part.index],
                    self.promoting.promoted[part.index],
                )
                for part in self.actors.components
            ),
            moved=tuple((direction, moved[direction]) for direction in DIRECTIONS),
            recoveries=tuple(self.recoveries.crashes.items()),
            forgotten=tuple(self.recoveries.forgotten.items()),
            leases=len(self.leases),
            waiting=len(self.waiting),
            in_flight=len(self.transfers.running),
        )

    async def gather(self) -> CacheStats:
        """Put the report together; used inside an operation of the cache actor."""
        totals, actors = self.totals(), self.actors
        pools: dict[str, tuple[t.PoolUsage, ...]] = {}
        for tier, ref in actors.tiers.items():
            pools[tier.name.lower()] = await ref.ask(t.Usage())
        return CacheStats(
            requests=totals.requests,
            tokens=totals.tokens,
            hit_tokens=m.HitTokens(*totals.hits),
            components=totals.components,
            moved_bytes=dict(totals.moved),
            prefetches=dict(self.prefetching.outcomes),
            skipped_backups=self.backups.skipped,
            nodes=await actors.tree.ask(Count()),
            leases=totals.leases,
            waiting=totals.waiting,
            in_flight=totals.in_flight,
            due=len(self.capacity.due),
            recoveries=dict(self.recoveries.crashes),
            forgotten_tokens=dict(self.recoveries.forgotten),
            pools=pools,
            store=None if actors.store is None else await actors.store.ask(s.ReadStoreTier()),
        )
