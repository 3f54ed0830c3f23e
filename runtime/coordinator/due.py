"""What is due for nodes and not begun: backups to L2, saves to L3."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Due:
    """Nodes in the order in which they came due. A node that leaves the tree is due no more.

    `stir` is called when some come due. `room_on_l2` says that a transfer has ended since it was set
    back: who waits for room on L2 may find some.
    """

    __slots__ = ("_postponed", "_stir", "dirty", "room_on_l2", "unsaved")

    def __init__(self, stir: Callable[[], None]) -> None:
        self._stir = stir
        self.dirty: dict[int, None] = {}
        self.unsaved: dict[int, None] = {}
        self._postponed: dict[int, None] = {}
        self.room_on_l2 = False

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
        """Let backups wait for room that is coming on L2, until a transfer ends."""
        self._postponed.update(dict.fromkeys(nodes))

    def room_came(self) -> None:
        """Note that a transfer has ended: what was postponed is due again."""
        if self._postponed:
            self.back_up(self._postponed)
            self._postponed.clear()
        self.room_on_l2 = True
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
