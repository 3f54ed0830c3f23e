"""One round of an audit over locks: they are exactly those that the receipts of live leases explain."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ...components.audit_messages import Faults, LockedNode
from ...components.messages import Receipt

_NAMED = 5
"""Nodes that the last finding names at most."""


class _Count(msgspec.Struct, eq=False):
    """The locks of a node that are not explained yet, and the way up from it."""

    left: int
    parent: int
    start: int


class LockAudit:
    """One component: first all its locked nodes are told, then all receipts.

    A round keeps what is locked, which live leases bound, and not what is cached.
    """

    def __init__(self, component: str, *, snapshot: bool) -> None:
        self._component = component
        self._snapshot = snapshot
        self._counts: dict[int, _Count] = {}
        self._receipts: list[Receipt] = []

    def locked(self, nodes: tuple[LockedNode, ...]) -> None:
        """Take nodes that are locked."""
        for node in nodes:
            self._counts[node.id] = _Count(node.lock, node.parent, node.start)

    def receipts(self, receipts: tuple[Receipt, ...]) -> None:
        """Take what a lease has locked."""
        self._receipts += receipts

    def explaining(self, steps: int) -> Iterator[Faults]:
        """Take from each node the locks that the receipts explain, so many at a time."""
        faults: list[tuple[str, str]] = []
        taken = 0
        while self._receipts:
            receipt = self._receipts.pop()
            node, start = receipt.anchor, receipt.start
            while node:
                count = self._counts.get(node)
                if count is None:
                    faults.append(self._fault(node, "fewer"))
                    break
                if not self._snapshot and count.start < start:
                    break
                count.left -= 1
                if not count.left:
                    del self._counts[node]
                taken += 1
                if taken % steps == 0:
                    yield tuple(faults)
                    faults.clear()
                if self._snapshot or count.start <= start:
                    break
                node = count.parent
        faults += [
            self._fault(node, "more") for node, _ in zip(self._counts, range(_NAMED), strict=False)
        ]
        yield tuple(faults)

    def _fault(self, node: int, which: str) -> tuple[str, str]:
        return "L3", f"{self._component}: node {node} has {which} locks than live leases explain"
