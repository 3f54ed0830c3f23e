"""The L2 tier: page ids of the host arena."""

from __future__ import annotations

from .arena import HostArena
from .slabs import SlabPool, SlabSpace
from .tier import PageTier


class L2Tier(PageTier):
    """Give out the pages of `arena`: elastic pools over its slabs.

    The capacity in `Usage` is what a component has and could still claim: it changes as others claim.
    """

    def __init__(self, arena: HostArena) -> None:
        space = SlabSpace(arena.slabs, arena.slab_bytes)
        super().__init__(
            SlabPool(
                space, name, layout.page_bytes, arena.slab_pages[name], arena.reserved_slabs[name]
            )
            for name, layout in arena.layouts.items()
        )
