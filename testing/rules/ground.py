"""The ground of the component tests: a tree, one component's actor, and a page-granular model.

The model knows no nodes: it maps prefixes to what is held, locked and used there, one entry a page.
So a split changes nothing in it, and whatever the actors answer before and after one must agree.

A prompt is a string; each letter stands for one whole page of equal tokens.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ...components import messages as m
from ...components import views as v
from ...components.contract import TreeComponent
from ...components.kinds import make_actor
from ...components.tree import UnifiedTreeCore
from ...spec import Tier

SPACE = b"space"
BOTH = (Tier.L1, Tier.L2)


def pack(pages: Iterable[int]) -> bytes:
    return b"".join(struct.pack("<i", page) for page in pages)


def unpack(pages: bytes) -> list[int]:
    return [page for (page,) in struct.iter_unpack("<i", pages)]


@dataclass
class Use:
    stamp: int
    born: int
    previous: int = 0
    hits: int = 0
    priority: int = 0

    def touch(self, now: int) -> None:
        self.previous, self.stamp = self.stamp, now


KEYS: dict[str, Callable[[Use], Any]] = {
    "lru": lambda use: use.stamp,
    "lru_k": lambda use: (use.previous, use.stamp),
    "lfu": lambda use: (use.hits, use.stamp),
    "slru": lambda use: (use.hits >= 2, use.stamp),
    "fifo": lambda use: use.born,
    "priority": lambda use: (use.priority, use.stamp),
}


@dataclass
class Held:
    """What one page of a prefix (or the state at its end) has on one tier."""

    page: int
    writer: int = 0
    readers: set[int] = field(default_factory=set[int])

    def users(self) -> set[int]:
        return {self.writer} if self.writer else self.readers


@dataclass
class Lease:
    """A lock: the prefix it stands for, the anchor, and the prefixes whose pages it counts."""

    prompt: str
    node: int
    receipts: tuple[m.Receipt, ...]
    cover: set[str]
    at: int


@dataclass(frozen=True)
class Node:
    """A node as the tree tells it: its whole prefix, and its first and last page."""

    id: int
    parent: int
    prefix: str
    start: int

    @property
    def end(self) -> int:
        return len(self.prefix)

    @property
    def pages(self) -> list[str]:
        return [self.prefix[: k + 1] for k in range(self.start, self.end)]


class Ground:
    """The actors and the model, how to read them, and whether they agree."""

    def __init__(
        self,
        component: TreeComponent,
        policy: Any = "lru",
        key: Callable[[Use], Any] | None = None,
    ) -> None:
        self.component = component
        self.page = component.page_size
        self.tree = UnifiedTreeCore(self.page)
        self.actor: Any = make_actor(component, policy)  # each kind hears what is for it
        self.key = key or KEYS[policy]
        self.held: tuple[dict[str, Held], dict[str, Held]] = ({}, {})
        self.uses: dict[str, Use] = {}
        self.leases: list[Lease] = []
        self.ops: dict[int, Tier] = {}
        self.shared: list[tuple[Tier, set[int], tuple[int, ...]]] = []
        self.now = 0
        self.last_page = 0
        self.last_op = 0

    # -- reading the tree -----------------------------------------------------------------------------

    def tokens(self, letters: str) -> bytes:
        return b"".join(struct.pack("<I", ord(letter)) * self.page for letter in letters)

    def nodes(self) -> dict[int, Node]:
        views = {view.id: view for view in self.tree.nodes(v.Nodes())}
        found: dict[int, Node] = {}

        def visit(view: v.NodeView) -> Node:
            if view.id not in found:
                before = visit(views[view.parent]).prefix if view.parent else ""
                letters = "".join(map(chr, struct.unpack(f"<{len(view.key) // 4}I", view.key)))
                prefix = before + letters[:: self.page]
                found[view.id] = Node(view.id, view.parent, prefix, view.start // self.page)
            return found[view.id]

        for view in views.values():
            visit(view)
        return found

    def walk(self, prompt: str, start: int = m.ROOT) -> m.Walked:
        return self.tree.walk(m.Walk(SPACE, self.tokens(prompt), start))

    def path(self, node: int) -> list[Node]:
        nodes = self.nodes()
        return [nodes[id] for id in self.tree.ancestry(m.Ancestry(node)).path]

    def children(self, node: int) -> list[Node]:
        return [other for other in self.nodes().values() if other.parent == node]

    def known(self, prompt: str) -> int:
        """Count the pages of a prompt that the tree knows."""
        ends = self.walk(prompt).ends
        return ends[-1] // self.page if ends else 0

    # -- the rule, page by page -------------------------------------------------------------------------

    def needed(self, pages: int) -> list[int]:
        """Return the indexes of the pages that a boundary needs some token of."""
        ranges = self.component.need(pages * self.page)
        tokens = {token for start, end in ranges for token in range(start, end)}
        return sorted({token // self.page for token in tokens})

    def units(self, node: Node) -> list[str]:
        """Return the prefixes under which the model keeps what this node may hold."""
        return [node.prefix] if self.component.snapshot else node.pages

    def cover(self, node: int) -> list[Node]:
        """Return the nodes that the boundary at the end of `node` needs."""
        path = self.path(node)
        if self.component.snapshot:
            return path[-1:]
        needed = self.needed(path[-1].end)
        return [at for at in path if any(at.start <= page < at.end for page in needed)]

    def recorded(self, prefix: str) -> bool:
        """Say whether there is a record: of a node always, of a snapshot where it is held or locked."""
        if not self.component.snapshot:
            return True
        return any(prefix in held for held in self.held) or bool(self.locks()[prefix])

    def locks(self) -> Counter[str]:
        return Counter(unit for lease in self.leases for unit in lease.cover)

    # -- splits -----------------------------------------------------------------------------------------

    def split(self, node: int, at: int) -> int:
        upper = self.tree.split(m.Split(node, at * self.page))
        self.actor.split_done(m.SplitDone(node, upper, at * self.page))
        return upper

    def boundary(self, prompt: str) -> int:
        """Return the node that ends where a known prefix does, splitting if none does."""
        walked = self.walk(prompt)
        assert walked.ends[-1] == len(prompt) * self.page
        return self.split(walked.path[-1], len(prompt)) if walked.partial else walked.path[-1]

    # -- all of it --------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare every record and every running sum with the model."""
        nodes, locks = self.nodes(), self.locks()
        records = {record.id: record for record in self.actor.views(v.Records())}
        assert records.keys() == {id for id, node in nodes.items() if self.recorded(node.prefix)}
        payloads = [0, 0]
        for id, node in nodes.items():
            if id not in records:
                continue
            record, units = records[id], self.units(node)
            assert (record.start, record.end) == (node.start * self.page, node.end * self.page)
            assert {locks[unit] for unit in units} == {record.lock}
            assert {self.uses[unit].stamp for unit in units} == {record.stamp}
            for tier, pages, writer in (
                (Tier.L1, record.l1, record.l1_writer),
                (Tier.L2, record.l2, record.l2_writer),
            ):
                held = [self.held[tier].get(unit) for unit in units]
                assert [h.page for h in held if h] == unpack(pages or b"")
                assert (pages is None) == (None in held)
                assert {h.writer for h in held if h} <= {writer}
                payloads[tier] += pages is not None
        l1, l2 = self.held
        locked = sum(1 for unit in l1 if locks[unit])
        assert self.actor.ledger(v.Ledger()) == (
            v.Held(len(l1), locked, payloads[0]),
            v.Held(len(l2), 0, payloads[1]),
        )
        for tier in BOTH:
            told = unpack(self.actor.shared(v.Shared(tier)))
            assert sorted(told) == sorted(
                p for t, _, pages in self.shared if t == tier for p in pages
            )
