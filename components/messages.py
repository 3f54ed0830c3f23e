"""What the tree and the component actors hear and reply; evictions and moves are in `move_messages`.

Positions and lengths are tokens, always; page lists are packed little-endian int32 `bytes`. A node
is named by its id; id 0 is the root of whatever namespace is meant. A *path* lists node ids from the
root's child downwards, `ends` the position where each of them ends.
"""

from __future__ import annotations

from typing import NamedTuple

from ..actors import Message, Reply
from ..spec import PageList, Tier

ROOT = 0


# -- the tree -----------------------------------------------------------------------------------------


class Walked(Reply, frozen=True):
    """Nodes below `start` that agree with the key; `partial`: the last one agrees only up to its `ends`."""

    path: tuple[int, ...]
    ends: tuple[int, ...]
    partial: bool


class Walk(Message[Walked], frozen=True):
    """Follow `key` (packed tokens, whole pages, from the end of `start` on) below it; read-only.

    `size` says how many bytes of the key count, whole pages of it: all where it is None.
    """

    namespace: bytes
    key: bytes
    start: int = ROOT
    size: int | None = None


class WalkMany(Message[tuple[Walked, ...]], frozen=True):
    """Do all of these; the replies come in their order."""

    walks: tuple[Walk, ...]


class Grown(Reply, frozen=True):
    """New nodes, top first, each the parent of the next."""

    path: tuple[int, ...]
    ends: tuple[int, ...]


class Insert(Message[Grown | Walked], frozen=True):
    """Add a chain below `parent` for `key` (from the parent's end on), cut at `cuts` (positions, rising).

    Where a node agrees with the key's first page already, nothing is added, and the reply is the
    Walked that a Walk would get.
    """

    namespace: bytes
    key: bytes
    parent: int
    cuts: tuple[int, ...] = ()


class Split(Message[int], frozen=True):
    """Split `node` at position `at`: a new upper node takes its head, `node` keeps the tail and the id."""

    node: int
    at: int


class SplitDone(Message[None], frozen=True):
    """Told to every component after the tree split `node`: `upper` ends and `node` starts at `at`."""

    node: int
    upper: int
    at: int


class Remove(Message[None], frozen=True):
    """Remove childless nodes, in an order in which each is childless when its turn comes."""

    nodes: tuple[int, ...]


class Subtree(Message[tuple[int, ...]], frozen=True):
    """Ask for every node below `node`, parents before children (without `node`)."""

    node: int


class ChunkSharers(Message[tuple[int, ...]], frozen=True):
    """Ask which nodes below `nodes` have tokens of the chunk in which one of those ends.

    Chunks are `chunk` tokens long; nodes that are no longer there are left out.
    """

    nodes: tuple[int, ...]
    chunk: int


class Ancestry(Message[Walked], frozen=True):
    """Ask for the Walked of the path from the root to `node`, `node` included."""

    node: int


class Spanned(Reply, frozen=True):
    """`tokens` from position `base` to the node's end; `chain` is the chain hash at `base` (or the seed)."""

    namespace: bytes
    base: int
    chain: bytes
    tokens: bytes
    end: int


class Span(Message[Spanned | None], frozen=True):
    """Ask for the tokens behind the last ancestor (or self) whose chain is known, for hashing."""

    node: int


class Chained(Message[None], frozen=True):
    """Remember that the chunk chain at position `at` (within `node`'s range, or its end) is `chain`."""

    node: int
    at: int
    chain: bytes


class Count(Message[int], frozen=True):
    """Ask for the number of nodes, roots apart."""


# -- a component ----------------------------------------------------------------------------------------


class Reached(Reply, frozen=True):
    """`boundary` (0 if none); `resident`: its whole coverage is present on L1.

    `hole` is the node without which it would be deeper, None where nothing is missing.
    """

    boundary: int
    resident: bool
    hole: int | None


class Reach(Message[Reached], frozen=True):
    """Ask for the deepest good boundary at or below `limit` on this path.

    `host` false: only payload present on L1 counts. True: payload on L2, and what is arriving on L1,
    counts as well.
    """

    path: tuple[int, ...]
    ends: tuple[int, ...]
    limit: int
    partial: bool
    host: bool


class NodePages(NamedTuple):
    """A node, and how many pages its payload has or would have."""

    node: int
    pages: int


class Receipt(Reply, frozen=True):
    """What one range of a lock keeps: the node up from which it goes, and where its lowest node starts."""

    anchor: int
    start: int


