"""What the cache actor keeps for one live lease."""

from __future__ import annotations

import msgspec

from ...components.messages import ROOT, Locked, Receipt
from ...spec import PAGE_ID_BYTES, TOKEN_BYTES
from .cache_actors import ComponentRef


class Share(msgspec.Struct, eq=False):
    """A lease's share of one component: locks on the tree, and pages or slots of its own.

    Private pages cover tokens from `own_start` (a page boundary) to the lease's extent. `slot` is
    the working state of a snapshot component, `kept` its unpublished snapshots as (position, slot);
    `pages` is the page table of the locked coverage until the lease is answered.
    """

    part: ComponentRef
    receipts: tuple[Receipt, ...] = ()
    low_end: int = 0
    start: int = 0
    own_start: int = 0
    own: bytearray = bytearray()
    slot: bytes = b""
    pages: bytes = b""
    kept: list[tuple[int, bytes]] = []

    def hold(self, locked: Locked, end: int) -> None:
        """Note what the component has locked for a lease up to a boundary, and the page table of it."""
        self.receipts = locked.receipts
        self.low_end = locked.low_end
        self.start = locked.start
        self.own_start = end
        self.pages = locked.pages

    def take_own(self, upto: int, page: int) -> bytes:
        """Take the private pages before a page boundary out: for the tree, or to be freed."""
        size = (upto - self.own_start) // page * PAGE_ID_BYTES
        if size <= 0:
            return b""
        pages = bytes(self.own[:size])
        del self.own[:size]
        self.own_start = upto
        return pages


class LeaseRecord(msgspec.Struct, eq=False):
    """One request: tokens known, the node it is anchored at, and its share of each component.

    `published` is the anchor's end: tokens that the tree owns. `computed` is how far the engine is
    known to have come, `passed` what windows have moved with, `extent` how far there are pages, `full`
    how far the base component alone would go. The lease is the record from which the locks of every
    component can be explained.
    """

    id: int
    namespace: bytes
    prompt: bytes
    priority: int
    shares: tuple[Share, ...]
    anchor: int = ROOT
    published: int = 0
    computed: int = 0
    passed: int = 0
    extent: int = 0
    full: int = 0
    generated: bytearray = bytearray()

    @property
    def known(self) -> int:
        """Count the tokens whose ids are known."""
        return (len(self.prompt) + len(self.generated)) // TOKEN_BYTES

    @property
    def holds(self) -> bool:
        """Whether a release would give anything back."""
        return any(share.receipts or share.own or share.slot for share in self.shares)

    def forget(self, position: int) -> None:
        """Forget the ids of generated tokens from a position on; the prompt stays known."""
        del self.generated[max(0, position * TOKEN_BYTES - len(self.prompt)) :]

    def key(self, start: int, end: int) -> bytes:
        """Return the packed tokens [start, end)."""
        prompt = len(self.prompt)
        low, high = start * TOKEN_BYTES, end * TOKEN_BYTES
        if high <= prompt:
            return self.prompt[low:high]
        if low >= prompt:
            return bytes(self.generated[low - prompt : high - prompt])
        return self.prompt[low:] + bytes(self.generated[: high - prompt])
