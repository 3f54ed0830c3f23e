"""What the tier actors hear and answer.

Page lists are packed little-endian int32 `bytes`, four bytes a page id. `component` is the name that
the model's specification gives. An *operation* id (`op`, from 1) names one transfer between tiers.
"""

from __future__ import annotations

from ..actors import Message, Reply
from ..spec import PageList


class Allocated(Reply, frozen=True):
    """The pages of an `Allocate`, in its order; the asker owns them now."""

    pages: tuple[PageList, ...]


class Short(Reply, frozen=True):
    """Nothing was given: `lacking` is (component, needed, free, coming) for each pool that is short.

    `coming` pages are in quarantine: free by themselves before long.
    """

    lacking: tuple[tuple[str, int, int, int], ...]


class Allocate(Message[Allocated | Short], frozen=True):
    """Ask for pages of several pools at once: all of them or none. `want` is (component, pages).

    Before that, `back` and `fence` are taken as in a `Free`, whatever the answer is then.
    """

    want: tuple[tuple[str, int], ...]
    back: tuple[tuple[str, PageList, int], ...] = ()
    fence: int = 0


class Free(Message[None], frozen=True):
    """Give pages back: `items` is (component, pages, op).

    With `op` > 0 the pages are read or written by that operation and stay in quarantine until its
    `Over`; with 0 they are free at once. `fence` > 0 names a device event (see `copy.py`): no new
    owner gets the pages before it has passed.
    """

    items: tuple[tuple[str, PageList, int], ...]
    fence: int = 0


class Restore(Message[None], frozen=True):
    """Give pages of a tier that has given none out to owners that had them before: (component, pages).

    All others are free when the device has passed `fence`.
    """

    items: tuple[tuple[str, PageList], ...]
    fence: int = 0


class Over(Message[tuple[tuple[str, int], ...]], frozen=True):
    """Operation `op` no longer touches any page: free what its quarantine holds on this tier.

    Answered with the number of pages freed, as ((component, pages), ...).
    """

    op: int


class CopyState(Message[int], frozen=True):
    """Copy whole pages within one L1 pool, `source[i]` to `target[i]`, in the order of `stream`.

    `stream` is an opaque stream handle (0 = the device's current stream); on a device the copy is
    enqueued and the step does not wait, so that later work on that stream sees the copy. Answered with
    the fence behind it.
    """

    component: str
    source: PageList
    target: PageList
    stream: int = 0


class Cloned(Reply, frozen=True):
    """The slot of a `Clone`, which the asker owns now, and the fence behind the copy."""

    slot: PageList
    fence: int


class Clone(Message[Cloned | Short], frozen=True):
    """Take one slot of an L1 pool and copy the state in slot `source` to it, in the order of `stream`.

    `Short` changes nothing. `stream` is as in `CopyState`.
    """

    component: str
    source: PageList
    stream: int = 0


class PoolUsage(Reply, frozen=True):
    """One pool: pages in all, free now, and in quarantine; the rest has an owner."""

    component: str
    capacity: int
    free: int
    quarantined: int
    page_bytes: int


class Usage(Message[tuple[PoolUsage, ...]], frozen=True):
    """Ask for `tuple[PoolUsage, ...]`, one a pool, in the model's order."""


class FreePages(Message[tuple[PageList, PageList]], frozen=True):
    """Ask for (free, quarantined) page lists of one pool: for `check()`, never on a hot path."""

    component: str


class Move(Reply, frozen=True):
    """One part of a transfer: pages of `component` from one tier's pool to the other's, pairwise."""

    component: str
    source: PageList
    target: PageList
