"""FULL: attention over everything before the boundary."""

from __future__ import annotations

from .contract import Ranges, TreeComponent


class FullComponent(TreeComponent):
    """Need every token before the boundary."""

    base = True

    def need(self, boundary: int) -> Ranges:
        """Return [0, b)."""
        return ((0, boundary),)
