"""What a cache counts, and how it reports it."""

from __future__ import annotations

from collections.abc import Callable, Sized

import msgspec

from ...components.messages import Count
from ...spec import Tier
from ...tiers import messages as t
from ...tiers.store import messages as s
from .. import messages as m
from .cache_actors import CacheActors
from .counters import DIRECTIONS, Counters
from .recovery import Recoveries
from .transfers import Transfers


class ComponentStats(msgspec.Struct, frozen=True, gc=False):
    """Pages of one component that moved down, up or away since the cache opened."""

    component: str
    evicted_l1: int
    evicted_l2: int
    demoted: int
    promoted: int


class AuditStats(msgspec.Struct, frozen=True, gc=False):
    """What audits have done since the cache opened: whole rounds, slices, and what they have found."""

    rounds: int
    slices: int
    findings: int


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
    audits: AuditStats


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


class Statistics(msgspec.Struct, kw_only=True, eq=False):
    """Reads the numbers of a cache where they are counted.

    `store` reads those of L3's actor without asking it: nobody waits for one that is being restarted.
    """

    actors: CacheActors
    counters: Counters
    transfers: Transfers
    leases: Sized
    recoveries: Recoveries
    waiting: Sized
    store: Callable[[], s.StoreTierStatistics | None]

    def totals(self) -> Totals:
        """Copy the running numbers; may be called from another thread."""
        counters = self.counters
        return Totals(
            requests=counters.requests,
            tokens=counters.tokens,
            hits=counters.hits,
            components=tuple(
                ComponentStats(
                    part.name,
                    counters.evicted[Tier.L1][part.index],
                    counters.evicted[Tier.L2][part.index],
                    counters.demoted[part.index],
                    counters.promoted[part.index],
                )
                for part in self.actors.components
            ),
            moved=tuple((direction, counters.moved_bytes[direction]) for direction in DIRECTIONS),
            recoveries=tuple(self.recoveries.crashes.items()),
            forgotten=tuple(self.recoveries.forgotten.items()),
            leases=len(self.leases),
            waiting=len(self.waiting),
            in_flight=len(self.transfers.running),
        )

    async def gather(self) -> CacheStats:
        """Put the report together; used inside an operation of the cache actor."""
        totals, actors, audits = self.totals(), self.actors, self.counters.audits
        pools: dict[str, tuple[t.PoolUsage, ...]] = {}
        for tier, ref in actors.tiers.items():
            pools[tier.name.lower()] = await ref.ask(t.Usage())
        return CacheStats(
            requests=totals.requests,
            tokens=totals.tokens,
            hit_tokens=m.HitTokens(*totals.hits),
            components=totals.components,
            moved_bytes=dict(totals.moved),
            prefetches=dict(self.counters.prefetches),
            skipped_backups=self.counters.skipped_backups,
            nodes=await actors.tree.ask(Count()),
            leases=totals.leases,
            waiting=totals.waiting,
            in_flight=totals.in_flight,
            due=len(self.transfers.capacity.due),
            recoveries=dict(self.recoveries.crashes),
            forgotten_tokens=dict(self.recoveries.forgotten),
            pools=pools,
            store=self.store(),
            audits=AuditStats(audits.rounds, audits.slices, audits.findings),
        )
