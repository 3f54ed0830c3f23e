"""UnifiedTreeCore: the forest of token prefixes, its edges, ids and splits.

Keys are packed little-endian uint32 tokens, floored to whole pages. Every namespace has a root of its
own, so equal tokens of two tenants never meet. Children are found by their first page. The tree knows
no payload: whether a node may be reused is what the components say.
"""

from __future__ import annotations

from ..actors import Leaf, handles
from ..errors import IntegrityError
from . import messages as m

TOKEN = 4
"""Bytes of one token in a key."""


class Node:
    """One run of whole pages. `chain` is (position, hash) of the last chunk end known in its range."""

    __slots__ = ("chain", "children", "end", "id", "key", "parent", "space", "start")

    def __init__(self, id: int, parent: Node | None, start: int, key: bytes, space: bytes) -> None:
        self.id = id
        self.parent = parent
        self.start = start
        self.end = start + len(key) // TOKEN
        self.key = key
        self.space = space
        self.children: dict[bytes, Node] | None = None
        self.chain: tuple[int, bytes] | None = None


class UnifiedTreeCore(Leaf):
    """Own the forest. A walk costs the compared bytes plus O(nodes on the path)."""

    def __init__(self, page_size: int) -> None:
        super().__init__()
        self._page = page_size * TOKEN
        self._roots: dict[bytes, Node] = {}
        self._nodes: dict[int, Node] = {}
        self._last_id = 0

    def __repr__(self) -> str:
        return f"<UnifiedTreeCore [{len(self._nodes)} nodes in {len(self._roots)} namespaces]>"

    @handles(m.Walk)
    def walk(self, msg: m.Walk) -> m.Walked:
        """Follow the key as far as edges agree, page by page; change nothing."""
        node = self._nodes[msg.start] if msg.start else self._roots.get(msg.namespace)
        path: list[int] = []
        ends: list[int] = []
        partial = False
        if node is not None:
            key, page, size = msg.key, self._page, len(msg.key)
            at = 0
            while at < size and node.children:
                child = node.children.get(key[at : at + page])
                if child is None:
                    break
                edge = child.key
                path.append(child.id)
                if key.startswith(edge, at):
                    at += len(edge)
                    ends.append(child.end)
                    node = child
                else:
                    ends.append(child.start + self._common(edge, key, at) // TOKEN)
                    partial = True
                    break
        return m.Walked(tuple(path), tuple(ends), partial)

    def _common(self, edge: bytes, key: bytes, at: int) -> int:
        """Count the bytes on which `edge` and `key[at:]` agree, floored to pages; at least one page."""
        page = self._page
        low, high = 1, min(len(edge), len(key) - at) // page
        while low < high:
            middle = (low + high + 1) // 2
            if key.startswith(edge[low * page : middle * page], at + low * page):
                low = middle
            else:
                high = middle - 1
        return low * page

    @handles(m.Insert)
    def insert(self, msg: m.Insert) -> m.Grown | m.Walked:
        """Add a chain of nodes; where something agrees, walk instead."""
        parent = self._nodes[msg.parent] if msg.parent else self._root(msg.namespace)
        if parent.children and msg.key[: self._page] in parent.children:
            return self.walk(m.Walk(msg.namespace, msg.key, msg.parent))
        path: list[int] = []
        ends: list[int] = []
        first = parent.end
        for end in (*msg.cuts, first + len(msg.key) // TOKEN):
            edge = msg.key[(parent.end - first) * TOKEN : (end - first) * TOKEN]
            node = self._add(parent, parent.end, edge, msg.namespace)
            if parent.children is None:
                parent.children = {}
            parent.children[edge[: self._page]] = node
            path.append(node.id)
            ends.append(node.end)
            parent = node
        return m.Grown(tuple(path), tuple(ends))

    def _root(self, namespace: bytes) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(m.ROOT, None, 0, b"", namespace)
        return root

    def _add(self, parent: Node, start: int, edge: bytes, space: bytes) -> Node:
        self._last_id += 1
        node = Node(self._last_id, parent, start, edge, space)
        self._nodes[node.id] = node
        return node

    @handles(m.Split)
    def split(self, msg: m.Split) -> int:
        """Put a new node above `node` that takes its head; answer the new node's id."""
        lower = self._nodes[msg.node]
        parent = lower.parent
        if parent is None or not lower.start < msg.at < lower.end:
            raise IntegrityError(f"node {msg.node} cannot be split at {msg.at}")
        cut = (msg.at - lower.start) * TOKEN
        upper = self._add(parent, lower.start, lower.key[:cut], lower.space)
        siblings = parent.children
        if siblings is not None:
            siblings[upper.key[: self._page]] = upper
        lower.key = lower.key[cut:]
        lower.start = msg.at
        lower.parent = upper
        upper.children = {lower.key[: self._page]: lower}
        if lower.chain is not None and lower.chain[0] <= msg.at:
            upper.chain, lower.chain = lower.chain, None
        return upper.id

    @handles(m.Remove)
    def remove(self, msg: m.Remove) -> None:
        """Remove childless nodes and roots that are left without children."""
        for id in msg.nodes:
            node = self._nodes[id]
            parent = node.parent
            if node.children or parent is None or parent.children is None:
                raise IntegrityError(f"node {id} has children and cannot be removed")
            del self._nodes[id]
            del parent.children[node.key[: self._page]]
            if not parent.children:
                parent.children = None
                if parent.parent is None:
                    del self._roots[node.space]

    @handles(m.Subtree)
    def subtree(self, msg: m.Subtree) -> tuple[int, ...]:
        """Answer all nodes below one, parents first; costs what it answers."""
        found: list[int] = []
        stack = [self._nodes[msg.node]] if msg.node in self._nodes else []
        while stack:
            children = stack.pop().children
            if children:
                stack.extend(children.values())
                found.extend(child.id for child in children.values())
        return tuple(found)

    @handles(m.Ancestry)
    def ancestry(self, msg: m.Ancestry) -> m.Walked:
        """Answer the path from the root to a node, empty where the node is gone."""
        node = self._nodes.get(msg.node)
        path: list[int] = []
        ends: list[int] = []
        while node is not None and node.parent is not None:
            path.append(node.id)
            ends.append(node.end)
            node = node.parent
        return m.Walked(tuple(reversed(path)), tuple(reversed(ends)), partial=False)

    @handles(m.Span)
    def span(self, msg: m.Span) -> m.Spanned | None:
        """Answer what must be hashed to know the chain at the node's end; None where it is gone."""
        node = self._nodes.get(msg.node)
        if node is None:
            return None
        asked, end = node, node.end
        parts: list[bytes] = []
        while node.parent is not None:
            # Its own chain would skip chunks that end in it, which are what is to be saved.
            if node.chain is not None and node is not asked:
                at, chain = node.chain
                parts.append(node.key[(at - node.start) * TOKEN :])
                return m.Spanned(node.space, at, chain, b"".join(reversed(parts)), end)
            parts.append(node.key)
            node = node.parent
        return m.Spanned(node.space, 0, b"", b"".join(reversed(parts)), end)

    @handles(m.Chained)
    def chained(self, msg: m.Chained) -> None:
        """Keep a chain hash with the node in whose range its chunk ends, if that node is still there."""
        node = self._nodes.get(msg.node)
        while node is not None and node.parent is not None and node.start >= msg.at:
            node = node.parent
        if node is not None and node.start < msg.at <= node.end:
            node.chain = (msg.at, msg.chain)

    @handles(m.Count)
    def count(self, msg: m.Count) -> int:
        """Answer the number of nodes."""
        return len(self._nodes)

    @handles(m.Nodes)
    def nodes(self, msg: m.Nodes) -> tuple[m.NodeView, ...]:
        """Answer views of all nodes, in id order."""
        return tuple(
            m.NodeView(n.id, n.parent.id if n.parent else 0, n.start, n.end, n.space, n.key)
            for n in self._nodes.values()
        )
