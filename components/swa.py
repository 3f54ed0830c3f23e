"""SWA: attention over a sliding window that ends at the boundary."""

from __future__ import annotations

from .contract import Ranges, TreeComponent


class SWAComponent(TreeComponent):
    """Need the last `window` tokens before the boundary, all of them where there are fewer."""

    def need(self, boundary: int) -> Ranges:
        """Return [max(0, b - W), b)."""
        return ((max(0, boundary - self.window), boundary),)

    def deepest_without(self, start: int, end: int, boundary: int) -> int:
        """Return where the hole starts: whatever ends in it or less than a window behind it needs it."""
        return boundary if boundary <= start or boundary - self.window >= end else start
