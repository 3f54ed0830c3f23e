"""The actors that a cache coordinates, and the rules of its components, in the model's order."""

from __future__ import annotations

from typing import Any

import msgspec

from ...actors import Ref
from ...components.contract import TreeComponent
from ...spec import Tier


class ComponentRef(msgspec.Struct, frozen=True, eq=False):
    """One component: its index in the model, its rule, and its actor."""

    index: int
    rule: TreeComponent
    ref: Ref[Any]
    name: str
    base: bool
    snapshot: bool

    @classmethod
    def of(cls, index: int, rule: TreeComponent, ref: Ref[Any]) -> ComponentRef:
        """Make one; what is asked often of the rule is kept beside it."""
        return cls(index, rule, ref, rule.name, rule.base, rule.snapshot)


class CacheActors(msgspec.Struct, kw_only=True, eq=False):
    """Everything below the cache actor, and its logical clock.

    `tiers` maps L1 and, where there is one, L2 to its actor; `chunk` is the length of an L3 object in
    tokens, and `store` is L3's actor, where there is one. `claim_order` lists first who is most likely
    to lower a boundary: states, then windows, then FULL.
    """

    page: int
    chunk: int
    tree: Ref[Any]
    components: tuple[ComponentRef, ...]
    base: ComponentRef
    auxiliary: tuple[ComponentRef, ...]
    claim_order: tuple[ComponentRef, ...]
    paged: tuple[ComponentRef, ...]
    snapshots: tuple[ComponentRef, ...]
    windowed: tuple[ComponentRef, ...]
    by_name: dict[str, ComponentRef]
    tiers: dict[Tier, Ref[Any]]
    l1: Ref[Any]
    l2: Ref[Any] | None
    controller: Ref[Any]
    store: Ref[Any] | None
    now: int = 0

    @classmethod
    def of(
        cls, components: tuple[ComponentRef, ...], tiers: dict[Tier, Ref[Any]], **others: Any
    ) -> CacheActors:
        """Make them; what can be derived of the components and the tiers is."""
        return cls(
            components=components,
            base=components[0],
            auxiliary=components[1:],
            claim_order=tuple(sorted(components, key=lambda p: (not p.snapshot, p.base, p.index))),
            paged=tuple(part for part in components if not part.snapshot),
            snapshots=tuple(part for part in components if part.snapshot),
            windowed=tuple(part for part in components if not (part.base or part.snapshot)),
            by_name={part.name: part for part in components},
            tiers=tiers,
            l1=tiers[Tier.L1],
            l2=tiers.get(Tier.L2),
            **others,
        )

    def tick(self) -> int:
        """Advance the logical clock of uses, by which recency is ordered."""
        self.now += 1
        return self.now
