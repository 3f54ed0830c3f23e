"""The two kinds of component actors: who is asked for which rule."""

from __future__ import annotations

from .contract import TreeComponent
from .paged import PagedActor
from .policies import Policy
from .snapshot import SnapshotActor


def make_actor(
    component: TreeComponent, policy: str | Policy = "lru"
) -> PagedActor | SnapshotActor:
    """Make the actor of a component from its rule and an eviction policy."""
    kind = SnapshotActor if component.snapshot else PagedActor
    return kind(component, policy)
