"""One round of an audit: the steps by which it proves the whole cache, each in an operation of its own.

    begun --> leases --> nodes --> locks --> pages --> waits --> over

It proves the cache as it was in the operation in which it began. Whoever changes what has not been
looked at yet notes it first, as it is: the tree, the components, the tiers and the leases each do so
for themselves while a round runs. So a sound cache never looks wrong, however much changes meanwhile;
and what was wrong when a round began is found in it.

What must hold at any moment is looked at as it is then: links of the tree, the tables of leases, who
waits and what is in flight.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from typing import Any

from ...actors import Ref
from ...components import audit_messages as a
from ...components import messages as c
from ...components.audit_messages import Faults
from ...spec import PageList, Tier
from ...tiers import audit_messages as t
from .. import messages as m
from .cache_actors import CacheActors, ComponentRef
from .lease_audit import LeaseAudit
from .lease_book import LiveLeases
from .leases import LeaseRecord, Share
from .lock_audit import LockAudit
from .prefetching import Prefetching
from .wait_audit import WaitAudit, Waits

NODES, TOKENS, STEPS = 32, 1 << 16, 512
"""What one slice looks at, at most: nodes and their tokens, but for one node that has more, and steps up
the tree."""

Owned = Iterable[tuple[str, PageList]]
"""Components and pages that somebody owns."""


class Round:
    """One round; used inside the cache actor's operations only. `findings` are those of the last slice."""

    def __init__(
        self,
        number: int,
        actors: CacheActors,
        *,
        live: LiveLeases,
        prefetching: Prefetching,
        waits: Waits,
        cache: str,
    ) -> None:
        self.findings: list[m.Finding] = []
        self.steps = self._steps()
        self._number = number
        self._actors = actors
        self._live = live
        self._prefetching = prefetching
        self._waits = waits
        self._cache = cache
        self._slice = 0
        self._all_nodes = False
        self._judged = False
        self._locks = tuple(
            LockAudit(part.name, snapshot=part.snapshot) for part in actors.components
        )

    def _steps(self) -> Iterator[Awaitable[None]]:
        yield self._begin()
        while not self._leases.over:
            yield self._some_leases()
        self._live.audit = None  # nothing need be noted any more
        while not self._all_nodes:
            yield self._some_nodes()
        yield self._sums()
        for part, locks in zip(self._actors.components, self._locks, strict=True):
            for faults in locks.explaining(STEPS):
                yield self._found(part.ref.path, faults)
        for tier in self._actors.tiers.values():
            self._judged = False
            while not self._judged:
                yield self._some_pages(tier)
        for faults in self._waiting.requests():
            yield self._found(self._cache, faults)
        yield self._end()

    async def _found(self, actor: str, faults: Faults) -> None:
        self.findings += [m.Finding(actor, law, what) for law, what in faults]

    def _number_it(self) -> int:
        self._slice += 1
        return self._slice

    # -- the beginning, in one operation --------------------------------------------------------------

    async def _begin(self) -> None:
        actors, number = self._actors, self._number
        self._leases = self._live.audit = LeaseAudit(self._live)
        last = await actors.tree.ask(a.BeginTree(number))
        quarantined: dict[Tier, frozenset[int]] = {}
        for tier, ref in actors.tiers.items():
            quarantined[tier] = await ref.ask(t.BeginPages(number))
        for part in actors.components:
            shared = await part.ref.ask(a.BeginRecords(number, last))
            for tier, ref in actors.tiers.items():
                await self._count(ref, [(part.name, shared[tier])])
        if actors.l2 is not None:
            await self._count(actors.l2, self._prefetching.staged().items())
        for tier, transfers in quarantined.items():
            await self._in_flight(actors.tiers[tier], transfers, "P3", "pages wait for")
        self._waiting = WaitAudit(self._waits, await actors.controller.ask(m.Working()))

    async def _count(self, tier: Ref[Any], owned: Owned) -> None:
        """Tell a tier of pages that had an owner when the round began."""
        items = tuple((component, pages) for component, pages in owned if pages)
        if items:
            await self._found(tier.path, await tier.ask(t.CountPages(self._number_it(), items)))

    async def _in_flight(
        self, actor: Ref[Any], transfers: Iterable[int], law: str, what: str
    ) -> None:
        """Look whether transfers that are said to be in flight are."""
        running = self._waits.transfers.running
        await self._found(
            actor.path,
            tuple(
                (law, f"{what} transfer {transfer}, which is over")
                for transfer in sorted(transfers)
                if transfer not in running
            ),
        )

    # -- leases -----------------------------------------------------------------------------------------

    async def _some_leases(self) -> None:
        owned: dict[str, list[PageList]] = {}
        for view in self._leases.some():
            for locks, share in zip(self._locks, view.shares, strict=True):
                locks.receipts(share.receipts)
                pages = (share.own, share.slot, *[slot for _, slot in share.kept])
                owned.setdefault(share.component, []).extend(pages)
            record = self._live.get(view.id)
            if record is not None and record.claimed:
                await self._shown(record)
        await self._count(
            self._actors.l1, [(component, b"".join(pages)) for component, pages in owned.items()]
        )

    async def _shown(self, record: LeaseRecord) -> None:
        """Look whether the tables of a lease show the pages that the tree has, as both are now."""
        for share in record.shares:
            part = share.part
            if not share.receipts or part.snapshot:
                continue
            if len(part.rule.need(record.published)) > 1:
                continue  # its table has gaps, of which each side says something else
            table = await part.ref.ask(c.Table(record.anchor, share.receipts))
            if table.missing or table.joins:
                if part.base:
                    await self._wrong_table(record, share, "covers what L1 lacks")
            elif not table.pages.endswith(
                share.table.between(table.start, record.published, self._actors.page)
            ):
                await self._wrong_table(record, share, "shows pages that the tree has not")

    async def _wrong_table(self, record: LeaseRecord, share: Share, wrong: str) -> None:
        await self._found(self._cache, (("L1", f"{share.part.name}: lease {record.id} {wrong}"),))

    # -- nodes ------------------------------------------------------------------------------------------

    async def _some_nodes(self) -> None:
        actors = self._actors
        tree = actors.tree
        scanned = await tree.ask(a.ScanTree(self._number_it(), NODES, TOKENS))
        self._all_nodes = scanned.over
        await self._found(tree.path, scanned.faults)
        msg = a.ScanRecords(self._number_it(), scanned.ids, scanned.starts, scanned.ends)
        base: a.ScannedRecords | None = None
        for part, locks in zip(actors.components, self._locks, strict=True):
            records = await part.ref.ask(msg)
            await self._found(part.ref.path, records.faults)
            await self._in_flight(part.ref, records.transfers, "M1", "a payload is marked by")
            locks.locked(records.locked)
            await self._count(actors.l1, [(part.name, records.l1)])
            if actors.l2 is not None:
                await self._count(actors.l2, [(part.name, records.l2)])
            if base is None:
                base = records
            else:
                await self._stands_on(base, part, records, scanned.ids)

    async def _stands_on(
        self,
        base: a.ScannedRecords,
        part: ComponentRef,
        records: a.ScannedRecords,
        ids: tuple[int, ...],
    ) -> None:
        """Look whether what others hold and lock stands on what FULL holds and locks."""
        alone = int.from_bytes(records.held, "little") & ~int.from_bytes(base.held, "little")
        faults: list[tuple[str, str]] = []
        if alone:
            node = ids[(alone.bit_length() - 1) // 8]
            faults.append(("C1", f"{part.name} is on a tier at node {node}, FULL is not"))
        locks = {node.id: node.lock for node in base.locked}
        faults += [
            ("L2", f"{part.name} locks node {node.id} more than FULL does")
            for node in records.locked
            if node.lock > locks.get(node.id, 0)
        ]
        await self._found(part.ref.path, tuple(faults))

    async def _sums(self) -> None:
        for part in self._actors.components:
            await self._found(part.ref.path, await part.ref.ask(a.EndRecords(self._number_it())))

    # -- pages, and the end ---------------------------------------------------------------------------

    async def _some_pages(self, tier: Ref[Any]) -> None:
        faults = await tier.ask(t.JudgePages(self._number_it()))
        self._judged = faults is None
        await self._found(tier.path, faults or ())

    async def _end(self) -> None:
        working = await self._actors.controller.ask(m.Working())
        await self._found(self._cache, self._waiting.end(working))
