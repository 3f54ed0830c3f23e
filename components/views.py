"""What the tree and the component actors show of themselves, for checks and dumps."""

from __future__ import annotations

from ..actors import Message, Reply
from ..spec import PageList, Tier


class NodeView(Reply, frozen=True):
    """One node of the tree as `Nodes` reports it."""

    id: int
    parent: int
    start: int
    end: int
    namespace: bytes
    key: bytes


class Nodes(Message[tuple[NodeView, ...]], frozen=True):
    """Ask for the NodeViews of all nodes, in id order: for checks and dumps."""


class RecordView(Reply, frozen=True):
    """One node as a component sees it, for checks and dumps: payload per tier, None where absent."""

    id: int
    start: int
    end: int
    lock: int
    l1: PageList | None
    l2: PageList | None
    l1_writer: int
    l2_writer: int
    stamp: int


class Records(Message[tuple[RecordView, ...]], frozen=True):
    """Ask for the RecordViews of all nodes, in id order; of a snapshot component where it holds or locks."""


class Held(Reply, frozen=True):
    """Pages held on a tier by nodes, of which locked (L1 only), and payload counts."""

    cached: int
    locked: int
    payloads: int


class Ledger(Message[tuple[Held, Held]], frozen=True):
    """Ask for the running sums, one `Held` a tier."""


class Shared(Message[PageList], frozen=True):
    """Ask for the pages of a tier that left their node while several operations read them."""

    tier: Tier
