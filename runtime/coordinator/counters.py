"""What a cache has counted since it was opened: it outlives the actors that count."""

from __future__ import annotations

from collections import Counter

from ...spec import Tier

DIRECTIONS = ("l1_l2", "l2_l1", "l2_l3", "l3_l2")


class AuditCounts:
    """Rounds of audits that were begun, and that were done; their slices, and what these have found."""

    __slots__ = ("begun", "findings", "rounds", "slices")

    def __init__(self) -> None:
        self.begun = 0
        self.rounds = 0
        self.slices = 0
        self.findings = 0


class Counters:
    """Running numbers; lists are by component, in the model's order.

    Of the reused tokens, `lower` were on L2 and L3. `evicted` and `demoted` count pages that left L1 or
    L2 for good, or left L1 while L2 keeps them, `promoted` pages that came from L2. `moved_bytes` are by
    direction. `prefetches` are counted by closed reason: `loaded`, `absent`, `host_capacity`,
    `anchor_lost`, `storage_transfer`, `abandoned`. `skipped_backups` found no room on L2.
    """

    __slots__ = (
        "audits",
        "demoted",
        "evicted",
        "lower",
        "moved_bytes",
        "prefetches",
        "promoted",
        "requests",
        "reused",
        "skipped_backups",
        "tokens",
    )

    def __init__(self, components: int) -> None:
        self.requests = 0
        self.tokens = 0
        self.reused = 0
        self.lower = [0, 0]
        self.evicted = {tier: [0] * components for tier in (Tier.L1, Tier.L2)}
        self.demoted = [0] * components
        self.promoted = [0] * components
        self.moved_bytes: dict[str, int] = dict.fromkeys(DIRECTIONS, 0)
        self.prefetches: Counter[str] = Counter()
        self.skipped_backups = 0
        self.audits = AuditCounts()

    @property
    def hits(self) -> tuple[int, int, int]:
        """Reused tokens by the tier that held them."""
        l2, l3 = self.lower
        return self.reused - l2 - l3, l2, l3
