"""What is kept of one live lease: the record that the cache actor and the face share.

All else that a cache knows can be made anew from the records of its live leases (`recovery.py`). So an
operation changes a record only when nothing of it can fail any more: after its last ask, and in one
go. A crash before that leaves the lease as it was.
"""

from __future__ import annotations

import msgspec

from ...components.messages import ROOT, Locked, Receipt
from ...spec import TOKEN_BYTES
from ..pagetable import GrowingTable
from .cache_actors import ComponentRef


class Share(msgspec.Struct, eq=False):
    """A lease's share of one component: its page table, or its slots, and its locks on the tree.

    `table` holds the pages of all tokens from its start on that the request may read or write; those
    from `own_start` (a page boundary) on are private. `slot` is the working state of a snapshot
    component, `found` the state in the tree that is still to be copied there, `kept` its unpublished
    snapshots as (position, slot). `receipts` and `low_end` say what is locked: of shared pages there
    may be some that nothing locks, before the lease is answered.
    """

    part: ComponentRef
    receipts: tuple[Receipt, ...] = ()
    low_end: int = 0
    own_start: int = 0
    table: GrowingTable = msgspec.field(default_factory=GrowingTable)
    slot: bytes = b""
    found: bytes = b""
    kept: list[tuple[int, bytes]] = []

    def hold(self, locked: Locked, end: int) -> None:
        """Note what the component has locked for a lease up to a boundary, and the pages of it."""
        self.receipts = locked.receipts
        self.low_end = locked.low_end
        self.own_start = end
        self.show(locked)

    def show(self, locked: Locked) -> None:
        """Note the pages, or the state, of what is locked, as far as they are there."""
        if self.part.snapshot:
            self.found = locked.pages
        else:
            self.table.begin(locked.start, locked.pages)

    def own(self, upto: int) -> bytes:
        """Return the private pages before a page boundary."""
        return self.table.between(self.own_start, upto, self.part.rule.page_size)

    def private(self) -> bytes:
        """Return all private pages."""
        return self.table.tail(self.own_start, self.part.rule.page_size)


class LeaseRecord(msgspec.Struct, eq=False):
    """One request: tokens known, the node it is anchored at, and its share of each component.

    `published` is the anchor's end: tokens that the tree owns. `computed` is how far the engine is
    known to have come, `passed` what windows have moved with, `extent` how far there are pages, `full`
    how far the base component alone would go. The lease is the record from which the locks of every
    component can be explained. `claimed` says that its asker has it.
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
    claimed: bool = False

    @property
    def known(self) -> int:
        """Count the tokens whose ids are known."""
        return (len(self.prompt) + len(self.generated)) // TOKEN_BYTES

    @property
    def holds(self) -> bool:
        """Whether a release would give anything back."""
        return self.extent > self.published or any(
            share.receipts or share.slot for share in self.shares
        )

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
