"""What the runtime reports to the observer: one fact for each piece of work of a cache."""

from __future__ import annotations

from typing import ClassVar

from ...actors import Fact


class AcquireDone(Fact, frozen=True, kw_only=True, tag=True):
    """An acquire was answered: tokens asked, reused, and where the reused ones were."""

    tokens: int
    length: int
    l1_tokens: int
    l2_tokens: int
    l3_tokens: int


class PromoteDone(Fact, frozen=True, kw_only=True, tag=True):
    """Payload came from L2 to L1 for an acquire."""

    op: int
    pages: int


class PrefetchDone(Fact, frozen=True, kw_only=True, tag=True):
    """Chunks came from L3 to L2 for an acquire, or did not: `outcome` is a closed reason."""

    op: int
    tokens: int
    outcome: str


class EvictDone(Fact, frozen=True, kw_only=True, tag=True):
    """One batch of evictions, and the component whose shortage or wish it served."""

    component: str
    tier: str
    pages: int
    nodes: int


class RecoveryDone(Fact, frozen=True, kw_only=True, tag=True):
    """A cache was made anew after the crash of `actor`: what it put back, and the tokens it forgot."""

    notable: ClassVar[bool] = True

    actor: str
    leases: int
    l1_tokens: int
    l2_tokens: int


class PublishDone(Fact, frozen=True, kw_only=True, tag=True):
    """Computed pages were handed to the tree."""

    length: int
    nodes: int
    duplicates: int
