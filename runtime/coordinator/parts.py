"""The actors that a cache coordinates, and the rules of its components, in the model's order."""

from __future__ import annotations

from typing import Any

from ...actors import Ref
from ...components.contract import TreeComponent
from ...spec import Tier


class Part:
    """One component: its index in the model, its rule, and its actor."""

    __slots__ = ("base", "index", "name", "ref", "rule", "snapshot")

    def __init__(self, index: int, rule: TreeComponent, ref: Ref[Any]) -> None:
        self.index = index
        self.name = rule.name
        self.rule = rule
        self.ref = ref
        self.base = rule.base
        self.snapshot = rule.snapshot


class Parts:
    """Everything below the cache actor, and its logical clock.

    `below` is the controller, `tiers` maps L1 and, where there is one, L2 to its actor; `chunk` is
    the length of an L3 object in tokens, and `store` is L3's actor, where there is one. `asking` lists
    first who is most likely to lower a boundary: states, then windows, then FULL.
    """

    __slots__ = (
        "all",
        "asking",
        "auxiliary",
        "base",
        "below",
        "by_name",
        "chunk",
        "l1",
        "l2",
        "now",
        "page",
        "paged",
        "snapshots",
        "store",
        "tiers",
        "tree",
        "windowed",
    )

    def __init__(
        self,
        *,
        page: int,
        chunk: int,
        tree: Ref[Any],
        parts: tuple[Part, ...],
        tiers: dict[Tier, Ref[Any]],
        controller: Ref[Any],
        store: Ref[Any] | None,
    ) -> None:
        self.page = page
        self.chunk = chunk
        self.tree = tree
        self.all = parts
        self.base = parts[0]
        self.auxiliary = parts[1:]
        self.asking = tuple(
            sorted(parts, key=lambda part: (not part.snapshot, part.base, part.index))
        )
        self.paged = tuple(part for part in parts if not part.snapshot)
        self.snapshots = tuple(part for part in parts if part.snapshot)
        self.windowed = tuple(part for part in parts if not (part.snapshot or part.base))
        self.by_name = {part.name: part for part in parts}
        self.tiers = tiers
        self.l1 = tiers[Tier.L1]
        self.l2 = tiers.get(Tier.L2)
        self.below = controller
        self.store = store
        self.now = 0

    def tick(self) -> int:
        """Advance the logical clock of uses, by which recency is ordered."""
        self.now += 1
        return self.now
