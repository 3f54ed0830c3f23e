"""UnifiedTreeCore: the forest of token prefixes, its edges, ids and splits.

Keys are packed little-endian uint32 tokens, floored to whole pages. Every namespace has a root of its
own, so equal tokens of two tenants never meet. Children are found by their first page. The tree knows
no payload: whether a node may be reused is what the components say.
"""

from __future__ import annotations

from operator import attrgetter

import msgspec

from ..actors import Leaf, handles
from ..errors import IntegrityError
from ..spec import TOKEN_BYTES
from . import audit_messages as a
from . import messages as m
from . import views as v
from .tree_audit import NodeIds, TreeAudit


class Node(msgspec.Struct, eq=False):
    """One run of whole pages. `chain` is (position, hash) of the last chunk end known in its range.

    Most nodes have one child: it is `only`, which saves them a table and walks a look-up. Two and
    more are in `children`, by their first page.
    """

    id: int
    parent: Node | None
    start: int
    end: int
    key: bytes
    space: bytes
    only: Node | None = None
    children: dict[bytes, Node] | None = None
    chain: tuple[int, bytes] | None = None

    def below(self) -> list[Node]:
        """Return the children."""
        if self.children is not None:
            return list(self.children.values())
        return [] if self.only is None else [self.only]

    def fanout(self) -> int:
        """Count the children."""
        return len(self.children) if self.children is not None else int(self.only is not None)

    def child(self, first: bytes) -> Node | None:
        """Return the child that begins with a page."""
        if self.children is not None:
            return self.children.get(first)
        return self.only if self.only is not None and self.only.key.startswith(first) else None

    def adopt(self, child: Node, page: int) -> None:
        """Add a child whose first page no other has, or put it in the place of the one that has it."""
        only = self.only
        if self.children is not None:
            self.children[child.key[:page]] = child
        elif only is None or only.key[:page] == child.key[:page]:
            self.only = child
        else:
            self.children = {only.key[:page]: only, child.key[:page]: child}
            self.only = None

    def lose(self, child: Node, page: int) -> None:
        """Remove one of several children."""
        if self.children is None:
            raise IntegrityError(f"node {child.id} is no child of node {self.id}")
        del self.children[child.key[:page]]
        if len(self.children) == 1:
            (self.only,) = self.children.values()
            self.children = None


_ID, _END = attrgetter("id"), attrgetter("end")
_NOTHING = m.Walked((), (), partial=False)


