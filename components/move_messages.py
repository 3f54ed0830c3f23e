"""What component actors hear and reply of payload that leaves its node or moves between tiers."""

from __future__ import annotations

from typing import NamedTuple

from ..actors import Message, Reply
from ..spec import PageList, Tier
from .messages import NodePages


class Pending(NamedTuple):
    """Pages that are free when an operation is over."""

    op: int
    pages: PageList


class Late(NamedTuple):
    """Pages of a tier that nobody reads any more."""

    tier: Tier
    pages: PageList


class Freed(Reply, frozen=True):
    """Pages that left nodes: `free` at once, `pending` when their operation is over.

    `pages` left in all: these, and those that stay here until several operations are over. `nodes`
    lost the payload; `gone` are those of them that hold none on any tier now, `lost` of the pages were
    theirs, and `unusable` are those of the gone whose own boundary needed it (told by an Evict of a
    paged auxiliary). `late` are pages that several operations had read, of which the last is over now.
    """

    free: PageList = b""
    pending: tuple[Pending, ...] = ()
    nodes: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    pages: int = 0
    lost: int = 0
    unusable: tuple[int, ...] = ()
    late: tuple[Late, ...] = ()


class Evict(Message[Freed], frozen=True):
    """Choose and drop payload on `tier` until `pages` pages are free or pending, least valuable first.

    Nodes in `pinned` are spared. A payload that an operation reads goes only when no idle one is
    left; its pages are then pending. The base component forgets the nodes that it holds nowhere now.
    With `all_or_none` nothing is dropped where fewer than `pages` may go, as `Unlocked` counts them.
    """

    tier: Tier
    pages: int
    pinned: frozenset[int] = frozenset()
    all_or_none: bool = False


class Unlocked(Message[int], frozen=True):
    """Ask how many pages on `tier` no lease locks and no node in `pinned` holds.

    So many an eviction may take: now, or when the arrivals among them are over.
    """

    tier: Tier
    pinned: frozenset[int] = frozenset()


class EvictLeaves(Message[Freed], frozen=True):
    """Base component only: drop those of `nodes` that are unlocked leaves on `tier`.

    It forgets those that it holds nowhere now.
    """

    nodes: tuple[int, ...]
    tier: Tier


class Drop(Message[Freed], frozen=True):
    """Drop unlocked payload of `nodes` on `tier`, then forget the nodes in `gone`.

    Nodes in `gone` leave the tree: nothing of them may be locked, or held elsewhere.
    """

    nodes: tuple[int, ...]
    tier: Tier
    gone: tuple[int, ...] = ()


class Dead(Message[tuple[int, ...]], frozen=True):
    """Base component only: which of `nodes` nobody locks and hold nothing on any tier."""

    nodes: tuple[int, ...]


class Unbacked(Message[tuple[NodePages, ...]], frozen=True):
    """Ask which of `nodes` are present on L1 and not held on L2, as ((node, pages), ...) in order.

    Nodes that are no longer there are left out.
    """

    nodes: tuple[int, ...]


class BackupNeeds(Reply, frozen=True):
    """What L2 needs so that it holds a node and all above it.

    `unbacked` are those that L2 lacks and L1 has, top first. `hole` is the node that
    neither has, so that L2 cannot hold what is below it; None where there is none.
    """

    unbacked: tuple[NodePages, ...]
    hole: int | None

    @property
    def nothing(self) -> bool:
        """Whether L2 holds the node and all above it already."""
        return not self.unbacked and self.hole is None


class BackupPath(Message[BackupNeeds], frozen=True):
    """Ask what a backup of `node` and of all above it must copy; what is arriving on L2 counts as there."""

    node: int


class Arrive(Message[PageList], frozen=True):
    """Operation `op` starts to fill `nodes` on `tier` with `pages` from what the other tier holds.

    The payloads become arriving; their sources carry the operation's mark until `Moved`. Answered by
    the source pages, in order.
    """

    op: int
    nodes: tuple[int, ...]
    tier: Tier
    pages: PageList


class Slice(Reply, frozen=True):
    """Pages of tokens [start, end) in order; empty where not even the last page is present."""

    start: int
    pages: PageList


class Read(Message[Slice], frozen=True):
    """Operation `op` reads tokens [start, end) of the path that ends in `node`, on L2.

    Marks the payloads until `Moved` ; reads the longest present tail of the range.
    """

    op: int
    node: int
    start: int
    end: int


class Moved(Message[Freed], frozen=True):
    """Operation `op` is over: arrivals are present (`ok`) or withdrawn; marks are gone.

    The `nodes` of the reply are those whose arrival ended, either way.
    """

    op: int
    ok: bool
