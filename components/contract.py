"""The component contract: one rule says what a reuse boundary needs; all else is shared.

      FULL    [0, b)                        every token before the boundary
      SWA     [max(0, b - W), b)            the last W of them
      CHUNKED [floor(b / C) * C, b)         those of the boundary's own chunk
      MAMBA   a state taken exactly at b    a snapshot, no range at all

Ranges are monotonic: as `b` grows, the start of a range never falls where the range is not empty.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from ..spec import ComponentSpec

Ranges = tuple[tuple[int, int], ...]
"""Token ranges [start, end), ascending and disjoint."""


class TreeComponent(ABC):
    """Say which tokens must be there to reuse a prefix up to a boundary. Stateless.

    A subclass is one file with its rule. `snapshot` components hold one object per boundary instead
    of a slice per token; the `base` component (FULL, exactly one, always the first) is the one whose
    payload keeps a node alive and which is evicted leaf first.
    """

    snapshot: ClassVar[bool] = False
    base: ClassVar[bool] = False

    def __init__(self, name: str, page_size: int, window: int = 0) -> None:
        self.name = name
        self.page_size = page_size
        self.window = window

    @abstractmethod
    def need(self, boundary: int) -> Ranges:
        """Return the token ranges that a reuse up to `boundary` needs; empty for a snapshot."""

    def deepest_without(self, start: int, end: int, boundary: int) -> int:
        """Return the deepest boundary at or below `boundary` that needs no token of [start, end).

        Whole pages, as `start` is. A token that a boundary needs is needed by every shorter one that
        lies behind it, so the search goes from the boundary to the first token of the hole that it
        needs, and so on. A rule that knows the place at once may say it.
        """
        page = self.page_size
        while boundary > start:
            needed = [
                max(low, start) for low, high in self.need(boundary) if low < end and high > start
            ]
            if not needed:
                break
            boundary = needed[0] // page * page
        return boundary

    def keep_from(self, position: int) -> int:
        """Return the first token that a request standing at `position` must keep, floored to a page.

        Both the position itself and the page boundary before it must stay reusable, since a publish
        hands over whole pages.
        """
        page = self.page_size
        floor = position // page * page
        ranges = self.need(floor)
        start = ranges[0][0] if ranges else floor
        if position != floor:
            ranges = self.need(position)
            start = min(start, ranges[0][0]) if ranges else start
        return start // page * page

    def window_start(self, computed: int, kept: Sequence[int]) -> int:
        """Return the first token that a request keeps: computed so far, with snapshots yet to publish."""
        start = self.keep_from(computed)
        return min([start, *map(self.keep_from, kept)]) if kept else start

    @classmethod
    def from_spec(cls, spec: ComponentSpec, page_size: int) -> TreeComponent:
        """Make the component that `spec` describes."""
        return cls(spec.name, page_size, getattr(spec, "window", 0))
