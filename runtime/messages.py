"""What the cache actor and the controller hear and answer.

Tokens are packed little-endian uint32, page lists packed little-endian int32; positions are tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..actors import Message, Reply, Trace
from ..spec import Tier
from ..tiers.messages import Move
from ..tiers.store.messages import StoreItem
from ..tiers.store.protocol import MissReason

if TYPE_CHECKING:
    from .coordinator.inspection import Inspection  # noqa: F401 - named as an answer's type, in quotes
    from .coordinator.planning import Verdict  # noqa: F401 - as above
    from .coordinator.stats import CacheStats  # noqa: F401 - as above


# -- from an engine ---------------------------------------------------------------------------------


class HitTokens(Reply, frozen=True):
    """Reused tokens by the tier that held them when the request came.

    `l1` counts also what others have published while the request waited, `l3` what was fetched for it.
    """

    l1: int = 0
    l2: int = 0
    l3: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.l1 + self.l2 + self.l3


class Acquired(Reply, frozen=True):
    """A lease. `length` tokens need no recompute, of which L1, L2 and L3 had `hit`.

    `full` is how far the base component agreed with the tokens. The pages and slots stand in the
    lease's record.
    """

    lease: int
    length: int
    full: int
    hit: HitTokens


class Acquire(Message[Acquired], frozen=True):
    """Lease the longest reusable prefix of `tokens`, bringing it to L1 first where it is lower.

    With `wait` false the answer is what is on L1 now.
    """

    namespace: bytes
    tokens: bytes
    priority: int = 0
    wait: bool = True
    stream: int = 0


class AcquireBatch(Message[tuple[Acquired, ...]], frozen=True):
    """Lease for each request what L1 has now; none of them may `wait`.

    `traces` are those of the requests, None where one is not sampled.
    """

    requests: tuple[Acquire, ...]
    traces: tuple[Trace | None, ...]


class Extended(Reply, frozen=True):
    """How far there are pages now; `slots` are the components that got a working slot with them."""

    extent: int
    slots: tuple[str, ...] = ()


class Extend(Message[Extended], frozen=True):
    """Give a lease private pages for `count` more tokens.

    Says that all tokens so far are computed, so that windows move. Waits for room up to
    `patience` seconds (negative: the configured time).
    """

    lease: int
    count: int
    patience: float = -1.0
    fence: int = 0


class Snapshot(Message[int], frozen=True):
    """Keep the working state of a component as the state at `at`, the extent.

    The answer is the slot, or -1 where there is none. A state kept for that position before gives way to it.
    """

    lease: int
    component: str
    at: int
    stream: int = 0


class Trim(Message[int], frozen=True):
    """Give back the last `count` tokens of a lease's private room; the answer is the extent."""

    lease: int
    count: int
    fence: int = 0


class Published(Reply, frozen=True):
    """How far the tree has taken over."""

    length: int


class Publish(Message[Published], frozen=True):
    """Hand computed pages up to token `upto` over to the tree.

    `appended` are newly known tokens, from position `at` on: who asks again tells them again.
    """

    lease: int
    upto: int
    appended: bytes = b""
    at: int = 0
    fence: int = 0


class Release(Message[bool], frozen=True):
    """Give back all that a lease holds; the answer is False where it was released before."""

    withdrawable = False
    lease: int
    fence: int = 0


class Peeked(Reply, frozen=True):
    """`length` from L1 and L2, `device` from L1 at once, `full` how far the base component agrees."""

    length: int
    device: int
    full: int


class Peek(Message[Peeked], frozen=True):
    """Ask how much of a prompt could be reused; changes nothing, not even recency."""

    namespace: bytes
    tokens: bytes


class Explain(Message["tuple[Verdict, ...]"], frozen=True):
    """Ask, per component, how deep it would go and what stops it."""

    namespace: bytes
    tokens: bytes


class EvictReport(Reply, frozen=True):
    """Pages freed at once, pages that follow when a copy ends, nodes that lost payload."""

    freed: int
    pending: int
    nodes: int
    why: str


class EvictPages(Message[EvictReport], frozen=True):
    """Evict unlocked payload of a component on a tier."""

    component: str
    pages: int
    tier: Tier = Tier.L1


class Settle(Message[None], frozen=True):
    """Ask to hear when no copy and no store call is in flight or due."""


class Stats(Message["CacheStats"], frozen=True):
    """Ask for `CacheStats`."""


class Inspect(Message["Inspection"], frozen=True):
    """Ask for an `Inspection` of all bookkeeping, for `check()` and dumps."""


# -- between the cache and its controller -------------------------------------------------------------


class Copy(Message[None], frozen=True):
    """Copy pages between L1 and L2 in one batch; the cache hears `Copied`."""

    op: int
    source: Tier
    target: Tier
    moves: tuple[Move, ...]
    fence: int = 0


class Copied(Message[None], frozen=True):
    """Copy `op` is over."""

    op: int
    ok: bool
    error: str = ""


class Find(Message[None], frozen=True):
    """Look in the store for chunks of a prefix beyond what the tiers above hold.

    `full` are the tokens that FULL covers on L2, `reuse` those that all components together cover on
    the tiers above.
    """

    op: int
    namespace: bytes
    tokens: bytes
    full: int
    reuse: int


class Found(Message[None], frozen=True):
    """The store can lift reuse to `endpoint` (0: it cannot) by these objects; their pages are empty.

    `full` is how far FULL reaches with what the store has. `failed` says why the store did not say
    what it has, or not to the end.
    """

    op: int
    endpoint: int
    full: int
    items: tuple[StoreItem, ...] = ()
    failed: MissReason | None = None


class Fetch(Message[None], frozen=True):
    """Read objects into the L2 pages that their items name; the cache hears `Fetched`."""

    op: int
    items: tuple[StoreItem, ...]


class Fetched(Message[None], frozen=True):
    """Which items of a fetch hold verified bytes now."""

    op: int
    good: tuple[bool, ...]


class Save(Message[None], frozen=True):
    """Write objects of one node to the store: hash `tokens` from `base` on, then put what is missing.

    The items' chains are empty; the controller fills them in. The cache hears `Saved`.
    """

    op: int
    namespace: bytes
    base: int
    chain: bytes
    tokens: bytes
    items: tuple[StoreItem, ...]


class Saved(Message[None], frozen=True):
    """Save `op` is over; the chain hash at token `at` is `chain` (empty where nothing was hashed).

    `stored` bytes were written. `lost` says why something else was not; None where the store has all.
    """

    op: int
    at: int
    chain: bytes
    stored: int
    lost: MissReason | None


class Cooled(Message[None], frozen=True):
    """The device has passed a fence while somebody waited for room."""

    fence: int


class RoomTimeout(Message[None], frozen=True):
    """The patience of a waiting request is over."""


class Background(Message[None], frozen=True):
    """Start what waits for a free hand: backups to L2 and saves to L3."""


# -- audits -----------------------------------------------------------------------------------------


class Finding(Reply, frozen=True):
    """Something that does not hold: the path of the actor concerned, the law, and what breaks it."""

    actor: str
    law: str
    what: str


class Audit(Message[tuple[Finding, ...]], frozen=True):
    """Do the next slice of an audit; answered by what it has found."""


class Working(Message[frozenset[int]], frozen=True):
    """Ask the controller for the transfers on which somebody works."""
