"""What is due for nodes and not begun: backups to L2, saves to L3."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .. import messages as m


class Due:
    """Nodes in the order in which they came due. A node that leaves the tree is due no more.

    `stir` is called when some come due. `again` are fetches that found no room on L2 before.
    """

    __slots__ = ("_fetches", "_postponed", "_stir", "again", "dirty", "unsaved")

    def __init__(self, stir: Callable[[], None]) -> None:
        self._stir = stir
        self.dirty: dict[int, None] = {}
        self.unsaved: dict[int, None] = {}
        self._postponed: dict[int, None] = {}
        self._fetches: list[m.Found] = []
        self.again: list[m.Found] = []

    def __len__(self) -> int:
        return len(self.dirty) + len(self.unsaved) + len(self._postponed)

    def back_up(self, nodes: Iterable[int]) -> None:
        """Let nodes be due for a backup."""
        self.dirty.update(dict.fromkeys(nodes))
        self._stir()

    def save(self, nodes: Iterable[int]) -> None:
        """Let nodes be due for a save."""
        self.unsaved.update(dict.fromkeys(nodes))
        self._stir()

    def postpone(self, nodes: Iterable[int]) -> None:
        """Let backups wait for room that is coming on L2, until an operation ends."""
        self._postponed.update(dict.fromkeys(nodes))

    def postpone_fetch(self, found: m.Found) -> None:
        """Let a fetch wait likewise."""
        self._fetches.append(found)

    def room_came(self) -> None:
        """Note that an operation has ended: what was postponed is due again."""
        if self._postponed:
            self.back_up(self._postponed)
            self._postponed.clear()
        if self._fetches:
            self.again += self._fetches
            self._fetches.clear()
            self._stir()

    def split(self, node: int, upper: int) -> None:
        """Let what is due for a node be due for its upper half too."""
        for nodes in (self.dirty, self.unsaved, self._postponed):
            if node in nodes:
                nodes[upper] = None

    def buried(self, nodes: Iterable[int]) -> None:
        """Forget nodes that left the tree."""
        if self.dirty or self.unsaved or self._postponed:
            for node in nodes:
                self.dirty.pop(node, None)
                self.unsaved.pop(node, None)
                self._postponed.pop(node, None)
