"""The whole world of the component tests: what `Reuse` does, and copies, evictions and drops.

Every method drives the actors by one step, as the cache would, and asserts that what they answer is
what the model says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...components import messages as m
from ...components.move_messages import (
    Arrive,
    BackupPath,
    Dead,
    Drop,
    Evict,
    Freed,
    Moved,
    Read,
    Unbacked,
)
from ...spec import Tier
from .ground import BOTH, Held, Lease, Node, pack, unpack
from .reuse import Reuse


class World(Reuse):
    """Copy between tiers, evict and drop."""

    # -- between tiers ----------------------------------------------------------------------------------

    def _begin(self, tier: Tier) -> int:
        self.last_op += 1
        self.ops[self.last_op] = tier
        return self.last_op

    def arrive(self, nodes: Sequence[Node], tier: Tier) -> int:
        """Start to fill nodes from what the other tier holds; return the operation."""
        op = self._begin(tier)
        units = [unit for node in nodes for unit in self.units(node)]
        pages = self.new_pages(len(units))
        source = self.actor.arrive(Arrive(op, tuple(n.id for n in nodes), tier, pack(pages)))
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
            needs = self.actor.backup_path(BackupPath(path[-1].id))
            found = needs.unbacked
            expected = [at for at in path if at.prefix not in l2]
            coming = [at.id for at in expected if at.prefix in l1 and l1[at.prefix].writer]
            if coming:
                assert needs.hole == coming[-1]
                return None
            assert needs.hole is None
        else:
            found = self.actor.unbacked(Unbacked(walked.path))
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
        answer = self.actor.read(Read(op, node, start * self.page, end * self.page))
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
        freed = self.actor.moved(Moved(op, ok))
        expected_free: list[int] = []
        gone: set[str] = set()
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
        """Return the nodes whose payload may go now."""
        held, locks = self.held[tier], self.locks()
        found: list[Node] = []
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
        freed = self.actor.evict(Evict(tier, pages, pinned))
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
        self._left(freed, tier, left, forgotten=True)
        return [nodes[id].prefix for id in freed.nodes]

    def _leave(self, node: Node, tier: Tier) -> tuple[set[int], list[int]]:
        taken = [self.held[tier].pop(unit) for unit in self.units(node)]
        return set(taken[-1].users()), [held.page for held in taken]

    def _left(
        self,
        freed: Freed,
        tier: Tier,
        left: list[tuple[set[int], list[int]]],
        *,
        forgotten: bool = False,
    ) -> None:
        """Compare what an answer says of pages with who used them, and bury the dead."""
        assert unpack(freed.free) == [page for users, pages in left if not users for page in pages]
        assert [(op, unpack(pages)) for op, pages in freed.pending] == [
            (next(iter(users)), pages) for users, pages in left if len(users) == 1
        ]
        self.shared += [(tier, users, tuple(pages)) for users, pages in left if len(users) > 1]
        nodes = self.nodes()
        bare = [id for id in freed.nodes if all(nodes[id].prefix not in h for h in self.held)]
        assert list(freed.gone) == bare
        assert freed.pages == sum(len(pages) for _, pages in left)
        assert freed.lost == sum(len(self.units(nodes[id])) for id in bare)
        self._bury(freed.gone, forgotten=forgotten)

    def drop(self, ids: Sequence[int], tier: Tier) -> None:
        """Drop what is not locked of these nodes."""
        nodes, locks = self.nodes(), self.locks()
        freed = self.actor.drop(Drop(tuple(ids), tier))
        going = [
            nodes[id]
            for id in ids
            if nodes[id].prefix in self.held[tier]
            and not (tier == Tier.L1 and any(locks[unit] for unit in self.units(nodes[id])))
        ]
        assert freed.nodes == tuple(node.id for node in going)
        self._left(freed, tier, [self._leave(node, tier) for node in going])

    def _bury(self, ids: Sequence[int], *, forgotten: bool = False) -> None:
        """Let nodes that FULL keeps nowhere leave the tree."""
        if not self.component.base or not ids:
            return
        nodes = self.nodes()
        assert self.actor.dead(Dead(tuple(ids))) == (() if forgotten else tuple(ids))
        if not forgotten:
            self.actor.drop(Drop((), Tier.L1, gone=tuple(ids)))
        self.tree.remove(m.Remove(tuple(ids)))
        for id in ids:
            for unit in nodes[id].pages:
                del self.uses[unit]
