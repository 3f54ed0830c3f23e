"""Prefetching: bring to L2 what a prompt could reuse out of the store.

searching --> fetching --> over: grafted
|             `------> over: nothing that came is of use
`--------------------> over: nothing there, nobody waits any more, no room
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ...components import messages as c
from ...spec import PAGE_ID_BYTES, TOKEN_BYTES, Tier
from ...tiers import messages as t
from .. import messages as m
from .endpoints import Endpoints, union
from .facts import PrefetchDone
from .grafting import Grafting
from .parts import Parts
from .planning import reusable_tokens
from .reporting import Reporter
from .room import Lack, Room
from .transfers import Operation, Transfers

if TYPE_CHECKING:
    from .acquiring import AcquireFlight


class Prefetching:
    """What prefetches share; used inside the cache actor's operations only.

    `outcomes` counts prefetches by closed reason: `loaded`, `absent`, `host_capacity`, `anchor_lost`,
    `storage_transfer`, `abandoned`.
    """

    def __init__(
        self,
        *,
        parts: Parts,
        room: Room,
        transfers: Transfers,
        grafting: Grafting,
        endpoints: Endpoints,
        report: Reporter,
    ) -> None:
        self.parts = parts
        self.room = room
        self.transfers = transfers
        self.grafting = grafting
        self.endpoints = endpoints
        self.report = report
        self.outcomes: Counter[str] = Counter()
        self.by_operation: dict[int, Prefetch] = {}
        self.by_chunk: dict[tuple[bytes, bytes], Prefetch] = {}

    async def find(self, asker: AcquireFlight, boundary: int, full: int) -> Operation:
        """Ask the store how far it could lift a reuse; return the operation to wait for.

        `boundary` is how far all components reach without it, `full` how far FULL does. A second wish
        for the same chunk joins the first, and may ask for itself what lies beyond.
        """
        first = min(full, boundary) // self.parts.chunk * self.parts.chunk
        namespace, tokens = asker.msg.namespace, asker.msg.tokens
        key = (namespace, tokens[: (first + self.parts.chunk) * TOKEN_BYTES])
        prefetch = self.by_chunk.get(key)
        if prefetch is None:
            prefetch = Prefetch(self, asker, key, full, boundary)
            await prefetch.search()
        return prefetch.operation

    async def found(self, msg: m.Found) -> None:
        """Take what the store says it has."""
        await self.by_operation[msg.op].found(msg)

    async def fetched(self, msg: m.Fetched) -> None:
        """Take what arrived."""
        await self.by_operation[msg.op].fetched(msg)

    def staged(self) -> dict[str, bytes]:
        """Return the L2 pages that fetches are filling, per component."""
        staged: dict[str, bytes] = {}
        for prefetch in self.by_operation.values():
            for item in prefetch.items:
                staged[item.component] = staged.get(item.component, b"") + item.pages
        return staged


class Prefetch:
    """One prefetch on its way.

    `asker` is whose tokens are looked up: who joined shares only their first chunks. `full` and
    `reuse` are what its `Find` said that there is already; FULL reaches up to `reach` in the store,
    and `items` are fetched up to `endpoint`.
    """

    __slots__ = ("_by", "asker", "endpoint", "full", "items", "key", "operation", "reach", "reuse")

    def __init__(
        self,
        by: Prefetching,
        asker: AcquireFlight,
        key: tuple[bytes, bytes],
        full: int,
        reuse: int,
    ) -> None:
        self._by = by
        self.operation = by.transfers.begin("prefetch", Tier.L2)
        self.asker = asker
        self.key = key
        self.full = full
        self.reuse = reuse
        self.endpoint = 0
        self.reach = 0
        self.items: tuple[t.StoreItem, ...] = ()
        by.by_operation[self.operation.id] = by.by_chunk[key] = self

    async def search(self) -> None:
        """Ask the store what it has."""
        self.asker.searched = True
        asked, op = self.asker.msg, self.operation.id
        tokens = asked.tokens[: reusable_tokens(asked.tokens, self._by.parts.page) * TOKEN_BYTES]
        await self._by.parts.below.ask(m.Find(op, asked.namespace, tokens, self.full, self.reuse))

    async def found(self, msg: m.Found) -> None:
        """Allocate L2 for what was found and start the fetch, or end here."""
        self.asker.full, self.reach, self.endpoint = msg.full, msg.full, msg.endpoint
        if not msg.endpoint:
            if msg.failed:
                for pending in self.operation.waiting:
                    pending.searched = True  # the store has no answer for anybody
            self._ended("storage_transfer" if msg.failed else "absent")
            return
        if not self.operation.waiting:
            self._ended("abandoned")
            return
        pages = [self._pages(item) for item in msg.items]
        want: dict[str, int] = {}
        for item, count in zip(msg.items, pages, strict=True):
            want[item.component] = want.get(item.component, 0) + count
        pinned = await self._pinned(self.asker.msg)
        got = await self._by.room.take(Tier.L2, tuple(want.items()), pinned)
        if isinstance(got, Lack):
            if got.coming:
                self._by.room.due.postpone_fetch(msg)
            else:
                self._ended("host_capacity")
            return
        room = dict(zip(want, got, strict=True))
        items: list[t.StoreItem] = []
        for item, count in zip(msg.items, pages, strict=True):
            mine, room[item.component] = (
                room[item.component][: count * PAGE_ID_BYTES],
                room[item.component][count * PAGE_ID_BYTES :],
            )
            items.append(t.StoreItem(item.component, item.chain, item.start, item.end, mine))
        self.items = tuple(items)
        await self._by.parts.below.ask(m.Fetch(msg.op, self.items))

    def _pages(self, item: t.StoreItem) -> int:
        if self._by.parts.by_name[item.component].snapshot:
            return 1
        return (item.end - item.start) // self._by.parts.page

    async def _pinned(self, msg: m.Acquire) -> frozenset[int]:
        """Return the nodes whose L2 copies the fetched chunks will stand on."""
        limit = reusable_tokens(msg.tokens, self._by.parts.page)
        walked = await self._by.parts.tree.ask(
            c.Walk(msg.namespace, msg.tokens[: limit * TOKEN_BYTES])
        )
        return frozenset(walked.path)

    async def fetched(self, msg: m.Fetched) -> None:
        """Hang what arrived into the tree on L2 as far as a reuse can use it; give the rest back."""
        grafting = self._by.grafting
        arrived = list(zip(self.items, msg.good, strict=True))
        endpoint = self._reached([item for item, ok in arrived if ok])
        used = [item for item, ok in arrived if ok and item.end <= endpoint]
        await grafting.give_back([item for item, ok in arrived if not ok or item.end > endpoint])
        outcome = "loaded" if all(msg.good) else "storage_transfer"
        if used and not await grafting.graft(self.asker.msg, endpoint, used):
            await grafting.give_back(used)
            outcome, used = "anchor_lost", []
        self._by.transfers.moved_bytes["l3_l2"] += sum(map(self._by.endpoints.bytes, used))
        self._ended(outcome, endpoint if used else 0)

    def _reached(self, good: list[t.StoreItem]) -> int:
        """Return the endpoint that what arrived can serve, judged as what was found was.

        An object that did not come, of whichever component, leaves a hole, and only an endpoint
        that needs nothing of a hole is reached.
        """
        held: dict[str, list[tuple[int, int]]] = {}
        for item in good:
            held.setdefault(item.component, []).append((item.start, item.end))
        spans = {name: union(ranges) for name, ranges in held.items()}
        return self._by.endpoints.deepest(spans, self.endpoint, self.full, self.reuse)

    def _ended(self, outcome: str, tokens: int = 0) -> None:
        by, operation = self._by, self.operation
        del by.by_operation[operation.id]
        del by.by_chunk[self.key]
        by.outcomes[outcome] += 1
        for pending in operation.waiting:
            if not pending.searched:
                self._share(pending)
            if pending.trace is not None:
                by.report.done(
                    PrefetchDone,
                    operation.started,
                    pending.trace,
                    op=operation.id,
                    tokens=tokens,
                    outcome=outcome,
                )
        operation.over()

    def _share(self, joiner: AcquireFlight) -> None:
        """Let the answer be that of one who joined, where its own search would find the same.

        So it is where FULL ends within what both have in common, or nothing follows that: else many
        equal requests would ask one after another.
        """
        page, chunk = self._by.parts.page, self._by.parts.chunk
        mine, theirs = self.asker.msg.tokens, joiner.msg.tokens
        limit = reusable_tokens(theirs, page) // chunk * chunk
        most = min(limit, reusable_tokens(mine, page) // chunk * chunk)
        common, size = 0, chunk * TOKEN_BYTES
        while common < most and theirs.startswith(
            mine[common * TOKEN_BYTES : common * TOKEN_BYTES + size], common * TOKEN_BYTES
        ):
            common += chunk
        if self.endpoint <= common and (self.reach < common or common == limit):
            joiner.searched = True
            joiner.full = min(self.reach, common)
