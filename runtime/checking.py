"""The invariants of design §9, proved on an `Inspection`.

Each law is one function that raises IntegrityError naming the law and what breaks it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator

from ..errors import IntegrityError
from ..spec import PAGE_ID_BYTES, TOKEN_BYTES, Tier
from .coordinator.inspection import ComponentView, Inspection


def check(seen: Inspection) -> None:
    """Prove every invariant; raises IntegrityError for the first that does not hold."""
    _topology(seen)
    for component in seen.components:
        _records(seen, component)
        _locks(seen, component)
        for tier in (Tier.L1, Tier.L2):
            if tier.name.lower() in seen.pools:
                _owners(seen, component, tier)
    _presence(seen)


def _broken(law: str, detail: str) -> IntegrityError:
    return IntegrityError(f"{law}: {detail}")


def _topology(seen: Inspection) -> None:
    """Edges are whole pages, children start where parents end, siblings differ in their first page."""
    nodes = {node.id: node for node in seen.nodes}
    firsts: set[tuple[bytes, int, bytes]] = set()
    for node in seen.nodes:
        length = node.end - node.start
        if length <= 0 or length % seen.page or len(node.key) != length * TOKEN_BYTES:
            raise _broken("T2", f"node {node.id} spans [{node.start}, {node.end})")
        if node.parent:
            parent = nodes.get(node.parent)
            if parent is None or parent.end != node.start or parent.namespace != node.namespace:
                raise _broken("T2", f"node {node.id} does not follow its parent {node.parent}")
        elif node.start:
            raise _broken("T2", f"node {node.id} hangs at a root and starts at {node.start}")
        first = (node.namespace, node.parent, node.key[: seen.page * TOKEN_BYTES])
        if first in firsts:
            raise _broken("T3", f"node {node.id} shares its first page with a sibling")
        firsts.add(first)


def _records(seen: Inspection, component: ComponentView) -> None:
    """Every record has its node's extent, payloads fit, and ledgers are their sums.

    A paged component has a record for every node, a snapshot one where it holds or locks something.
    """
    records = {record.id: record for record in component.records}
    nodes = {node.id for node in seen.nodes}
    if not (records.keys() <= nodes if component.snapshot else records.keys() == nodes):
        raise _broken("T2", f"{component.name}: records and nodes differ")
    cached, payloads, locked = [0, 0], [0, 0], 0
    for node in seen.nodes:
        record = records.get(node.id)
        if record is None:
            continue
        if component.snapshot and not record.lock and record.l1 is None and record.l2 is None:
            raise _broken("T2", f"{component.name}: a record of node {node.id} for nothing")
        if (record.start, record.end) != (node.start, node.end):
            raise _broken("T2", f"{component.name}: node {node.id} has another extent here")
        size = 1 if component.snapshot else (node.end - node.start) // seen.page
        for tier, pages in enumerate((record.l1, record.l2)):
            if pages is None:
                continue
            if len(pages) != size * PAGE_ID_BYTES:
                raise _broken("T7", f"{component.name}: node {node.id} holds {len(pages)} bytes")
            cached[tier] += size
            payloads[tier] += 1
            if tier == Tier.L1 and record.lock:
                locked += size
    for tier, held in enumerate(component.ledger):
        if (held.cached, held.payloads) != (cached[tier], payloads[tier]):
            raise _broken("S8", f"{component.name}: ledger {held} on tier {tier}, counted {cached}")
    if component.ledger[0].locked != locked:
        raise _broken("S8", f"{component.name}: {component.ledger[0].locked} locked, not {locked}")


def _locks(seen: Inspection, component: ComponentView) -> None:
    """Lock counts are exactly what the receipts of live leases explain."""
    parents = {node.id: node.parent for node in seen.nodes}
    starts = {node.id: node.start for node in seen.nodes}
    explained: Counter[int] = Counter()
    for lease in seen.leases:
        for share in lease.shares:
            if share.component != component.name:
                continue
            for receipt in share.receipts:
                node, start = receipt.anchor, receipt.start
                if component.snapshot:
                    explained[node] += 1
                    continue
                while node and starts[node] >= start:
                    explained[node] += 1
                    node = parents[node]
    for record in component.records:
        if record.lock != explained[record.id]:
            raise _broken(
                "L3",
                f"{component.name}: node {record.id} has {record.lock} locks, "
                f"{explained[record.id]} explained",
            )


def _owners(seen: Inspection, component: ComponentView, tier: Tier) -> None:
    """Every page has exactly one owner: free, quarantine, node, lease, or operation."""
    pool = next(p for p in seen.pools[tier.name.lower()] if p.component == component.name)
    owners: Counter[int] = Counter()
    for pages in _all_pages(seen, component, tier):
        owners.update(array("i", pages))
    owned = owners.total()
    for pages in (pool.free, pool.quarantined):
        owners.update(array("i", pages))
    twice = [page for page, count in owners.items() if count > 1]
    if twice:
        raise _broken("P2", f"{component.name} on {tier.name}: pages {twice[:5]} have two owners")
    if owned != pool.owned:
        raise _broken(
            "P1", f"{component.name} on {tier.name}: {owned} pages have owners, not {pool.owned}"
        )


def _all_pages(seen: Inspection, component: ComponentView, tier: Tier) -> Iterator[bytes]:
    for record in component.records:
        pages = record.l1 if tier == Tier.L1 else record.l2
        if pages is not None:
            yield pages
    yield component.shared[tier]
    if tier == Tier.L2:
        yield seen.staged.get(component.name, b"")
        return
    for lease in seen.leases:
        for share in lease.shares:
            if share.component == component.name:
                yield share.own
                yield share.slot
                yield from (slot for _, slot in share.kept)


def _presence(seen: Inspection) -> None:
    """FULL keeps every node alive and is upward closed on each tier; auxiliaries stand on FULL."""
    base = {record.id: record for record in seen.components[0].records}
    for node in seen.nodes:
        record = base[node.id]
        if record.l1 is None and record.l2 is None and not record.lock:
            raise _broken("T4", f"node {node.id} holds FULL nowhere")
        if not node.parent:
            continue
        parent = base[node.parent]
        if record.l1 is not None and parent.l1 is None:
            raise _broken("T5", f"node {node.id} is on L1, its parent {node.parent} is not")
        if record.l2 is not None and parent.l2 is None:
            raise _broken("T6", f"node {node.id} is on L2, its parent {node.parent} is not")
    for component in seen.components[1:]:
        for record in component.records:
            if record.l1 is not None and base[record.id].l1 is None:
                raise _broken("C1", f"{component.name} is on L1 at node {record.id}, FULL is not")
            if record.l2 is not None and base[record.id].l2 is None:
                raise _broken("C2", f"{component.name} is on L2 at node {record.id}, FULL is not")
            if record.lock > base[record.id].lock:
                raise _broken("L2", f"{component.name} locks node {record.id} more than FULL does")
