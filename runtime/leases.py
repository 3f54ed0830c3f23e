"""What the cache actor keeps for one live lease."""

from __future__ import annotations

from ..components.messages import ROOT, Receipt
from .parts import Part, Parts

PAGE = 4
"""Bytes of one page id."""

TOKEN = 4
"""Bytes of one token."""


class Share:
    """A lease's share of one component: locks on the tree, and pages or slots of its own.

    Private pages cover tokens from `own_start` (a page boundary) to the lease's extent. `slot` is
    the working state of a snapshot component, `kept` its unpublished snapshots as (position, slot);
    `pages` is the page table of the locked coverage until the lease is answered.
    """

    __slots__ = (
        "kept",
        "low_end",
        "own",
        "own_start",
        "pages",
        "part",
        "receipts",
        "slot",
        "start",
    )

    def __init__(self, part: Part) -> None:
        self.part = part
        self.receipts: tuple[Receipt, ...] = ()
        self.low_end = 0
        self.start = 0
        self.own_start = 0
        self.own = bytearray()
        self.slot = b""
        self.pages = b""
        self.kept: list[tuple[int, bytes]] = []


class LeaseRecord:
    """One request: tokens known, the node it is anchored at, and its share of each component.

    `published` is the anchor's end: tokens that the tree owns. `computed` is how far the engine is
    known to have come, `extent` how far there are pages, `full` how far the base component agreed. The lease is the record from which the
    locks of every component can be explained.
    """

    __slots__ = (
        "anchor",
        "computed",
        "extent",
        "full",
        "generated",
        "id",
        "namespace",
        "priority",
        "prompt",
        "published",
        "shares",
    )

    def __init__(
        self, id: int, namespace: bytes, tokens: bytes, priority: int, parts: Parts
    ) -> None:
        self.id = id
        self.namespace = namespace
        self.prompt = tokens
        self.generated = bytearray()
        self.priority = priority
        self.anchor = ROOT
        self.published = 0
        self.computed = 0
        self.extent = 0
        self.full = 0
        self.shares = tuple(Share(part) for part in parts.all)

    @property
    def known(self) -> int:
        """Count the tokens whose ids are known."""
        return (len(self.prompt) + len(self.generated)) // TOKEN

    def key(self, start: int, end: int) -> bytes:
        """Answer the packed tokens [start, end)."""
        prompt = len(self.prompt)
        low, high = start * TOKEN, end * TOKEN
        if high <= prompt:
            return self.prompt[low:high]
        tail = bytes(self.generated[max(0, low - prompt) : high - prompt])
        return self.prompt[low:] + tail

    def anchored(self, node: int, end: int, page: int) -> None:
        """Stand at a node of the tree: everything before its end is the tree's."""
        self.anchor = node
        self.published = self.computed = self.extent = end
        for share in self.shares:
            share.own_start = end // page * page
