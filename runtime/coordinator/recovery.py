"""Recovery: after a crash, make everything anew from the records of the live leases.

    records   lease 1   A B C | d         shared pages A B C, private d
              lease 2   A B | e f
    tree      |-- A B --|-- C --|         each shared page once, whoever holds it
    locks     2         1
    L1        A B C d e f owned, all else free

A cache may always forget, never lie. Which actor crashed, and how far it had come, is not asked: none of
what the actors of a cache share is trusted, but for the records, which an operation changes in one go
at its end. So prefixes that no live lease holds are forgotten, and all of L2; L3 serves on by its keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np

from ...components import messages as c
from ...errors import IntegrityError
from ...spec import PAGE_ID_BYTES, TOKEN_BYTES, Tier
from ...tiers import messages as t
from .cache_actors import CacheActors
from .lease_book import LiveLeases
from .leases import LeaseRecord, Share
from .splitting import Splitter

_L1 = Tier.L1
_IDS = np.dtype("<i4")


class Recoveries(msgspec.Struct, eq=False):
    """What a cache has been through: crashes by the actor that crashed, and tokens forgotten by tier.

    `held` is what FULL had on L1 and L2, in pages, when the last life of it ended.
    """

    crashes: Counter[str] = msgspec.field(default_factory=Counter[str])
    forgotten: Counter[str] = msgspec.field(default_factory=Counter[str])
    held: tuple[int, int] = (0, 0)


class Recovery:
    """Recover for the cache actor; used as the first operation of a life."""

    def __init__(
        self, actors: CacheActors, splitter: Splitter, leases: LiveLeases, recoveries: Recoveries
    ) -> None:
        self._actors = actors
        self._splitter = splitter
        self._leases = leases
        self._recoveries = recoveries
        self.restored: list[int] = []
        """The nodes that were made anew."""

    async def recover(self, crashed: str, fence: int) -> tuple[int, int]:
        """Make tree, components and tiers anew; return the tokens forgotten on L1 and L2.

        `crashed` is the path of the actor that crashed first. Pages that nobody holds are given out
        again when the device has passed `fence`. Raises IntegrityError where two records claim one
        page.
        """
        self._drop_unclaimed()
        records = sorted(self._leases.values(), key=lambda record: record.id)
        await self._actors.l1.ask(t.Restore(self._owned(records), fence))
        kept = 0
        for record in records:
            kept += await self._restore(record)
        l1, l2 = self._recoveries.held
        page = self._actors.page
        forgotten = (max(0, l1 - kept) * page, l2 * page)
        self._recoveries.crashes[crashed] += 1
        for tier, tokens in zip(("l1", "l2"), forgotten, strict=True):
            self._recoveries.forgotten[tier] += tokens
        return forgotten

    def _drop_unclaimed(self) -> None:
        """Drop what nobody has: leases whose acquire did not come to its end."""
        for id in [id for id, record in self._leases.items() if not record.claimed]:
            del self._leases[id]

    def _owned(self, records: list[LeaseRecord]) -> tuple[tuple[str, bytes], ...]:
        """Return the pages and slots that leases hold, each once, by component."""
        owned: list[tuple[str, bytes]] = []
        for part in self._actors.components:
            shared: list[bytes] = []
            private: list[bytes] = []
            for record in records:
                share = record.shares[part.index]
                if part.snapshot:
                    private += [share.slot, *(slot for _, slot in share.kept)]
                else:
                    shared += [
                        share.table.between(*run, self._actors.page) for run in _runs(record, share)
                    ]
                    private.append(share.table.tail(_own_start(record, share), self._actors.page))
            owned.append((part.name, _each_once(part.name, b"".join(shared), b"".join(private))))
        return tuple(owned)

    async def _restore(self, record: LeaseRecord) -> int:
        """Hang what a lease shares into the tree, and lock it; return the pages of FULL that are new."""
        new = 0
        record.anchor = c.ROOT
        for share in record.shares:
            share.receipts, share.low_end, share.found = (), 0, b""
            share.own_start = _own_start(record, share)
        if record.published:
            known, grown = await self._path(record)
            path, ends = (*known.path, *grown.path), (*known.ends, *grown.ends)
            self.restored += grown.path
            for part in self._actors.paged:
                share = record.shares[part.index]
                if grown.path:
                    new += await self._grow(record, share, known, grown)
                for run in _runs(record, share):
                    await self._adopt(record, share, path, ends, run)
                await self._lock(record, share, path[-1])
            record.anchor = path[-1]
        return new

    async def _path(self, record: LeaseRecord) -> tuple[c.Grown, c.Grown]:
        """Return the nodes of a lease's published tokens: those that others have brought, and new ones."""
        tree, upto = self._actors.tree, record.published
        cuts = sorted(
            {
                at
                for share in record.shares
                for run in _runs(record, share)
                for at in run
                if 0 < at < upto
            }
        )
        key = record.key(0, upto)
        grown = await tree.ask(c.Insert(record.namespace, key, c.ROOT, tuple(cuts)))
        known = c.Grown((), ())
        if isinstance(grown, c.Walked):
            known = await self._splitter.cut(grown, (), tuple(cuts))
            grown, end = c.Grown((), ()), known.ends[-1]
            if end < upto:
                rest = key[end * TOKEN_BYTES :]
                beyond = tuple(cut for cut in cuts if cut > end)
                grown = await tree.ask(c.Insert(record.namespace, rest, known.path[-1], beyond))
        if isinstance(grown, c.Walked):
            raise IntegrityError("a node agrees with tokens with which the walk did not agree")
        return known, grown

    async def _grow(self, record: LeaseRecord, share: Share, known: c.Grown, grown: c.Grown) -> int:
        """Give new nodes to a component: FULL with its pages, the others without."""
        start, end = known.ends[-1] if known.ends else 0, grown.ends[-1]
        parent = known.path[-1] if known.path else c.ROOT
        own, pages = (
            (start, share.table.between(start, end, self._actors.page))
            if share.part.base
            else (end, b"")
        )
        await share.part.ref.ask(
            c.Grow(
                _L1,
                parent,
                grown.path,
                grown.ends,
                own,
                pages,
                (),
                relock=False,
                now=self._actors.tick(),
                priority=record.priority,
            )
        )
        return len(pages) // PAGE_ID_BYTES

    async def _adopt(
        self,
        record: LeaseRecord,
        share: Share,
        path: tuple[int, ...],
        ends: tuple[int, ...],
        run: tuple[int, int],
    ) -> None:
        """Hand the shared pages of a run to the nodes of a path; others may have done it already."""
        start, end = run
        last = ends.index(end) + 1
        pages = share.table.between(start, end, self._actors.page)
        now = self._actors.now
        adopted = await share.part.ref.ask(
            c.Adopt(_L1, path[:last], ends[:last], start, pages, now, record.priority)
        )
        if adopted.free != b"".join(patch.pages for patch in adopted.patches):
            raise IntegrityError(
                f"{share.part.name}: two live leases have other pages for the same tokens"
            )

    @staticmethod
    async def _lock(record: LeaseRecord, share: Share, anchor: int) -> None:
        """Lock what a lease's published tokens need, but for what its window has passed."""
        if share.table.start >= record.published and not share.part.base:
            return
        ref, start = share.part.ref, share.table.start
        held: c.Locked = await ref.ask(c.Lock(anchor))
        if start:
            held = await ref.ask(c.Recede(held.receipts, start))
        share.receipts, share.low_end = held.receipts, held.low_end


