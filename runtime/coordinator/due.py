"""What is due for nodes and not begun: backups to L2, saves to L3."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Due:
    """Nodes in the order in which they came due. A node that leaves the tree is due no more.

    `request_epilogue` is called when some come due. `room_on_l2` says that a transfer has ended since
    it was set back: who waits for room on L2 may find some.
    """

    __slots__ = ("_request_epilogue", "postponed", "room_on_l2", "to_back_up", "to_save")

    def __init__(self, request_epilogue: Callable[[], None]) -> None:
        self._request_epilogue = request_epilogue
        self.to_back_up: dict[int, None] = {}
        self.to_save: dict[int, None] = {}
        self.postponed: dict[int, None] = {}
        self.room_on_l2 = False

    def __len__(self) -> int:
        return len(self.to_back_up) + len(self.to_save) + len(self.postponed)

    def back_up(self, nodes: Iterable[int]) -> None:
        """Let nodes be due for a backup."""
        self.to_back_up.update(dict.fromkeys(nodes))
        self._request_epilogue()

    def save(self, nodes: Iterable[int]) -> None:
        """Let nodes be due for a save, but for those whose backup is postponed: they are after it.

        The end of a save tries postponed backups again: each would wake the other without end.
        """
        self.to_save.update((node, None) for node in nodes if node not in self.postponed)
        self._request_epilogue()

    def postpone(self, nodes: Iterable[int]) -> None:
        """Let backups wait for room that is coming on L2, until a transfer ends."""
        self.postponed.update(dict.fromkeys(nodes))

    def room_came(self) -> None:
        """Note that a transfer has ended: what was postponed is due again."""
        if self.postponed:
            self.back_up(self.postponed)
            self.postponed.clear()
        self.room_on_l2 = True
        self._request_epilogue()

    def split(self, node: int, upper: int) -> None:
        """Let what is due for a node be due for its upper half too."""
        for nodes in (self.to_back_up, self.to_save, self.postponed):
            if node in nodes:
                nodes[upper] = None

    def buried(self, nodes: Iterable[int]) -> None:
        """Forget nodes that left the tree."""
        if self.to_back_up or self.to_save or self.postponed:
            for node in nodes:
                self.to_back_up.pop(node, None)
                self.to_save.pop(node, None)
                self.postponed.pop(node, None)