class Locked(Reply, frozen=True):
    """Receipts, one a range (none where nothing was counted), and the page table of the coverage.

    `start` is the position of the first page in `pages`; pages that no range needs are -1. `pages` is
    empty while some payload of the coverage is not present on L1: `missing` are
    those that are absent, `joins` are the operations that bring what is arriving. `low_end` is where the
    lowest locked node ends: a window that has passed it may let it go.
    """

    receipts: tuple[Receipt, ...]
    low_end: int
    start: int
    pages: PageList
    missing: tuple[NodePages, ...] = ()
    joins: tuple[int, ...] = ()


class Claimed(Reply, frozen=True):
    """`boundary` as in Reached; `lock` is None for 0 and for one inside an edge."""

    boundary: int
    lock: Locked | None = None


class Claim(Message[Claimed], frozen=True):
    """Find the deepest good boundary as Reach does, and lock it where it is the end of a node.

    The path has at least one node. Noted as used at `now`. One message a component: whoever finds
    afterwards that the components disagree takes the locks back; the use stays noted. A snapshot that
    is present on L1 comes without receipts, to be copied at once; who must wait first locks it
    by Lock.
    """

    path: tuple[int, ...]
    ends: tuple[int, ...]
    limit: int
    partial: bool
    host: bool
    now: int = 0
    priority: int = 0


class Lock(Message[Locked], frozen=True):
    """Lock the coverage of the boundary at the end of `node`.

    A snapshot component must hold a state there, on whichever tier.
    Noted as used at `now`; 0: this is no new use, a Claim has noted it.
    """

    node: int
    now: int = 0
    priority: int = 0


class ClaimMany(Message[tuple[Claimed, ...]], frozen=True):
    """Make all of these claims, in order; the replies come in theirs."""

    claims: tuple[Claim, ...]


class Table(Message[Locked], frozen=True):
    """Ask again for the `Locked` of a lock that is held, now that its missing payload has arrived."""

    node: int
    receipts: tuple[Receipt, ...]


class Unlock(Message[None], frozen=True):
    """Take back every count that these receipts explain. Single use."""

    receipts: tuple[Receipt, ...]


class Recede(Message[Locked], frozen=True):
    """Let go of locked nodes that end at or before `start`; the reply has no pages."""

    receipts: tuple[Receipt, ...]
    start: int


class Lacks(Message[bool], frozen=True):
    """Ask whether `node` holds no payload on `tier`."""

    node: int
    tier: Tier


class Arriving(Message[int], frozen=True):
    """Ask for the index in `path` of the first node with an L1 arrival; len(path) where none."""

    path: tuple[int, ...]


# -- publishing to a component --------------------------------------------------------------------------


class Relocked(Reply, frozen=True):
    """What the locks are now, as in Locked, but that `low_end` may be too low: 0 where it is not known."""

    receipts: tuple[Receipt, ...]
    low_end: int


class Grow(Message[Relocked], frozen=True):
    """Give new nodes, at least one, each the parent of the next, their pages of a paged component.

    Own pages start at token `own`, where a node begins, and end with the last node; nodes before that
    stay tombstones. With `relock`, which is for L1, locks move from `held` to the coverage of the last
    node's end.
    """

    tier: Tier
    parent: int
    path: tuple[int, ...]
    ends: tuple[int, ...]
    own: int
    pages: PageList
    held: tuple[Receipt, ...]
    relock: bool
    now: int
    priority: int = 0


class Relock(Message[Relocked], frozen=True):
    """Move locks from `held` to the coverage of the end of `node`, by difference."""

    node: int
    held: tuple[Receipt, ...]


class Patch(NamedTuple):
    """Pages of a node that stand in place of a request's own, from a position on."""

    start: int
    pages: PageList


class Adopted(Reply, frozen=True):
    """`free`: own pages that the nodes had already; `patches`: the nodes' pages instead.

    `attached` are the nodes that gained payload.
    """

    free: PageList
    patches: tuple[Patch, ...]
    attached: tuple[int, ...]


class Adopt(Message[Adopted], frozen=True):
    """Hand pages of a paged component to nodes that are there already, on one tier.

    Own pages start at token `own` and end with the last node; nodes before that are only noted as
    used.
    """

    tier: Tier
    path: tuple[int, ...]
    ends: tuple[int, ...]
    own: int
    pages: PageList
    now: int
    priority: int = 0


class State(Reply, frozen=True):
    """A state for the end of `node`, which begins at `start` and ends at `end`: its slot."""

    node: int
    start: int
    end: int
    slot: PageList


class Keep(Message[Adopted], frozen=True):
    """Hand states of a snapshot component to nodes, on one tier."""

    tier: Tier
    states: tuple[State, ...]
    now: int
    priority: int = 0
