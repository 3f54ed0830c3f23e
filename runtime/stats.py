"""What a cache counts, and how it reports it."""

from __future__ import annotations

import msgspec

from ..components.messages import Count
from ..spec import Tier
from ..tiers import messages as t
from . import messages as m
from .parts import Parts
from .planning import TOKEN
from .room import Room
from .storing import Storing
from .transfers import Transfers


class HitTokens(msgspec.Struct, frozen=True, gc=False):
    """Reused tokens by the tier that held them when the request came."""

    l1: int = 0
    l2: int = 0
    l3: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.l1 + self.l2 + self.l3


class ComponentStats(msgspec.Struct, frozen=True, gc=False):
    """Pages of one component that moved down, up or away since the cache opened."""

    component: str
    evicted_l1: int
    evicted_l2: int
    demoted: int
    promoted: int


class CacheStats(msgspec.Struct, frozen=True):
    """Counters since the cache opened, and usage now. Tokens, pages and bytes as the names say."""

    requests: int
    tokens: int
    hit_tokens: HitTokens
    published: int
    components: tuple[ComponentStats, ...]
    moved_bytes: dict[str, int]
    prefetches: dict[str, int]
    skipped_backups: int
    nodes: int
    leases: int
    waiting: int
    in_flight: int
    pools: dict[str, tuple[t.PoolUsage, ...]]


class Totals(msgspec.Struct, frozen=True, gc=False):
    """The running numbers of a cache, copied: see `CacheStats` for what they mean.

    `components` is (name, evicted from L1, from L2, demoted, promoted), `moved` (direction, bytes).
    """

    requests: int
    tokens: int
    hits: tuple[int, ...]
    components: tuple[tuple[str, int, int, int, int], ...]
    moved: tuple[tuple[str, int], ...]
    leases: int
    waiting: int
    in_flight: int


class Counters:
    """What the cache actor counts itself."""

    __slots__ = ("hits", "published", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self.hits = [0, 0, 0]
        self.published = 0

    def acquired(self, msg: m.Acquire, acquired: m.Acquired) -> None:
        """Count one answered acquire."""
        self.requests += 1
        self.tokens += len(msg.tokens) // TOKEN
        hits = self.hits
        l1, l2, l3 = acquired.hit
        hits[0] += l1
        hits[1] += l2
        hits[2] += l3


async def gather_stats(
    parts: Parts,
    counters: Counters,
    room: Room,
    transfers: Transfers,
    storing: Storing,
    *,
    leases: int,
    waiting: int,
    in_flight: int,
) -> CacheStats:
    """Put the report together; used inside an operation of the cache actor."""
    pools: dict[str, tuple[t.PoolUsage, ...]] = {}
    for tier, ref in parts.tiers.items():
        pools[tier.name.lower()] = await ref.ask(t.Usage())
    return CacheStats(
        requests=counters.requests,
        tokens=counters.tokens,
        hit_tokens=HitTokens(*counters.hits),
        published=counters.published,
        components=tuple(
            ComponentStats(
                part.name,
                room.evicted[Tier.L1][part.index],
                room.evicted[Tier.L2][part.index],
                room.demoted[part.index],
                transfers.promoted[part.index],
            )
            for part in parts.all
        ),
        moved_bytes=dict(transfers.moved_bytes),
        prefetches=dict(storing.prefetches),
        skipped_backups=transfers.skipped_backups,
        nodes=await parts.tree.ask(Count()),
        leases=leases,
        waiting=waiting,
        in_flight=in_flight,
        pools=pools,
    )
