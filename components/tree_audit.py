"""One round of an audit over the tree, a few nodes at a time, while the tree changes.

The round proves the tree of one moment, in which it began. Who is about to change a node says so
(`before`), and what has not been looked at yet is noted as it is. So nothing that happens meanwhile
can make a sound tree look wrong, and what is seldom at rest is proved all the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ..spec import TOKEN_BYTES
from .audit_messages import Faults, ScannedTree, ScanTree

if TYPE_CHECKING:
    from .tree import Node


class _Seen(NamedTuple):
    """A node as it was; `above` is its parent's id, or the namespace where that is a root."""

    above: int | bytes
    start: int
    end: int
    children: int


class NodeIds:
    """The ids of all nodes, in order: those of the round before that are left, and what came since.

    To list them anew would take longer the more there are.
    """

    def __init__(self) -> None:
        self._known = array("q")
        self._upto = 0

    def begin(self, last: int) -> tuple[array[int], range]:
        """Return the ids that may have a node, `last` being the highest; `keep` those that have."""
        before, new = self._known, range(self._upto + 1, last + 1)
        self._known, self._upto = array("q"), last
        return before, new

    def keep(self, id: int) -> None:
        """Note that there is such a node."""
        self._known.append(id)


class TreeAudit:
    """One round: `number` tells it from others."""

    def __init__(
        self,
        number: int,
        ids: NodeIds,
        *,
        last: int,
        nodes: Mapping[int, Node],
        roots: Mapping[bytes, Node],
        page: int,
    ) -> None:
        self.number = number
        self._ids = ids
        self._before, self._new = ids.begin(last)
        self._at = 0
        self.last = last
        self._cursor = 0
        self._nodes = nodes
        self._roots = roots
        self._page = page
        self._noted: dict[int, _Seen] = {}
        self._root_children: dict[bytes, int] = {}
        # Children found less children that their parent counts: all zero in the end.
        self._missing: dict[int | bytes, int] = {}
        self._heard = 0
        self._answer = ScannedTree((), (), (), over=False, faults=())

    # -- what changes meanwhile -------------------------------------------------------------------

    def before(self, node: Node) -> None:
        """Note a node that is about to change, or to leave, unless it has been looked at."""
        if node.parent is None:
            if node.space not in self._root_children:
                self._root_children[node.space] = node.fanout()
        elif self._cursor < node.id <= self.last and node.id not in self._noted:
            self._noted[node.id] = _seen(node)

    # -- a slice --------------------------------------------------------------------------------------

    def scan(self, msg: ScanTree) -> ScannedTree:
        """Look at the next nodes."""
        if msg.number <= self._heard:
            return self._answer
        self._heard = msg.number
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        faults: list[tuple[str, str]] = []
        tokens = 0
        stop = min(self._at + 4 * msg.nodes, len(self._before) + len(self._new))
        while self._at < stop and len(ids) < msg.nodes and tokens < msg.tokens:
            id = self._cursor = self._next()
            node, seen = self._nodes.get(id), self._noted.pop(id, None)
            if node is not None:
                self._ids.keep(id)
                self._check(node, faults)
                seen = seen or _seen(node)
            if seen is None:
                continue  # it had left before the round began
            ids.append(id)
            starts.append(seen.start)
            ends.append(seen.end)
            tokens += seen.end - seen.start
            self._count(seen.above, 1)
            self._count(id, -seen.children)
        over = self._at == len(self._before) + len(self._new)
        if over:
            faults += self._fanouts()
        self._answer = ScannedTree(
            tuple(ids), tuple(starts), tuple(ends), over=over, faults=tuple(faults)
        )
        return self._answer

    def _next(self) -> int:
        at, self._at = self._at, self._at + 1
        known = len(self._before)
        return self._before[at] if at < known else self._new[at - known]

    def _count(self, parent: int | bytes, children: int) -> None:
        missing = self._missing.get(parent, 0) + children
        if missing:
            self._missing[parent] = missing
        else:
            self._missing.pop(parent, None)

    def _check(self, node: Node, faults: list[tuple[str, str]]) -> None:
        """Hold one node against its parent, as both are now."""
        parent, length = node.parent, node.end - node.start
        if (
            length <= 0
            or length * TOKEN_BYTES % self._page
            or len(node.key) != length * TOKEN_BYTES
        ):
            faults.append(("T2", f"node {node.id} spans [{node.start}, {node.end})"))
        home = None if parent is None else self._nodes.get(parent.id, self._roots.get(node.space))
        if parent is None or home is not parent:
            faults.append(("T2", f"node {node.id} has no parent in the tree"))
        elif parent.end != node.start or parent.space != node.space:
            faults.append(("T2", f"node {node.id} does not follow its parent {parent.id}"))
        elif parent.child(node.key[: self._page]) is not node:
            faults.append(("T3", f"node {node.id} is not found from its parent {parent.id}"))

    def _fanouts(self) -> Faults:
        """Compare how many children each node has with how many name it as their parent."""
        for space in tuple(self._missing):
            if isinstance(space, bytes):
                root = self._roots.get(space)
                there = 0 if root is None else root.fanout()
                self._count(space, -self._root_children.get(space, there))
        return tuple(
            ("T3", f"node {parent!r} counts {-missing} children more than name it as their parent")
            for parent, missing in self._missing.items()
        )


def _seen(node: Node) -> _Seen:
    parent = node.parent
    above = 0 if parent is None else parent.id or node.space
    return _Seen(above, node.start, node.end, node.fanout())
