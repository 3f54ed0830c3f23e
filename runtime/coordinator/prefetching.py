"""Prefetching: bring to L2 what a prompt could reuse out of the store.

searching --> fetching --> over: grafted
   |  |   ^       `------> over: nothing that came is of use
   |  `-> queued           room on L2 is only coming: until a transfer ends, at most `timeout`
   `----------'----------> over: nothing there, nobody waits any more, no room
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import trio

from ...components import messages as c
from ...spec import PAGE_ID_BYTES, TOKEN_BYTES, Tier
from ...tiers.store import messages as s
from .. import messages as m
from .alarm import Alarm
from .cache_actors import CacheActors
from .capacity import Capacity, Shortage
from .endpoints import Endpoints, union
from .facts import PrefetchDone
from .grafting import Grafting
from .planning import reusable_tokens
from .transfers import Transfer, Transfers

if TYPE_CHECKING:
    from .acquiring import AcquireFlight


class Prefetching(msgspec.Struct, kw_only=True, eq=False):
    """What prefetches share; used inside the cache actor's operations only.

    `queued` wait for room on L2, in the order of their deadlines.
    """

    actors: CacheActors
    capacity: Capacity
    transfers: Transfers
    grafting: Grafting
    endpoints: Endpoints
    alarm: Alarm
    timeout: float
    by_chunk: dict[tuple[bytes, bytes], Prefetch] = {}
    queued: dict[Prefetch, None] = {}

    async def find(self, asker: AcquireFlight, boundary: int) -> Prefetch:
        """Ask the store how far it could lift a reuse; return the transfer to wait for.

        `boundary` is how far all components reach without it. What comes hangs on L2, so that FULL is
        looked for from where L2 ends, whatever L1 has. A second wish for the same chunk joins the
        first, and may ask for itself what lies beyond.
        """
        full = await self.grafting.ground(asker.msg)
        first = min(full, boundary) // self.actors.chunk * self.actors.chunk
        namespace, tokens = asker.msg.namespace, asker.msg.tokens
        key = (namespace, tokens[: (first + self.actors.chunk) * TOKEN_BYTES])
        prefetch = self.by_chunk.get(key)
        if prefetch is None:
            prefetch = Prefetch(self, asker, key, full, boundary)
            await prefetch.search()
        return prefetch

    async def serve(self) -> None:
        """Try again who waits for room on L2: a transfer has ended there."""
        self.capacity.due.room_on_l2 = False
        for prefetch in tuple(self.queued):
            await prefetch.fetch()

    def refuse_late(self) -> None:
        """Let those wait no longer whose time is over."""
        for prefetch in tuple(self.queued):
            if prefetch.deadline > trio.current_time():
                self.alarm.set(prefetch.deadline)
                break
            prefetch.end("host_capacity")

    def staged(self) -> dict[str, bytes]:
        """Return the L2 pages that fetches are filling, per component."""
        staged: dict[str, bytes] = {}
        for prefetch in self.by_chunk.values():
            for item in prefetch.items:
                staged[item.component] = staged.get(item.component, b"") + item.pages
        return staged


class Prefetch(Transfer):
    """One prefetch on its way.

    `asker` is whose tokens are looked up: who joined shares only their first chunks. `full` (on
    L2) and `reuse` are what its `Find` said that there is already; FULL reaches up to `reach` in the store,
    and `items` are fetched up to `endpoint`. Until `deadline` it waits for room. In the end it has
    lifted the reuse up to `brought`.
    """

    __slots__ = (
        "_by",
        "_found",
        "asker",
        "brought",
        "deadline",
        "endpoint",
        "failed",
        "full",
        "items",
        "key",
        "reach",
        "reuse",
    )

    def __init__(
        self,
        by: Prefetching,
        asker: AcquireFlight,
        key: tuple[bytes, bytes],
        full: int,
        reuse: int,
    ) -> None:
        super().__init__(by.transfers)
        self._by = by
        self._found: tuple[s.StoreItem, ...] = ()
        self.asker = asker
        self.key = key
        self.full = full
        self.reuse = reuse
        self.deadline = 0.0
        self.endpoint = 0
        self.reach = 0
        self.failed = False
        self.brought = 0
        self.items: tuple[s.StoreItem, ...] = ()
        by.by_chunk[key] = self

    @property
    def at_work(self) -> bool:
        """See Transfer: nobody works on it while it waits for room."""
        return self not in self._by.queued

    # -- searching ------------------------------------------------------------------------------------

    async def search(self) -> None:
        """Ask the store what it has."""
        asked = self.asker.msg
        tokens = asked.tokens[: reusable_tokens(asked.tokens, self._by.actors.page) * TOKEN_BYTES]
        find = m.Find(self.id, asked.namespace, tokens, self.full, self.reuse)
        await self._by.actors.controller.ask(find)

    async def found(self, msg: m.Found) -> None:
        """Take what the store says it has: fetch it, or end here."""
        self.reach, self.endpoint = msg.full, msg.endpoint
        self.failed = not msg.items and msg.failed is not None
        if not msg.items:  # an endpoint without any is of what is only arriving on L2
            self.end("storage_transfer" if self.failed else "absent")
        elif not self.waiting:
            self.end("abandoned")
        else:
            self._found = msg.items
            self.deadline = trio.current_time() + self._by.timeout
            await self.fetch()

    def answer_for(self, joiner: AcquireFlight) -> int | None:
        """Return how far FULL reaches with the store, or None where an acquire has to ask for itself.

        The answer is that of one who joined where its own search would find the same: where FULL
        ends within what both have in common, or nothing follows that. Else many equal requests
        would ask one after another.
        """
        if joiner is self.asker:
            return self.reach
        if self.failed:
            return 0  # the store has no answer for anybody
        common, chunk = self._common(joiner), self._by.actors.chunk
        limit = reusable_tokens(joiner.msg.tokens, self._by.actors.page) // chunk * chunk
        if self.endpoint <= common and (self.reach < common or common == limit):
            return min(self.reach, common)
        return None

    def brought_for(self, joiner: AcquireFlight) -> int:
        """Return up to where it has lifted the reuse of an acquire that waited for it."""
        if not self.brought or joiner is self.asker:
            return self.brought
        return min(self.brought, self._common(joiner))

    def _common(self, joiner: AcquireFlight) -> int:
        """Return up to where the whole chunks that the asker could reuse are those of a joiner too."""
        page, chunk = self._by.actors.page, self._by.actors.chunk
        mine, theirs = self.asker.msg.tokens, joiner.msg.tokens
        most = min(reusable_tokens(mine, page), reusable_tokens(theirs, page))
        common, size = 0, chunk * TOKEN_BYTES
        while common + chunk <= most and theirs.startswith(
            mine[common * TOKEN_BYTES : common * TOKEN_BYTES + size], common * TOKEN_BYTES
        ):
            common += chunk
        return common

    # -- waiting for room on L2 -----------------------------------------------------------------------

    async def fetch(self) -> None:
        """Allocate L2 for what was found and start to read; wait where room is only coming."""
        by, found = self._by, self._found
        pages = [self._pages(item) for item in found]
        want: dict[str, int] = {}
        for item, count in zip(found, pages, strict=True):
            want[item.component] = want.get(item.component, 0) + count
        got = await by.capacity.allocate(
            Tier.L2, tuple(want.items()), await self._pinned(self.asker.msg)
        )
        if isinstance(got, Shortage):
            if not got.coming:
                self.end("host_capacity")
            elif self not in by.queued:
                by.queued[self] = None
                by.alarm.set(self.deadline)
            return
        by.queued.pop(self, None)
        ids = dict(zip(want, got, strict=True))
        items: list[s.StoreItem] = []
        for item, count in zip(found, pages, strict=True):
            mine, ids[item.component] = (
                ids[item.component][: count * PAGE_ID_BYTES],
                ids[item.component][count * PAGE_ID_BYTES :],
            )
            items.append(s.StoreItem(item.component, item.chain, item.start, item.end, mine))
        self.items = tuple(items)
        await by.actors.controller.ask(m.Fetch(self.id, self.items))

    def leave(self, flight: AcquireFlight) -> None:
        """Let an acquire wait for it no longer; for nobody it does not wait for room."""
        super().leave(flight)
        if not self.waiting and self in self._by.queued:
            self.end("abandoned")

    def _pages(self, item: s.StoreItem) -> int:
        if self._by.actors.by_name[item.component].snapshot:
            return 1
        return (item.end - item.start) // self._by.actors.page

    async def _pinned(self, msg: m.Acquire) -> frozenset[int]:
        """Return the nodes whose L2 copies the fetched chunks will stand on."""
        limit = reusable_tokens(msg.tokens, self._by.actors.page)
        walked = await self._by.actors.tree.ask(
            c.Walk(msg.namespace, msg.tokens[: limit * TOKEN_BYTES])
        )
        return frozenset(walked.path)

    # -- fetching -------------------------------------------------------------------------------------

    async def fetched(self, msg: m.Fetched) -> None:
        """Hang what arrived into the tree on L2 as far as a reuse can use it; give the rest back."""
        grafting = self._by.grafting
        arrived = list(zip(self.items, msg.good, strict=True))
        endpoint = self._reached([item for item, ok in arrived if ok])
        used = [item for item, ok in arrived if ok and item.end <= endpoint]
        await grafting.free([item for item, ok in arrived if not ok or item.end > endpoint])
        outcome = "loaded" if all(msg.good) else "storage_transfer"
        if used and not await grafting.graft(self.asker.msg, endpoint, used):
            await grafting.free(used)
            outcome, used = "anchor_lost", []
        self.count("l3_l2", sum(map(self._by.endpoints.bytes, used)))
        self.end(outcome, endpoint if used else 0)

    def _reached(self, good: list[s.StoreItem]) -> int:
        """Return the endpoint that what arrived can serve, judged as what was found was.

        An object that did not come, of whichever component, leaves a hole, and only an endpoint
        that needs nothing of a hole is reached.
        """
        held: dict[str, list[tuple[int, int]]] = {}
        for item in good:
            held.setdefault(item.component, []).append((item.start, item.end))
        spans = {name: union(ranges) for name, ranges in held.items()}
        return self._by.endpoints.deepest(spans, self.endpoint, self.full, self.reuse)

    def end(self, outcome: str, tokens: int = 0) -> None:
        """End it by one of the closed reasons; what came lifts the reuse up to `tokens`."""
        by = self._by
        self.brought = tokens
        del by.by_chunk[self.key]
        by.queued.pop(self, None)
        by.transfers.counters.prefetches[outcome] += 1
        self.report(PrefetchDone, tokens=tokens, outcome=outcome)
        self.over()
