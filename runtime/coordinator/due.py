"""What is due for nodes and not begun: backups to L2, saves to L3."""

from __future__ import annotations

from collections.abc import Iterable


class Due:
    """Nodes in the order in which they came due. A node that leaves the tree is due no more."""

    __slots__ = ("dirty", "unsaved")

    def __init__(self) -> None:
        self.dirty: dict[int, None] = {}
        self.unsaved: dict[int, None] = {}

    def split(self, node: int, upper: int) -> None:
        """Let what is due for a node be due for its upper half too."""
        for nodes in (self.dirty, self.unsaved):
            if node in nodes:
                nodes[upper] = None

    def buried(self, nodes: Iterable[int]) -> None:
        """Forget nodes that left the tree."""
        if self.dirty or self.unsaved:
            for node in nodes:
                self.dirty.pop(node, None)
                self.unsaved.pop(node, None)
