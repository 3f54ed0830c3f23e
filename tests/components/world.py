"""A tree and one component's actor, driven side by side with a page-granular model.

The model knows no nodes: it maps prefixes to what is held, locked and used there, one entry a page.
So a split changes nothing in it, and whatever the actors answer before and after one must agree.

A prompt is a string; each letter stands for one whole page of equal tokens. Every method drives the
actors by one step, as the cache would, and asserts that what they answer is what the model says.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from banyankv.components import messages as m
from banyankv.components.component import ComponentActor
from banyankv.components.contract import TreeComponent
from banyankv.components.tree import UnifiedTreeCore
from banyankv.spec import Tier

SPACE = b"space"
BOTH = (Tier.L1, Tier.L2)


def pack(pages: Iterable[int]) -> bytes:
    return b"".join(struct.pack("<i", page) for page in pages)


def unpack(pages: bytes) -> list[int]:
    return [page for (page,) in struct.iter_unpack("<i", pages)]


@dataclass
class Use:
    stamp: int
    born: int
    previous: int = 0
    hits: int = 0
    priority: int = 0

    def touch(self, now: int) -> None:
        self.previous, self.stamp = self.stamp, now


KEYS: dict[str, Callable[[Use], Any]] = {
    "lru": lambda use: use.stamp,
    "lru_k": lambda use: (use.previous, use.stamp),
    "lfu": lambda use: (use.hits, use.stamp),
    "slru": lambda use: (use.hits >= 2, use.stamp),
    "fifo": lambda use: use.born,
    "priority": lambda use: (use.priority, use.stamp),
}


@dataclass
class Held:
    """What one page of a prefix (or the state at its end) has on one tier."""

    page: int
    writer: int = 0
    readers: set[int] = field(default_factory=set)

    def users(self) -> set[int]:
        return {self.writer} if self.writer else self.readers


@dataclass
class Lease:
    """A lock: the prefix it stands for, the anchor, and the prefixes whose pages it counts."""

    prompt: str
    node: int
    receipts: tuple[m.Receipt, ...]
    cover: set[str]
    at: int


@dataclass(frozen=True)
class Node:
    """A node as the tree tells it: its whole prefix, and its first and last page."""

    id: int
    parent: int
    prefix: str
    start: int

    @property
    def end(self) -> int:
        return len(self.prefix)

    @property
    def pages(self) -> list[str]:
        return [self.prefix[: k + 1] for k in range(self.start, self.end)]


class World:
    def __init__(
        self,
        component: TreeComponent,
        policy: Any = "lru",
        key: Callable[[Use], Any] | None = None,
    ) -> None:
        self.component = component
        self.page = component.page_size
        self.tree = UnifiedTreeCore(self.page)
        self.actor = ComponentActor(component, policy)
        self.key = key or KEYS[policy]
        self.held: tuple[dict[str, Held], dict[str, Held]] = ({}, {})
        self.uses: dict[str, Use] = {}
        self.leases: list[Lease] = []
        self.ops: dict[int, Tier] = {}
        self.shared: list[tuple[Tier, set[int], tuple[int, ...]]] = []
        self.now = 0
        self.last_page = 0
        self.last_op = 0

    # -- reading the tree -----------------------------------------------------------------------------

    def tokens(self, letters: str) -> bytes:
        return b"".join(struct.pack("<I", ord(letter)) * self.page for letter in letters)

    def nodes(self) -> dict[int, Node]:
        views = {view.id: view for view in self.tree.nodes(m.Nodes())}
        found: dict[int, Node] = {}

        def visit(view: m.NodeView) -> Node:
            if view.id not in found:
                before = visit(views[view.parent]).prefix if view.parent else ""
                letters = "".join(map(chr, struct.unpack(f"<{len(view.key) // 4}I", view.key)))
                prefix = before + letters[:: self.page]
                found[view.id] = Node(view.id, view.parent, prefix, view.start // self.page)
            return found[view.id]

        for view in views.values():
            visit(view)
        return found

    def walk(self, prompt: str, start: int = m.ROOT) -> m.Walked:
        return self.tree.walk(m.Walk(SPACE, self.tokens(prompt), start))

    def path(self, node: int) -> list[Node]:
        nodes = self.nodes()
        return [nodes[id] for id in self.tree.ancestry(m.Ancestry(node)).path]

    def children(self, node: int) -> list[Node]:
        return [other for other in self.nodes().values() if other.parent == node]

    def known(self, prompt: str) -> int:
        """Count the pages of a prompt that the tree knows."""
        ends = self.walk(prompt).ends
        return ends[-1] // self.page if ends else 0

    # -- the rule, page by page -------------------------------------------------------------------------

    def needed(self, pages: int) -> list[int]:
        """The indexes of the pages that a boundary needs some token of."""
        ranges = self.component.need(pages * self.page)
        tokens = {token for start, end in ranges for token in range(start, end)}
        return sorted({token // self.page for token in tokens})

    def units(self, node: Node) -> list[str]:
        """The prefixes under which the model keeps what this node may hold."""
        return [node.prefix] if self.component.snapshot else node.pages

    def cover(self, node: int) -> list[Node]:
        """The nodes that the boundary at the end of `node` needs."""
        path = self.path(node)
        if self.component.snapshot:
            return path[-1:]
        needed = self.needed(path[-1].end)
        return [at for at in path if any(at.start <= page < at.end for page in needed)]

    def locks(self) -> Counter[str]:
        return Counter(unit for lease in self.leases for unit in lease.cover)

    # -- splits -----------------------------------------------------------------------------------------

    def split(self, node: int, at: int) -> int:
        upper = self.tree.split(m.Split(node, at * self.page))
        self.actor.split_done(m.SplitDone(node, upper, at * self.page))
        return upper

    def boundary(self, prompt: str) -> int:
        """Answer the node that ends where a known prefix does, splitting if none does."""
        walked = self.walk(prompt)
        assert walked.ends[-1] == len(prompt) * self.page
        return self.split(walked.path[-1], len(prompt)) if walked.partial else walked.path[-1]

    # -- publishing -------------------------------------------------------------------------------------

    def publish(
        self,
        prompt: str,
        own: int = 0,
        stands: Iterable[int] = (),
        cuts: Iterable[int] = (),
        lease: Lease | None = None,
        priority: int = 0,
    ) -> None:
        """Hand over the pages from `own` on (for a snapshot: states that stand at `stands`)."""
        self.now += 1
        actor, component, l1 = self.actor, self.component, self.held[Tier.L1]
        start = len(lease.prompt) if lease else 0
        parent = lease.node if lease else m.ROOT
        prompt = self._short_of_arrivals(prompt, start, parent)
        if len(prompt) <= start:
            return
        own = start if component.base else min(max(own, start), len(prompt))
        known = max(self.known(prompt), start)
        stands = sorted(at for at in stands if start < at <= len(prompt))
        if known > start:
            self.boundary(prompt[:known])
        for at in stands if component.snapshot else (own,):
            if start < at < known:
                inside = self.walk(prompt[: at + 1]).path[-1]
                if component.snapshot or actor.lacks(m.Lacks(inside, Tier.L1)):
                    self.boundary(prompt[:at])
        old = self.walk(prompt[start:known], parent)
        path, ends = old.path, old.ends
        grown = m.Grown((), ())
        if known < len(prompt):
            places = {*cuts, *(stands if component.snapshot else (own,))}
            insert = m.Insert(
                SPACE,
                self.tokens(prompt[known:]),
                path[-1] if path else parent,
                tuple(at * self.page for at in sorted(places) if known < at < len(prompt)),
            )
            grown = self.tree.insert(insert)
            path, ends = (*path, *grown.path), (*ends, *grown.ends)
        mine = self.new_pages(len(stands) if component.snapshot else len(prompt) - own)
        states: dict[int, int] = dict(zip(stands, mine, strict=True)) if component.snapshot else {}
        at_end = dict(zip(ends, path, strict=True))
        adopted = actor.adopt(
            m.Adopt(
                tier=Tier.L1,
                parent=parent,
                path=path,
                ends=ends,
                grown=len(grown.path),
                own=own * self.page,
                pages=b"" if component.snapshot else pack(mine),
                states=tuple((at_end[at * self.page], pack([s])) for at, s in states.items()),
                held=lease.receipts if lease else (),
                relock=lease is not None,
                now=self.now,
                priority=priority,
            )
        )
        self._used(prompt, start, priority)
        offered = states or dict(zip(range(own + 1, len(prompt) + 1), mine, strict=False))
        free, patches, gained = [], {}, set()
        for end, page in offered.items():
            unit = prompt[:end]
            if unit in l1:
                free.append(page)
                patches[end - 1] = l1[unit].page
            else:
                l1[unit] = Held(page)
                gained.add(unit)
        assert unpack(adopted.free) == free
        told = {
            at // self.page + k: page
            for at, pages in adopted.patches
            for k, page in enumerate(unpack(pages))
        }
        assert told == ({} if component.snapshot else patches)
        nodes = self.nodes()
        assert {u for id in adopted.attached for u in self.units(nodes[id])} == gained
        if lease is not None:
            self._relocked(lease, adopted, prompt, path[-1])

    def _short_of_arrivals(self, prompt: str, start: int, parent: int) -> str:
        walked = self.walk(prompt[start:], parent)
        stop = self.actor.first_arriving(m.Arriving(walked.path))
        nodes = self.nodes()
        l1 = self.held[Tier.L1]
        arriving = [
            any(unit in l1 and l1[unit].writer for unit in self.units(nodes[id]))
            for id in walked.path
        ]
        assert stop == (arriving.index(True) if True in arriving else len(arriving))
        return prompt if stop == len(arriving) else prompt[: nodes[walked.path[stop]].start]

    def _used(self, prompt: str, start: int, priority: int) -> None:
        for k in range(start, len(prompt)):
            use = self.uses.get(prompt[: k + 1])
            if use is None:
                use = self.uses[prompt[: k + 1]] = Use(self.now, self.now)
            else:
                use.touch(self.now)
            use.priority = max(use.priority, priority)

    def _relocked(self, lease: Lease, adopted: m.Adopted, prompt: str, node: int) -> None:
        lease.receipts, lease.prompt, lease.node = adopted.receipts, prompt, node
        lease.at = max(lease.at, len(prompt) * self.page)
        if not self.component.snapshot:
            cover = self.cover(node)
            lease.cover = {unit for at in cover for unit in at.pages}
            assert adopted.low_end <= min((at.end * self.page for at in cover), default=1 << 30)

    def new_pages(self, count: int) -> list[int]:
        self.last_page += count
        return list(range(self.last_page - count + 1, self.last_page + 1))

    # -- reuse ------------------------------------------------------------------------------------------

    def usable(self, unit: str, *, host: bool) -> bool:
        l1, l2 = (held.get(unit) for held in self.held)
        if l1 is not None and (host or not l1.writer):
            return True
        return host and l2 is not None and not l2.writer

    def reach(self, prompt: str, limit: int, *, host: bool) -> m.Reached:
        """Ask for the deepest good boundary, and compare with all of them tried one by one."""
        walked = self.walk(prompt)
        reached = self.actor.reach(
            m.Reach(walked.path, walked.ends, limit * self.page, walked.partial, host)
        )
        ends = [end // self.page for end in walked.ends if end <= limit * self.page]

        def lacking(end: int, *, host: bool) -> list[str]:
            if self.component.snapshot:
                whole = not (walked.partial and end * self.page == walked.ends[-1])
                return [] if whole and self.usable(prompt[:end], host=host) else [prompt[:end]]
            units = [prompt[: page + 1] for page in self.needed(end)]
            return [unit for unit in units if not self.usable(unit, host=host)]

        best = max((end for end in ends if not lacking(end, host=host)), default=0)
        assert reached.boundary == best * self.page
        assert reached.resident == (not best or not lacking(best, host=False))
        if best == max(ends, default=0):
            assert reached.hole == 0
        else:
            hole = self.nodes()[reached.hole]
            assert any(unit[: hole.end][hole.start :] for unit in lacking(max(ends), host=host))
            if not self.component.snapshot:
                assert not any(self.usable(unit, host=host) for unit in hole.pages)
        return reached

    def lock(self, prompt: str, priority: int = 0) -> tuple[Lease, m.Locked]:
        self.now += 1
        node = self.boundary(prompt)
        cover = self.cover(node)
        locked = self.actor.lock(m.Lock(node, self.now, priority))
        for at in cover:
            for unit in at.pages:
                self.uses[unit].touch(self.now)
                self.uses[unit].hits += 1
                self.uses[unit].priority = max(self.uses[unit].priority, priority)
        units = {unit for at in cover for unit in self.units(at)}
        lease = Lease(prompt, node, locked.receipts, units, len(prompt) * self.page)
        self.leases.append(lease)
        self._tabled(lease, locked)
        low = min((at.end for at in cover), default=len(prompt))
        assert locked.low_end == low * self.page
        return lease, locked

    def table(self, lease: Lease) -> m.Locked:
        answer = self.actor.table(m.Table(lease.node, lease.receipts))
        assert answer.receipts == lease.receipts
        self._tabled(lease, answer)
        return answer

    def _tabled(self, lease: Lease, answer: m.Locked) -> None:
        """Compare a page table with what each needed page holds."""
        l1, prompt = self.held[Tier.L1], lease.prompt
        cover = self.cover(lease.node)
        lacking = {at.id for at in cover if self.units(at)[-1] not in l1}
        size = {at.id: 1 if self.component.snapshot else at.end - at.start for at in cover}
        assert sorted(answer.missing) == sorted((id, size[id]) for id in lacking)
        needed = self.needed(len(prompt))
        units = [prompt] if self.component.snapshot else [prompt[: k + 1] for k in needed]
        writers = {l1[unit].writer for unit in units if unit in l1} - {0}
        assert set(answer.joins) == writers
        first = needed[0] if needed else len(prompt)
        assert answer.start == first * self.page
        if lacking or writers:
            assert answer.pages == b""
        elif self.component.snapshot:
            assert unpack(answer.pages) == [l1[prompt].page]
        else:
            expected = [
                l1[prompt[: k + 1]].page if k in needed else -1 for k in range(first, len(prompt))
            ]
            assert unpack(answer.pages) == expected

    def unlock(self, lease: Lease) -> None:
        self.leases.remove(lease)
        self.actor.unlock(m.Unlock(lease.receipts))

    def recede(self, lease: Lease, tokens: int) -> None:
        """Let the lease's request go on by so many tokens, and its window with it."""
        lease.at += tokens
        start = self.component.keep_from(lease.at)
        receded = self.actor.recede(m.Recede(lease.receipts, start))
        lease.receipts = receded.receipts
        nodes = [at for at in self.path(lease.node) if lease.cover.issuperset(at.pages)]
        kept = [at for at in nodes if at.end * self.page > start]
        lease.cover = {unit for at in kept for unit in at.pages}
        if kept:
            assert receded.low_end <= kept[0].end * self.page

    # -- between tiers ----------------------------------------------------------------------------------

    def _begin(self, tier: Tier) -> int:
        self.last_op += 1
        self.ops[self.last_op] = tier
        return self.last_op

    def arrive(self, nodes: Sequence[Node], tier: Tier) -> int:
        """Start to fill nodes from what the other tier holds; answer the operation."""
        op = self._begin(tier)
        units = [unit for node in nodes for unit in self.units(node)]
        pages = self.new_pages(len(units))
        source = self.actor.arrive(m.Arrive(op, tuple(n.id for n in nodes), tier, pack(pages)))
        below = self.held[1 - tier]
        assert unpack(source) == [below[unit].page for unit in units]
        for unit, page in zip(units, pages, strict=True):
            below[unit].readers.add(op)
            self.held[tier][unit] = Held(page, writer=op)
        return op

    def backup(self, prompt: str) -> int | None:
        """Copy to L2 what of a path L1 has and L2 lacks; None where there is nothing to do."""
        walked = self.walk(prompt)
        l1, l2 = self.held
        path = [self.nodes()[id] for id in walked.path]
        if not path:
            return None
        if self.component.base:
            found = self.actor.unbacked(m.Unbacked((path[-1].id,), climb=True))
            expected = [at for at in path if at.prefix not in l2]
            if any(l1[at.prefix].writer for at in expected if at.prefix in l1):
                return None
        else:
            found = self.actor.unbacked(m.Unbacked(walked.path))
            expected = [
                at
                for at in path
                if at.prefix in l1 and not l1[at.prefix].writer and at.prefix not in l2
            ]
        assert found == tuple((at.id, len(self.units(at))) for at in expected)
        return self.arrive(expected, Tier.L2) if expected else None

    def promote(self, lease: Lease, locked: m.Locked) -> int | None:
        """Bring what a lease lacks from L2, or let the lease go where L2 lacks it as well."""
        nodes = self.nodes()
        missing = [nodes[id] for id, _ in locked.missing]
        l2 = self.held[Tier.L2]
        if any(at.prefix not in l2 or l2[at.prefix].writer for at in missing):
            self.unlock(lease)
            return None
        return self.arrive(missing, Tier.L1) if missing else None

    def read(self, prompt: str, start: int) -> int:
        """Read the longest present tail of pages [start, end of the prompt) on L2."""
        op = self._begin(Tier.L2)
        l2 = self.held[Tier.L2]
        node = self.walk(prompt).path[-1]
        end = len(prompt)
        answer = self.actor.read(m.Read(op, node, start * self.page, end * self.page))
        if self.component.snapshot:
            tail = [prompt] if self._readable(prompt) and self.nodes()[node].end == end else []
            assert answer.start == end * self.page
        else:
            first = end
            while first > start and self._readable(prompt[:first]):
                first -= 1
            tail = [prompt[: k + 1] for k in range(first, end)]
            assert answer.start == first * self.page
        assert unpack(answer.pages) == [l2[unit].page for unit in tail]
        for at in self.nodes().values():  # a node is read as a whole
            if set(tail) & set(self.units(at)):
                for unit in self.units(at):
                    l2[unit].readers.add(op)
        return op

    def _readable(self, unit: str) -> bool:
        held = self.held[Tier.L2].get(unit)
        return held is not None and not held.writer

    def end(self, op: int, *, ok: bool) -> None:
        """End an operation; who waits for an arrival that failed lets go first."""
        tier = self.ops.pop(op)
        nodes = self.nodes()
        ended = {u for u, held in self.held[tier].items() if held.writer == op}
        if not ok:
            ok = self.component.base and any(
                u in self.held[tier] and u not in ended and any(u.startswith(e) for e in ended)
                for u in self.held[tier]
            )
        if not ok:
            for lease in [lease for lease in self.leases if lease.cover & ended]:
                self.unlock(lease)
        freed = self.actor.moved(m.Moved(op, ok))
        expected_free, gone = [], set()
        for side in BOTH:
            for unit, held in list(self.held[side].items()):
                held.readers.discard(op)
                if held.writer == op:
                    held.writer = 0
                    if not ok:
                        expected_free.append(held.page)
                        del self.held[side][unit]
                        if unit not in self.held[1 - side]:
                            gone.add(unit)
        late: list[tuple[Tier, int]] = []
        for side, users, pages in self.shared:
            users.discard(op)
            late += [(side, page) for page in pages if not users]
        self.shared = [entry for entry in self.shared if entry[1]]
        assert sorted(unpack(freed.free)) == sorted(expected_free)
        assert sorted((t, p) for t, ps in freed.late for p in unpack(ps)) == sorted(late)
        assert {u for id in freed.nodes for u in self.units(nodes[id])} == ended
        assert {u for id in freed.gone for u in self.units(nodes[id])} == gone
        assert freed.pending == ()
        self._bury(sorted(freed.gone, key=lambda id: -nodes[id].end))

    # -- dropping ---------------------------------------------------------------------------------------

    def candidates(self, tier: Tier) -> list[Node]:
        """The nodes whose payload may go now."""
        held, locks = self.held[tier], self.locks()
        found = []
        for node in self.nodes().values():
            units = self.units(node)
            if units[-1] not in held or held[units[-1]].writer:
                continue
            if tier == Tier.L1 and any(locks[unit] for unit in units):
                continue
            if self.component.base and any(
                child.prefix in held for child in self.children(node.id)
            ):
                continue
            found.append(node)
        return found

    def rank(self, node: Node) -> tuple[Any, int, int]:
        return self.key(self.uses[node.prefix]), node.end, node.id

    def evict(self, tier: Tier, pages: int, pinned: frozenset[int] = frozenset()) -> list[str]:
        """Evict, and check each victim against a sort of all that could have gone at its turn."""
        freed = self.actor.evict(m.Evict(tier, pages, pinned))
        nodes, held = self.nodes(), self.held[tier]
        total, last = 0, 0
        left: list[tuple[set[int], list[int]]] = []
        for id in freed.nodes:
            node = nodes[id]
            able = [other for other in self.candidates(tier) if other.id not in pinned]
            idle = [other for other in able if not held[other.prefix].readers]
            assert node in able
            if idle:
                assert node == min(idle, key=self.rank)
            last = len(self.units(node))
            total += last
            left.append(self._leave(node, tier))
        if total < pages:
            assert not [node for node in self.candidates(tier) if node.id not in pinned]
        assert total - last < pages
        self._left(freed, tier, left)
        return [nodes[id].prefix for id in freed.nodes]

    def _leave(self, node: Node, tier: Tier) -> tuple[set[int], list[int]]:
        taken = [self.held[tier].pop(unit) for unit in self.units(node)]
        return set(taken[-1].users()), [held.page for held in taken]

    def _left(self, freed: m.Freed, tier: Tier, left: list[tuple[set[int], list[int]]]) -> None:
        """Compare what an answer says of pages with who used them, and bury the dead."""
        assert unpack(freed.free) == [page for users, pages in left if not users for page in pages]
        assert [(op, unpack(pages)) for op, pages in freed.pending] == [
            (next(iter(users)), pages) for users, pages in left if len(users) == 1
        ]
        self.shared += [(tier, users, tuple(pages)) for users, pages in left if len(users) > 1]
        nodes = self.nodes()
        bare = [id for id in freed.nodes if all(nodes[id].prefix not in h for h in self.held)]
        assert list(freed.gone) == bare
        self._bury(freed.gone)

    def drop(self, ids: Sequence[int], tier: Tier) -> None:
        """Drop what is not locked of these nodes."""
        nodes, locks = self.nodes(), self.locks()
        freed = self.actor.drop(m.Drop(tuple(ids), (tier,)))
        going = [
            nodes[id]
            for id in ids
            if nodes[id].prefix in self.held[tier]
            and not (tier == Tier.L1 and any(locks[unit] for unit in self.units(nodes[id])))
        ]
        assert freed.nodes == tuple(node.id for node in going)
        self._left(freed, tier, [self._leave(node, tier) for node in going])

    def _bury(self, ids: Sequence[int]) -> None:
        """Let nodes that FULL keeps nowhere leave the tree."""
        if not self.component.base or not ids:
            return
        nodes = self.nodes()
        assert self.actor.dead(m.Dead(tuple(ids))) == tuple(ids)
        self.actor.drop(m.Drop(tuple(ids), (), forget=True))
        self.tree.remove(m.Remove(tuple(ids)))
        for id in ids:
            for unit in nodes[id].pages:
                del self.uses[unit]

    # -- all of it --------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare every record and every running sum with the model."""
        nodes, locks = self.nodes(), self.locks()
        records = {record.id: record for record in self.actor.views(m.Records())}
        assert records.keys() == nodes.keys()
        payloads = [0, 0]
        for id, node in nodes.items():
            record, units = records[id], self.units(node)
            assert (record.start, record.end) == (node.start * self.page, node.end * self.page)
            assert {locks[unit] for unit in units} == {record.lock}
            assert {self.uses[unit].stamp for unit in node.pages} == {record.stamp}
            for tier, pages, writer in (
                (Tier.L1, record.l1, record.l1_writer),
                (Tier.L2, record.l2, record.l2_writer),
            ):
                held = [self.held[tier].get(unit) for unit in units]
                assert [h.page for h in held if h] == unpack(pages or b"")
                assert (pages is None) == (None in held)
                assert {h.writer for h in held if h} <= {writer}
                payloads[tier] += pages is not None
        l1, l2 = self.held
        locked = sum(1 for unit in l1 if locks[unit])
        assert self.actor.ledger(m.Ledger()) == (
            m.Held(len(l1), locked, payloads[0]),
            m.Held(len(l2), 0, payloads[1]),
        )
        for tier in BOTH:
            told = unpack(self.actor.shared(m.Shared(tier)))
            assert sorted(told) == sorted(p for t, _, pages in self.shared if t == tier for p in pages)
