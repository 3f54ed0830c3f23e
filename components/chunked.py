"""CHUNKED: attention within fixed chunks of positions, as in Llama 4's local layers."""

from __future__ import annotations

from .contract import Ranges, TreeComponent


class ChunkedComponent(TreeComponent):
    """Need the boundary's own chunk of `window` tokens up to it: nothing at a chunk's start."""

    def need(self, boundary: int) -> Ranges:
        """Return [floor(b / C) * C, b), empty where b is a multiple of C."""
        start = boundary // self.window * self.window
        return ((start, boundary),) if start < boundary else ()
