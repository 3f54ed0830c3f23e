"""The actors that a cache coordinates, and the rules of its components, in the model's order."""

from __future__ import annotations

from typing import Any

import msgspec

from ...actors import Ref
from ...components.contract import TreeComponent
from ...spec import Tier


class Part(msgspec.Struct, frozen=True, eq=False):
    """One component: its index in the model, its rule, and its actor."""

    index: int
    rule: TreeComponent
    ref: Ref[Any]
    name: str
    base: bool
    snapshot: bool

    @classmethod
    def of(cls, index: int, rule: TreeComponent, ref: Ref[Any]) -> Part:
        """Make one; what is asked often of the rule is kept beside it."""
        return cls(index, rule, ref, rule.name, rule.base, rule.snapshot)


class Parts(msgspec.Struct, kw_only=True, eq=False):
    """Everything below the cache actor, and its logical clock.

    `below` is the controller, `tiers` maps L1 and, where there is one, L2 to its actor; `chunk` is
    the length of an L3 object in tokens, and `store` is L3's actor, where there is one. `asking` lists
    first who is most likely to lower a boundary: states, then windows, then FULL.
    """

    page: int
    chunk: int
    tree: Ref[Any]
    all: tuple[Part, ...]
    base: Part
    auxiliary: tuple[Part, ...]
    asking: tuple[Part, ...]
    paged: tuple[Part, ...]
    snapshots: tuple[Part, ...]
    windowed: tuple[Part, ...]
    by_name: dict[str, Part]
    tiers: dict[Tier, Ref[Any]]
    l1: Ref[Any]
    l2: Ref[Any] | None
    below: Ref[Any]
    store: Ref[Any] | None
    now: int = 0

    @classmethod
    def of(cls, parts: tuple[Part, ...], tiers: dict[Tier, Ref[Any]], **others: Any) -> Parts:
        """Make them; what can be derived of the components and the tiers is."""
        return cls(
            all=parts,
            base=parts[0],
            auxiliary=parts[1:],
            asking=tuple(sorted(parts, key=lambda p: (not p.snapshot, p.base, p.index))),
            paged=tuple(part for part in parts if not part.snapshot),
            snapshots=tuple(part for part in parts if part.snapshot),
            windowed=tuple(part for part in parts if not (part.base or part.snapshot)),
            by_name={part.name: part for part in parts},
            tiers=tiers,
            l1=tiers[Tier.L1],
            l2=tiers.get(Tier.L2),
            **others,
        )

    def tick(self) -> int:
        """Advance the logical clock of uses, by which recency is ordered."""
        self.now += 1
        return self.now
