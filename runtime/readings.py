"""The cache's statistics as metric readings: numbers copied from where the actors keep them.

A metrics exporter reads on a thread of its own, so nothing here sends a message or walks a container
that the cache changes: a reading may be a moment old, and never disturbs.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..components.messages import Count
from ..components.tree import UnifiedTreeCore
from ..spec import Tier
from ..telemetry import Reading
from ..tiers.tier import PageTier
from .coordinator.unified_radix_cache import UnifiedRadixCache
from .crew import Crew


def read(crew: Crew, tiers: tuple[Tier, ...]) -> Iterator[Reading]:
    """Read every metric of one cache; of actors that are just being made anew, as they were before."""
    cache: UnifiedRadixCache = crew.present("cache")
    tree: UnifiedTreeCore = crew.present("tree")
    totals = cache.statistics.totals()
    yield Reading("banyankv.requests", totals.requests)
    yield Reading("banyankv.match.requested", totals.tokens)
    for tier, tokens in zip(("l1", "l2", "l3"), totals.hits, strict=True):
        yield Reading("banyankv.match.hit", tokens, (("tier", tier),))
    for part in totals.components:
        of = ("component", part.component)
        yield Reading("banyankv.evicted", part.evicted_l1, (of, ("tier", "l1")))
        yield Reading("banyankv.evicted", part.evicted_l2, (of, ("tier", "l2")))
        yield Reading("banyankv.demoted", part.demoted, (of, ("tier", "l1")))
        yield Reading("banyankv.promoted", part.promoted, (of, ("tier", "l1")))
    for direction, moved in totals.moved:
        source, target = direction.split("_")
        yield Reading("banyankv.transfer.io", moved, (("src", source), ("dst", target)))
    for actor, crashes in totals.recoveries:
        yield Reading("banyankv.recoveries", crashes, (("actor", actor),))
    for tier, tokens in totals.forgotten:
        yield Reading("banyankv.forgotten", tokens, (("tier", tier),))
    yield Reading("banyankv.lease.count", totals.leases)
    yield Reading("banyankv.waiter.count", totals.waiting)
    yield Reading("banyankv.transfer.in_flight", totals.in_flight)
    yield Reading("banyankv.node.count", tree.count(Count()))
    for at in tiers:
        name = at.name.lower()
        tier_actor: PageTier = crew.present(name)
        for pool in tier_actor.glance():
            where = (("component", pool.component), ("tier", name))
            used = pool.capacity - pool.free - pool.quarantined
            for state, pages in (
                ("free", pool.free),
                ("used", used),
                ("quarantined", pool.quarantined),
            ):
                yield Reading("banyankv.pool.usage", pages, (*where, ("state", state)))
