"""MAMBA: a recurrent state that stands for exactly the tokens before one boundary."""

from __future__ import annotations

from .contract import Ranges, TreeComponent


class MambaComponent(TreeComponent):
    """Need a state taken exactly at the boundary; tokens themselves are not needed."""

    snapshot = True

    def need(self, boundary: int) -> Ranges:
        """Return no range: the state at `boundary` is the whole coverage."""
        return ()