class UnifiedTreeCore(Leaf):
    """Own the forest. A walk costs the compared bytes plus O(nodes on the path)."""

    def __init__(self, page_size: int) -> None:
        super().__init__()
        self._page = page_size * TOKEN_BYTES
        self._roots: dict[bytes, Node] = {}
        self._nodes: dict[int, Node] = {}
        self._last_id = 0
        self._ids = NodeIds()
        self._audit: TreeAudit | None = None

    def __repr__(self) -> str:
        return f"<UnifiedTreeCore [{len(self._nodes)} nodes in {len(self._roots)} namespaces]>"

    @handles(m.Walk)
    def walk(self, msg: m.Walk) -> m.Walked:
        """Follow the key as far as edges agree, page by page; change nothing."""
        node = self._nodes[msg.start] if msg.start else self._roots.get(msg.namespace)
        if node is None:
            return _NOTHING
        found: list[Node] = []
        key, page, at = msg.key, self._page, 0
        size = len(key) if msg.size is None else msg.size
        while at < size:
            child = node.only
            if child is None:
                children = node.children
                child = children.get(key[at : at + page]) if children is not None else None
                if child is None:
                    break
            edge = child.key
            if key.startswith(edge, at, size):
                found.append(child)
                at += len(edge)
                node = child
                continue
            common = self._common(edge, key, at, size)
            if common:
                end = child.start + common // TOKEN_BYTES
                ends = (*map(_END, found), end)
                found.append(child)
                return m.Walked(tuple(map(_ID, found)), ends, partial=True)
            break
        return m.Walked(tuple(map(_ID, found)), tuple(map(_END, found)), partial=False)

    @handles(m.WalkMany)
    def walk_many(self, msg: m.WalkMany) -> tuple[m.Walked, ...]:
        """Follow many keys."""
        return tuple([self.walk(walk) for walk in msg.walks])

    def _common(self, edge: bytes, key: bytes, at: int, size: int) -> int:
        """Count the bytes on which `edge` and `key[at:size]` agree, floored to pages."""
        page = self._page
        low, high = 0, min(len(edge), size - at) // page
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
        key, page = msg.key, self._page
        only, children = parent.only, parent.children
        if only is not None:
            agrees = key.startswith(only.key[:page])
        else:
            agrees = children is not None and key[:page] in children
        if agrees:
            return self.walk(m.Walk(msg.namespace, key, msg.parent))
        if self._audit is not None:
            self._audit.before(parent)
        path: list[int] = []
        ends: list[int] = []
        first = start = parent.end
        for end in (*msg.cuts, first + len(key) // TOKEN_BYTES):
            edge = key[(start - first) * TOKEN_BYTES : (end - first) * TOKEN_BYTES]
            node = self._add(parent, start, end, edge, msg.namespace)
            if start == first:
                parent.adopt(node, page)
            else:
                parent.only = node  # a new node has no other child
            path.append(node.id)
            ends.append(end)
            parent, start = node, end
        return m.Grown(tuple(path), tuple(ends))

    def _root(self, namespace: bytes) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(m.ROOT, None, 0, 0, b"", namespace)
        return root

    def _add(self, parent: Node, start: int, end: int, edge: bytes, space: bytes) -> Node:
        id = self._last_id = self._last_id + 1
        node = self._nodes[id] = Node(id, parent, start, end, edge, space)
        return node

    @handles(m.Split)
    def split(self, msg: m.Split) -> int:
        """Put a new node above `node` that takes its head; return the new node's id."""
        lower = self._nodes[msg.node]
        parent = lower.parent
        if parent is None or not lower.start < msg.at < lower.end:
            raise IntegrityError(f"node {msg.node} cannot be split at {msg.at}")
        if self._audit is not None:
            self._audit.before(lower)
        cut = (msg.at - lower.start) * TOKEN_BYTES
        upper = self._add(parent, lower.start, msg.at, lower.key[:cut], lower.space)
        parent.adopt(upper, self._page)
        lower.key = lower.key[cut:]
        lower.start = msg.at
        lower.parent = upper
        upper.only = lower
        if lower.chain is not None and lower.chain[0] <= msg.at:
            upper.chain, lower.chain = lower.chain, None
        return upper.id

    @handles(m.Remove)
    def remove(self, msg: m.Remove) -> None:
        """Remove childless nodes and roots that are left without children."""
        nodes = self._nodes
        for id in msg.nodes:
            node = nodes[id]
            parent = node.parent
            if parent is None or node.only is not None or node.children is not None:
                raise IntegrityError(f"node {id} has children and cannot be removed")
            if self._audit is not None:
                self._audit.before(node)
                self._audit.before(parent)
            del nodes[id]
            if parent.only is node:
                parent.only = None
            else:
                parent.lose(node, self._page)
            if parent.parent is None and parent.only is None and parent.children is None:
                del self._roots[node.space]

    @handles(m.Subtree)
    def subtree(self, msg: m.Subtree) -> tuple[int, ...]:
        """Return all nodes below one, parents first; costs what it answers."""
        found: list[int] = []
        stack = [self._nodes[msg.node]] if msg.node in self._nodes else []
        while stack:
            children = stack.pop().below()
            stack.extend(children)
            found.extend(child.id for child in children)
        return tuple(found)

    @handles(m.ChunkSharers)
    def chunk_sharers(self, msg: m.ChunkSharers) -> tuple[int, ...]:
        """Return the nodes below some that share a chunk with them; costs what it answers."""
        found: dict[int, None] = {}
        for id in msg.nodes:
            node = self._nodes.get(id)
            stack = [] if node is None else [node]
            reach = 0 if node is None else -(-node.end // msg.chunk) * msg.chunk
            while stack:
                for child in stack.pop().below():
                    if child.start < reach and child.id not in found:
                        found[child.id] = None
                        stack.append(child)
        return tuple(found)

    @handles(m.Ancestry)
    def ancestry(self, msg: m.Ancestry) -> m.Walked:
        """Return the path from the root to a node, empty where the node is gone."""
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
        """Return what must be hashed to know the chain at the node's end; None where it is gone."""
        node = self._nodes.get(msg.node)
        if node is None:
            return None
        asked, end = node, node.end
        parts: list[bytes] = []
        while node.parent is not None:
            # Its own chain would skip chunks that end in it, which are what is to be saved.
            if node.chain is not None and node is not asked:
                at, chain = node.chain
                parts.append(node.key[(at - node.start) * TOKEN_BYTES :])
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
        """Return the number of nodes."""
        return len(self._nodes)

    @handles(v.Nodes)
    def nodes(self, msg: v.Nodes) -> tuple[v.NodeView, ...]:
        """Return views of all nodes, in id order."""
        return tuple(
            v.NodeView(n.id, n.parent.id if n.parent else 0, n.start, n.end, n.space, n.key)
            for n in self._nodes.values()
        )

    # -- audits -----------------------------------------------------------------------------------

    @handles(a.BeginTree)
    def begin_audit(self, msg: a.BeginTree) -> int:
        """Begin a round, unless this one has begun."""
        if self._audit is None or self._audit.number != msg.round:
            self._audit = TreeAudit(
                msg.round,
                self._ids,
                last=self._last_id,
                nodes=self._nodes,
                roots=self._roots,
                page=self._page,
            )
        return self._audit.last

    @handles(a.ScanTree)
    def scan(self, msg: a.ScanTree) -> a.ScannedTree:
        """Show the next nodes to an audit."""
        if self._audit is None:
            raise IntegrityError("no round of an audit has begun")
        return self._audit.scan(msg)
