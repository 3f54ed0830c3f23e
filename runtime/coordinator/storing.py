"""Between L2 and the store: saving what was backed up, and prefetching what a prompt could reuse.

An object is one chunk of one component. A chunk belongs to the node in whose range it ends; a window
is saved as far back as the chunk's own boundary needs it, a snapshot where it stands on a chunk's end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import msgspec

from ...components import messages as c
from ...components.move_messages import Foot, Read
from ...errors import IntegrityError
from ...spec import PAGE_ID_BYTES, TOKEN_BYTES, Tier
from ...telemetry.logs import warn_store_takes_nothing
from ...tiers import messages as t
from .. import messages as m
from .endpoints import Endpoints, union
from .facts import PrefetchDone
from .parts import Part, Parts
from .planning import reusable_tokens
from .reporting import Reporter
from .room import Lack, Room
from .runs import Run, joined
from .splitting import Splitter
from .transfers import Operation, Transfers

if TYPE_CHECKING:
    from .acquiring import AcquireFlight

_BATCH_NODES = 16
"""Nodes that one pass over the unsaved takes."""

_SILENT_SAVES = 8
"""Saves in a row of which the store took nothing before that is said."""


class Prefetch(msgspec.Struct, eq=False):
    """A prefetch in flight: searching, then fetching `items` up to `endpoint`, then over.

    `asker` is whose tokens are looked up: who joined shares only their first chunks. `full` and
    `reuse` are what its `Find` said that there is already.
    """

    operation: Operation
    asker: AcquireFlight
    key: tuple[bytes, bytes]
    full: int
    reuse: int
    endpoint: int = 0
    items: tuple[t.StoreItem, ...] = ()

    def reached(self, good: list[t.StoreItem], endpoints: Endpoints) -> int:
        """Return the endpoint that what arrived can serve, judged as what was found was.

        An object that did not come, of whichever component, leaves a hole, and only an endpoint
        that needs nothing of a hole is reached.
        """
        held: dict[str, list[tuple[int, int]]] = {}
        for item in good:
            held.setdefault(item.component, []).append((item.start, item.end))
        spans = {name: union(ranges) for name, ranges in held.items()}
        return endpoints.deepest(spans, self.endpoint, self.full, self.reuse)


class Storing:
    """Plan saves and prefetches; used inside the cache actor's operations only.

    `prefetches` counts outcomes by closed reason: `loaded`, `absent`, `host_capacity`, `anchor_lost`,
    `storage_transfer`, `abandoned`.
    """

    def __init__(
        self,
        *,
        parts: Parts,
        room: Room,
        transfers: Transfers,
        splitter: Splitter,
        endpoints: Endpoints,
        page_bytes: tuple[int, ...],
        report: Reporter,
    ) -> None:
        self._endpoints = endpoints
        self._parts = parts
        self._report = report
        self._room = room
        self._transfers = transfers
        self._due = room.due
        self._splitter = splitter
        self._page_bytes = page_bytes
        self._prefetches: dict[int, Prefetch] = {}
        self._finds: dict[tuple[bytes, bytes], Prefetch] = {}
        self._lost_saves = 0
        self.prefetches: dict[str, int] = {}

    # -- saving -------------------------------------------------------------------------------------

    async def save(self) -> None:
        """Start to write to the store the chunks that end in nodes newly on L2."""
        batch = list(self._due.unsaved)[:_BATCH_NODES]
        for node in batch:
            del self._due.unsaved[node]
            await self._save_node(node)

    async def _save_node(self, node: int) -> None:
        span = await self._parts.tree.ask(c.Span(node))
        if span is None:
            return
        chunk = self._parts.chunk
        path = await self._parts.tree.ask(c.Ancestry(node))
        start = path.ends[-2] if len(path.ends) > 1 else 0
        ends = range((start // chunk + 1) * chunk, span.end + 1, chunk)
        if not ends:
            return
        operation = self._transfers.begin("save", Tier.L2)
        items: list[t.StoreItem] = []
        for end in ends:
            for part in self._parts.all:
                item = await self._item(operation.id, part, node, end)
                if item is not None:
                    items.append(item)
                elif part.base:
                    break  # without FULL nobody could reuse the chunk
        if not items:
            await self._transfers.settle(operation, ok=True)
            operation.over()
            return
        operation.nodes = (node,)
        operation.moved = self._bytes(items)
        await self._parts.below.ask(
            m.Save(operation.id, span.namespace, span.base, span.chain, span.tokens, tuple(items))
        )

    async def _item(self, op: int, part: Part, node: int, end: int) -> t.StoreItem | None:
        """Mark and name the L2 pages of one object; None where L2 holds less than a reuse needs."""
        first = end - self._parts.chunk
        found = await part.ref.ask(Read(op, node, first, end))
        if not found.pages:
            return None
        if not part.snapshot:
            need = part.rule.need(end)
            if (
                not need
                or found.start > max(first, need[0][0]) // self._parts.page * self._parts.page
            ):
                return None
        return t.StoreItem(part.name, b"", found.start, end, found.pages)

    def _bytes(self, items: list[t.StoreItem] | tuple[t.StoreItem, ...]) -> int:
        return sum(
            len(item.pages)
            // PAGE_ID_BYTES
            * self._page_bytes[self._parts.by_name[item.component].index]
            for item in items
        )

    async def saved(self, msg: m.Saved) -> None:
        """Settle a save, and keep the chain hash so that the next one need not start at the root."""
        operation = self._transfers.operations[msg.op]
        await self._transfers.settle(operation, ok=True)
        self._transfers.moved_bytes["l2_l3"] += msg.stored
        if msg.stored:
            self._lost_saves = 0
        elif msg.lost is not None:
            self._lost_saves += 1
            if self._lost_saves == _SILENT_SAVES:
                warn_store_takes_nothing(self._lost_saves, msg.lost.value)
        if msg.chain:
            await self._parts.tree.ask(c.Chained(operation.nodes[-1], msg.at, msg.chain))
        operation.over()

    # -- prefetching --------------------------------------------------------------------------------

    async def find(self, pending: AcquireFlight, boundary: int, full: int) -> Operation:
        """Ask the store how far it could lift a reuse; answer the operation to wait for.

        `boundary` is how far all components reach without it, `full` how far FULL does.

        A second wish for the same chunk joins the first, and may ask for itself what lies beyond.
        """
        chunk = self._parts.chunk
        first = min(full, boundary) // chunk * chunk
        tokens = pending.msg.tokens
        key = (pending.msg.namespace, tokens[: (first + chunk) * TOKEN_BYTES])
        prefetch = self._finds.get(key)
        if prefetch is None:
            operation = self._transfers.begin("prefetch", Tier.L2)
            prefetch = Prefetch(operation, pending, key, full, boundary)
            self._finds[key] = self._prefetches[operation.id] = prefetch
            pending.searched = True
            limit = reusable_tokens(tokens, self._parts.page)
            await self._parts.below.ask(
                m.Find(
                    operation.id,
                    pending.msg.namespace,
                    tokens[: limit * TOKEN_BYTES],
                    full,
                    boundary,
                )
            )
        return prefetch.operation

    async def found(self, msg: m.Found) -> None:
        """Allocate L2 for what was found and start the fetch, or end here."""
        prefetch = self._prefetches[msg.op]
        prefetch.asker.full = msg.full
        if not msg.endpoint:
            self._ended(prefetch, "storage_transfer" if msg.failed else "absent")
            return
        if not prefetch.operation.waiting:
            self._ended(prefetch, "abandoned")
            return
        pages = [self._pages(item) for item in msg.items]
        want: dict[str, int] = {}
        for item, count in zip(msg.items, pages, strict=True):
            want[item.component] = want.get(item.component, 0) + count
        pinned = await self._pinned(prefetch.asker.msg)
        got = await self._room.take(Tier.L2, tuple(want.items()), pinned)
        if isinstance(got, Lack):
            self._ended(prefetch, "host_capacity")
            return
        room = dict(zip(want, got, strict=True))
        items: list[t.StoreItem] = []
        for item, count in zip(msg.items, pages, strict=True):
            mine, room[item.component] = (
                room[item.component][: count * PAGE_ID_BYTES],
                room[item.component][count * PAGE_ID_BYTES :],
            )
            items.append(t.StoreItem(item.component, item.chain, item.start, item.end, mine))
        prefetch.endpoint, prefetch.items = msg.endpoint, tuple(items)
        await self._parts.below.ask(m.Fetch(msg.op, prefetch.items))

    def _pages(self, item: t.StoreItem) -> int:
        if self._parts.by_name[item.component].snapshot:
            return 1
        return (item.end - item.start) // self._parts.page

    async def _pinned(self, msg: m.Acquire) -> frozenset[int]:
        """Answer the nodes whose L2 copies the fetched chunks will stand on."""
        limit = reusable_tokens(msg.tokens, self._parts.page)
        walked = await self._parts.tree.ask(
            c.Walk(msg.namespace, msg.tokens[: limit * TOKEN_BYTES])
        )
        return frozenset(walked.path)

    def _ended(self, prefetch: Prefetch, outcome: str, tokens: int = 0) -> None:
        operation = prefetch.operation
        del self._prefetches[operation.id]
        del self._finds[prefetch.key]
        self.prefetches[outcome] = self.prefetches.get(outcome, 0) + 1
        for pending in operation.waiting:
            if pending.trace is not None:
                self._report.done(
                    PrefetchDone,
                    operation.started,
                    pending.trace,
                    op=operation.id,
                    tokens=tokens,
                    outcome=outcome,
                )
        operation.over()

    async def fetched(self, msg: m.Fetched) -> None:
        """Hang what arrived into the tree on L2 as far as a reuse can use it; give the rest back."""
        prefetch = self._prefetches[msg.op]
        arrived = list(zip(prefetch.items, msg.good, strict=True))
        endpoint = prefetch.reached([item for item, ok in arrived if ok], self._endpoints)
        used = [item for item, ok in arrived if ok and item.end <= endpoint]
        await self._give_back([item for item, ok in arrived if not ok or item.end > endpoint])
        outcome = "loaded" if all(msg.good) else "storage_transfer"
        if used and not await self._graft(prefetch.asker.msg, endpoint, used):
            await self._give_back(used)
            outcome, used = "anchor_lost", []
        self._transfers.moved_bytes["l3_l2"] += self._bytes(used)
        self._ended(prefetch, outcome, endpoint if used else 0)

    def staged(self) -> dict[str, bytes]:
        """Answer the L2 pages that fetches are filling, per component."""
        staged: dict[str, list[bytes]] = {}
        for prefetch in self._prefetches.values():
            for item in prefetch.items:
                staged.setdefault(item.component, []).append(item.pages)
        return {component: b"".join(pages) for component, pages in staged.items()}

    async def _give_back(self, items: list[t.StoreItem]) -> None:
        free = [(item.component, item.pages, 0) for item in items]
        await self._room.give_back(Tier.L2, free)

    async def _graft(self, msg: m.Acquire, endpoint: int, items: list[t.StoreItem]) -> bool:
        """Adopt fetched objects on L2; False, and nothing is changed, where FULL lacks below them."""
        parts, tree = self._parts, self._parts.tree
        key = msg.tokens[: endpoint * TOKEN_BYTES]
        own: dict[str, list[t.StoreItem]] = {}
        for item in items:
            own.setdefault(item.component, []).append(item)
        runs = {part: joined(own.get(part.name, ()), parts.page) for part in parts.paged}
        walked = await tree.ask(c.Walk(msg.namespace, key))
        base = runs[parts.base]
        if not await self._stands(walked, base[0].start if base else endpoint):
            return False
        starts = [(part, run.start, Tier.L2) for part in runs for run in runs[part]]
        # where a run ends before the endpoint, and where a state stands, a node has to end
        stands = {run.end for part in runs for run in runs[part]}
        stands.update(item.end for part in parts.snapshots for item in own.get(part.name, ()))
        known = await self._splitter.cut(walked, starts, tuple(sorted(stands - {endpoint})))
        now = parts.tick()
        cuts = sorted({*stands, *(at for _, at, _ in starts)})
        grown = await self._grow(msg.namespace, key, known, cuts, now)
        path = c.Grown((*known.path, *grown.path), (*known.ends, *grown.ends))
        for part in parts.paged:
            for run in runs[part]:
                await self._adopt(part, run, path, now)
        for part in parts.snapshots:
            await self._keep(part, own.get(part.name, []), path, now)
        return True

    async def _grow(
        self, namespace: bytes, key: bytes, known: c.Grown, cuts: list[int], now: int
    ) -> c.Grown:
        """Add the nodes that the tree lacks of a key, without payload yet."""
        parts, ends = self._parts, known.ends[-1] if known.ends else 0
        end = len(key) // TOKEN_BYTES
        if ends == end:
            return c.Grown((), ())
        parent = known.path[-1] if known.path else c.ROOT
        within = tuple(at for at in cuts if ends < at < end)
        grown = await parts.tree.ask(c.Insert(namespace, key[ends * TOKEN_BYTES :], parent, within))
        if isinstance(grown, c.Walked):
            raise IntegrityError(f"tokens behind {ends} are there already, below node {parent}")
        for part in parts.paged:
            bare = c.Grow(
                Tier.L2, parent, grown.path, grown.ends, end, b"", (), relock=False, now=now
            )
            await part.ref.ask(bare)
        return grown

    async def _adopt(self, part: Part, run: Run, path: c.Grown, now: int) -> None:
        """Hand a fetched run over to the nodes of its range; what they have already goes back."""
        low, high = bisect_right(path.ends, run.start), bisect_left(path.ends, run.end) + 1
        adopted = await part.ref.ask(
            c.Adopt(Tier.L2, path.path[low:high], path.ends[low:high], run.start, run.pages, now)
        )
        if adopted.free:
            await self._room.give_back(Tier.L2, [(part.name, adopted.free, 0)])

    async def _keep(self, part: Part, run: list[t.StoreItem], path: c.Grown, now: int) -> None:
        """Hand fetched states over to the nodes at whose ends they stand."""
        nodes, ends = path.path, path.ends
        starts = (0, *ends)
        states: list[c.State] = []
        for item in run:
            place = ends.index(item.end)
            states.append(c.State(nodes[place], starts[place], item.end, item.pages))
        if states:
            kept = await part.ref.ask(c.Keep(Tier.L2, tuple(states), now))
            if kept.free:
                await self._room.give_back(Tier.L2, [(part.name, kept.free, 0)])

    async def _stands(self, walked: c.Walked, start: int) -> bool:
        """Say whether L2 holds FULL right up to `start`: nothing may hang below a hole."""
        if not start:
            return True
        for node, end in zip(walked.path, walked.ends, strict=True):
            if end >= start:
                return (await self._parts.base.ref.ask(Foot(node))).firm
        return False
