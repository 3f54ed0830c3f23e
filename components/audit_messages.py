"""What an audit asks the tree and the components: all as it was in the operation that began a round.

Each message carries its number in the round. Who hears a number again gives the answer again and does
nothing, so that a message that comes twice counts once.
"""

from __future__ import annotations

from ..actors import Message, Reply
from ..spec import PageList

Faults = tuple[tuple[str, str], ...]
"""What was found: the law that is broken (as in `runtime/checking.py`), and by what."""


class BeginTree(Message[int], frozen=True):
    """Begin a round in this operation; answered by the highest id that a node has."""

    round: int


class ScanTree(Message["ScannedTree"], frozen=True):
    """Show the next nodes: as many, or fewer where they hold so many tokens."""

    number: int
    nodes: int
    tokens: int


class ScannedTree(Reply, frozen=True):
    """Nodes in the order of their ids, with their ranges; `over` where these were the last."""

    ids: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    over: bool
    faults: Faults


class BeginRecords(Message[tuple[PageList, PageList]], frozen=True):
    """Begin a round in this operation; answered by the pages of L1 and L2 that wait for copies only.

    `last` is the highest id that a node has.
    """

    round: int
    last: int


class ScanRecords(Message["ScannedRecords"], frozen=True):
    """Show the records of these nodes, which come in the order of their ids."""

    number: int
    ids: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]


class LockedNode(Reply, frozen=True):
    """A node that is locked, and the way up from it."""

    id: int
    lock: int
    parent: int
    start: int


class ScannedRecords(Reply, frozen=True):
    """What a component holds of some nodes: pages per tier, and for each node a byte, 1 for L1 and 2 for L2.

    `transfers` are those that now read or write one of them.
    """

    l1: PageList
    l2: PageList
    held: bytes
    locked: tuple[LockedNode, ...]
    transfers: frozenset[int]
    faults: Faults


class EndRecords(Message[Faults], frozen=True):
    """Compare the sums with what was counted: all nodes have been shown. The round is over."""

    number: int
