"""Between L2 and the store: saving what was backed up, and prefetching what a prompt could reuse.

An object is one chunk of one component. A chunk belongs to the node in whose range it ends; a window
is saved as far back as the chunk's own boundary needs it, a snapshot where it stands on a chunk's end.
"""

from __future__ import annotations

from ...components import messages as c
from ...components.move_messages import Read, Slice, Unbacked
from ...errors import IntegrityError
from ...spec import PAGE_ID_BYTES, TOKEN_BYTES, Tier
from ...tiers import messages as t
from .. import messages as m
from .facts import PrefetchDone
from .parts import Part, Parts
from .pending import PendingAcquire
from .planning import reusable_tokens
from .reporting import Reporter
from .room import Room
from .splitting import Splitter
from .transfers import Operation, Transfers

_BATCH_NODES = 16
"""Nodes that one pass over the unsaved takes."""


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
        page_bytes: tuple[int, ...],
        report: Reporter,
    ) -> None:
        self._parts = parts
        self._report = report
        self._room = room
        self._transfers = transfers
        self._due = room.due
        self._splitter = splitter
        self._page_bytes = page_bytes
        self._finds: dict[tuple[bytes, bytes], Operation] = {}
        self._fetching: dict[int, tuple[t.StoreItem, ...]] = {}
        self.prefetches: dict[str, int] = {}

    # -- saving -------------------------------------------------------------------------------------

    async def save(self) -> None:
        """Start to write to the store the chunks that end in nodes newly on L2."""
        batch = list(self._due.unsaved)[:_BATCH_NODES]
        for node in batch:
            del self._due.unsaved[node]
            await self._save_node(node)

    async def _save_node(self, node: int) -> None:
        span: c.Spanned | None = await self._parts.tree.ask(c.Span(node))
        if span is None:
            return
        chunk = self._parts.chunk
        path: c.Walked = await self._parts.tree.ask(c.Ancestry(node))
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
        operation.nodes = (node,)
        operation.moved = self._bytes(items)
        await self._parts.below.ask(
            m.Save(operation.id, span.namespace, span.base, span.chain, span.tokens, tuple(items))
        )

    async def _item(self, op: int, part: Part, node: int, end: int) -> t.StoreItem | None:
        """Mark and name the L2 pages of one object; None where L2 holds less than a reuse needs."""
        first = end - self._parts.chunk
        found: Slice = await part.ref.ask(Read(op, node, first, end))
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
        operation = self._transfers.operations.pop(msg.op)
        await self._transfers.settle(operation, ok=True)
        self._transfers.moved_bytes["l2_l3"] += msg.stored
        if msg.chain:
            await self._parts.tree.ask(c.Chained(operation.nodes[-1], msg.at, msg.chain))

    # -- prefetching --------------------------------------------------------------------------------

    async def find(self, pending: PendingAcquire, boundary: int, full: int) -> int:
        """Ask the store how far it could lift a reuse; answer the operation to wait for.

        `boundary` is how far all components reach without it, `full` how far FULL does.

        A second wish for the same chunk joins the first, and may ask for itself what lies beyond.
        """
        chunk = self._parts.chunk
        first = min(full, boundary) // chunk * chunk
        tokens = pending.msg.tokens
        key = (pending.msg.namespace, tokens[: (first + chunk) * TOKEN_BYTES])
        operation = self._finds.get(key)
        if operation is None:
            operation = self._finds[key] = self._transfers.begin("prefetch", Tier.L2)
            operation.asker, operation.key = pending, key
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
        operation.waiting.append(pending)
        return operation.id

    async def found(self, msg: m.Found) -> Operation | None:
        """Allocate L2 for what was found and start the fetch; answer the operation if it ends here."""
        operation = self._transfers.operations[msg.op]
        asker = self._asker(operation)
        asker.full = msg.full
        if not msg.endpoint:
            return self._ended(operation, "absent")
        if not operation.waiting:
            return self._ended(operation, "abandoned")
        pages = [self._pages(item) for item in msg.items]
        want: dict[str, int] = {}
        for item, count in zip(msg.items, pages, strict=True):
            want[item.component] = want.get(item.component, 0) + count
        pinned = await self._pinned(asker.msg)
        got = await self._room.take(Tier.L2, tuple(want.items()), pinned)
        if isinstance(got, t.Short):
            return self._ended(operation, "host_capacity")
        room = dict(zip(want, got, strict=True))
        items: list[t.StoreItem] = []
        for item, count in zip(msg.items, pages, strict=True):
            mine, room[item.component] = (
                room[item.component][: count * PAGE_ID_BYTES],
                room[item.component][count * PAGE_ID_BYTES :],
            )
            items.append(t.StoreItem(item.component, item.chain, item.start, item.end, mine))
        self._fetching[operation.id] = tuple(items)
        await self._parts.below.ask(m.Fetch(operation.id, tuple(items)))
        return None

    def _pages(self, item: t.StoreItem) -> int:
        if self._parts.by_name[item.component].snapshot:
            return 1
        return (item.end - item.start) // self._parts.page

    @staticmethod
    def _asker(operation: Operation) -> PendingAcquire:
        """Answer whose tokens were looked up: who joined shares only their first chunks."""
        if operation.asker is None:
            raise IntegrityError(f"operation {operation.id} is no prefetch")
        return operation.asker

    async def _pinned(self, msg: m.Acquire) -> frozenset[int]:
        """Answer the nodes whose L2 copies the fetched chunks will stand on."""
        limit = reusable_tokens(msg.tokens, self._parts.page)
        walked = await self._parts.tree.ask(
            c.Walk(msg.namespace, msg.tokens[: limit * TOKEN_BYTES])
        )
        return frozenset(walked.path)

    def _ended(self, operation: Operation, outcome: str, tokens: int = 0) -> Operation:
        del self._transfers.operations[operation.id]
        del self._finds[operation.key]
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
        return operation

    async def fetched(self, msg: m.Fetched) -> Operation:
        """Hang what arrived whole into the tree on L2; give the rest of the pages back."""
        operation = self._transfers.operations[msg.op]
        items = self._fetching.pop(msg.op)
        good = [item for item, ok in zip(items, msg.good, strict=True) if ok]
        bad = [item for item, ok in zip(items, msg.good, strict=True) if not ok]
        await self._give_back(bad)
        endpoint = self._endpoint(good)
        late = [item for item in good if item.end > endpoint]
        await self._give_back(late)
        rest = [item for item in good if item.end <= endpoint]
        outcome = "storage_transfer" if bad else "loaded"
        if rest and not await self._graft(self._asker(operation).msg, endpoint, rest):
            outcome = "anchor_lost"
        self._transfers.moved_bytes["l3_l2"] += self._bytes(rest)
        return self._ended(operation, outcome, endpoint if rest else 0)

    def staged(self) -> dict[str, bytes]:
        """Answer the L2 pages that fetches are filling, per component."""
        staged: dict[str, list[bytes]] = {}
        for items in self._fetching.values():
            for item in items:
                staged.setdefault(item.component, []).append(item.pages)
        return {component: b"".join(pages) for component, pages in staged.items()}

    def _endpoint(self, good: list[t.StoreItem]) -> int:
        """Answer where the run of FULL chunks without a hole ends (all of them where FULL had enough)."""
        base = sorted(
            (item for item in good if self._parts.by_name[item.component].base),
            key=lambda item: item.start,
        )
        if not base:
            return max((item.end for item in good), default=0)
        end = base[0].end
        for item in base[1:]:
            if item.start != end:
                break
            end = item.end
        return end

    async def _give_back(self, items: list[t.StoreItem]) -> None:
        free = [(item.component, item.pages, 0) for item in items]
        await self._room.give_back(Tier.L2, free)

    async def _graft(self, msg: m.Acquire, endpoint: int, items: list[t.StoreItem]) -> bool:
        """Adopt fetched pages on L2, from the first fetched token to the endpoint."""
        parts, tree = self._parts, self._parts.tree
        key = msg.tokens[: endpoint * TOKEN_BYTES]
        own: dict[str, list[t.StoreItem]] = {}
        for item in sorted(items, key=lambda item: item.start):
            own.setdefault(item.component, []).append(item)
        walked: c.Walked = await tree.ask(c.Walk(msg.namespace, key))
        starts = {name: run[0].start for name, run in own.items()}
        base_start = starts.get(parts.base.name, endpoint)
        if not await self._stands(walked, base_start):
            await self._give_back(items)
            return False
        stands = tuple(item.end for item in items if parts.by_name[item.component].snapshot)
        owns = {part: (starts[part.name], Tier.L2) for part in parts.paged if part.name in starts}
        path = await self._splitter.cut(walked, owns, stands)
        ends = path.ends[-1] if path.ends else 0
        parent = path.path[-1] if path.path else c.ROOT
        grown: c.Grown | c.Walked = c.Grown((), ())
        if ends < endpoint:
            cuts = sorted({at for at in (*starts.values(), *stands) if ends < at < endpoint})
            grown = await tree.ask(
                c.Insert(msg.namespace, key[ends * TOKEN_BYTES :], parent, tuple(cuts))
            )
        now = parts.tick()
        for part in parts.all:
            run = own.get(part.name, [])
            if part.snapshot:
                await self._keep(part, run, path, grown, now)
                continue
            start = run[0].start if run else endpoint
            pages = b"".join(item.pages for item in run)
            known = max(0, ends - start) // parts.page * PAGE_ID_BYTES
            if path.path:
                adopted: c.Adopted = await part.ref.ask(
                    c.Adopt(Tier.L2, path.path, path.ends, start, pages[:known], now)
                )
                if adopted.free:
                    await self._room.give_back(Tier.L2, [(part.name, adopted.free, 0)])
            if grown.path:
                await part.ref.ask(
                    c.Grow(
                        tier=Tier.L2,
                        parent=parent,
                        path=grown.path,
                        ends=grown.ends,
                        own=max(ends, start),
                        pages=pages[known:],
                        held=(),
                        relock=False,
                        now=now,
                    )
                )
        return True

    async def _keep(
        self,
        part: Part,
        run: list[t.StoreItem],
        path: c.Grown,
        grown: c.Grown | c.Walked,
        now: int,
    ) -> None:
        """Hand fetched states over to the nodes at whose ends they stand, known or new."""
        nodes, ends = (*path.path, *grown.path), (*path.ends, *grown.ends)
        starts = (0, *ends)
        states: list[tuple[int, int, int, bytes]] = []
        for item in run:
            place = ends.index(item.end)
            states.append((nodes[place], starts[place], item.end, item.pages))
        if states:
            kept: c.Adopted = await part.ref.ask(c.Keep(Tier.L2, tuple(states), now))
            if kept.free:
                await self._room.give_back(Tier.L2, [(part.name, kept.free, 0)])

    async def _stands(self, walked: c.Walked, start: int) -> bool:
        """Say whether L2 holds FULL right up to `start`: nothing may hang below a hole."""
        if not start:
            return True
        for node, end in zip(walked.path, walked.ends, strict=True):
            if end >= start:
                return not await self._parts.base.ref.ask(Unbacked((node,), climb=True))
        return False
