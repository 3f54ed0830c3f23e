"""All bookkeeping of a cache at one moment, for `check()`, dumps and tests."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ...components import messages as c
from ...components import views as v
from ...spec import Tier
from ...tiers import messages as t
from .cache_actors import CacheActors
from .leases import LeaseRecord


class LeaseShareView(msgspec.Struct, frozen=True, gc=False):
    """What a lease holds of one component."""

    component: str
    receipts: tuple[c.Receipt, ...]
    own_start: int
    own: bytes
    slot: bytes
    kept: tuple[tuple[int, bytes], ...]


class LeaseView(msgspec.Struct, frozen=True, gc=False):
    """One live lease."""

    id: int
    anchor: int
    published: int
    extent: int
    shares: tuple[LeaseShareView, ...]


class ComponentView(msgspec.Struct, frozen=True, gc=False):
    """One component: its rule, its records and its ledgers; `shared` pages per tier wait for copies."""

    name: str
    base: bool
    snapshot: bool
    records: tuple[v.RecordView, ...]
    ledger: tuple[v.Held, v.Held]
    shared: tuple[bytes, bytes]


class PoolView(msgspec.Struct, frozen=True, gc=False):
    """One pool of one tier: pages that have an owner by its own count, free and quarantined ones.

    Pages of slabs that no pool has claimed are nobody's and not listed.
    """

    component: str
    owned: int
    free: bytes
    quarantined: bytes


class Inspection(msgspec.Struct, frozen=True, gc=False):
    """Everything, as it was in one operation of the cache actor."""

    page: int
    nodes: tuple[v.NodeView, ...]
    components: tuple[ComponentView, ...]
    leases: tuple[LeaseView, ...]
    pools: dict[str, tuple[PoolView, ...]]
    staged: dict[str, bytes]
    """L2 pages per component that a fetch from the store is filling."""


async def gather(
    actors: CacheActors, leases: Iterable[LeaseRecord], staged: dict[str, bytes]
) -> Inspection:
    """Ask every actor for its views; used inside an operation of the cache actor."""
    components = [
        ComponentView(
            part.name,
            part.base,
            part.snapshot,
            await part.ref.ask(v.Records()),
            await part.ref.ask(v.Ledger()),
            (await part.ref.ask(v.Shared(Tier.L1)), await part.ref.ask(v.Shared(Tier.L2))),
        )
        for part in actors.components
    ]
    pools: dict[str, tuple[PoolView, ...]] = {}
    for tier, ref in actors.tiers.items():
        views: list[PoolView] = []
        for usage in await ref.ask(t.Usage()):
            owned = usage.capacity - usage.free - usage.quarantined
            free, quarantined = await ref.ask(t.FreePages(usage.component))
            views.append(PoolView(usage.component, owned, free, quarantined))
        pools[tier.name.lower()] = tuple(views)
    return Inspection(
        actors.page,
        await actors.tree.ask(v.Nodes()),
        tuple(components),
        tuple(lease_view(record) for record in leases),
        pools,
        staged,
    )


def lease_view(record: LeaseRecord) -> LeaseView:
    """Return what a lease holds now."""
    return LeaseView(
        record.id,
        record.anchor,
        record.published,
        record.extent,
        tuple(
            LeaseShareView(
                share.part.name,
                share.receipts,
                share.own_start,
                share.private(),
                share.slot,
                tuple(share.kept),
            )
            for share in record.shares
        ),
    )