def _each_once(component: str, shared: bytes, private: bytes) -> bytes:
    """Join pages that any number of leases share and pages that one has for itself: each once, sorted.

    By marks, not by sorting or hashing: a thousand long leases name millions. Raises IntegrityError.
    """
    common, mine = np.frombuffer(shared, _IDS), np.frombuffer(private, _IDS)
    marks = np.zeros(max(common.max(initial=-1), mine.max(initial=-1)) + 1, dtype=bool)
    if min(common.min(initial=0), mine.min(initial=0)) < 0:
        raise IntegrityError(f"{component}: a live lease names a page that cannot be")
    marks[common] = True
    once = np.count_nonzero(marks)
    marks[mine] = True
    ids = np.flatnonzero(marks)
    if len(ids) < once + len(mine):
        raise IntegrityError(f"{component}: two live leases claim the same private page")
    return ids.astype(_IDS).tobytes()


def _own_start(record: LeaseRecord, share: Share) -> int:
    """Return where private pages begin: behind what is published, and what a window has passed."""
    return max(record.published, share.table.start)


def _runs(record: LeaseRecord, share: Share) -> Iterator[tuple[int, int]]:
    """Yield the ranges of shared pages that a lease holds: what its published tokens need, as whole pages."""
    if not share.part.snapshot:
        rule, start = share.part.rule, share.table.start
        page = rule.page_size
        for low, high in rule.need(record.published):
            first = max(low // page * page, start)
            if first < high:
                yield first, -(-high // page) * page
