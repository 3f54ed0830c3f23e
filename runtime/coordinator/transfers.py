"""Operations in flight between tiers, as the cache actor sees them: promote, backup, save, prefetch.

Each is planned, allocated and started within one operation of the cache actor, so that what was seen
is what is copied; its end comes back as a message. Sources are safe meanwhile: pages that leave
their node stay in quarantine until the operation is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...components import messages as c
from ...components.move_messages import Arrive, Foot, Moved, Unbacked
from ...spec import PAGE_ID_BYTES, Tier
from ...tiers import messages as t
from .. import messages as m
from .facts import PromoteDone
from .parts import Part, Parts
from .reporting import Reporter
from .room import Lack, Room

if TYPE_CHECKING:
    from .acquiring import AcquireFlight

DIRECTIONS = ("l1_l2", "l2_l1", "l2_l3", "l3_l2")
_BATCH_NODES = 64
"""Nodes that one backup takes at most: one batch of copies, and one step to plan it."""


class Operation:
    """One transfer: what it is for, the bytes it moves, and the acquires that wait for it.

    begun --> running --> over: settled, and who waited goes on
    """

    __slots__ = ("_table", "id", "kind", "moved", "nodes", "pages", "started", "target", "waiting")

    def __init__(
        self, table: dict[int, Operation], id: int, kind: str, target: Tier, started: int
    ) -> None:
        self._table = table
        self.id = id
        self.started = started
        self.pages = 0
        self.kind = kind
        self.target = target
        self.nodes: tuple[int, ...] = ()
        self.moved = 0
        self.waiting: dict[AcquireFlight, None] = {}

    def join(self, flight: AcquireFlight) -> None:
        """Have an acquire wait for the end."""
        self.waiting[flight] = None

    def leave(self, flight: AcquireFlight) -> None:
        """Let an acquire wait for it no longer."""
        self.waiting.pop(flight, None)

    def over(self) -> None:
        """End: it is in flight no more, and who waits hears of it."""
        del self._table[self.id]
        for flight in self.waiting:
            flight.landed(self)

    def split(self, node: int, upper: int) -> None:
        """Let what is on its way for a node be so for its upper half too."""
        if node in self.nodes:
            self.nodes = (upper, *self.nodes)


class Transfers:
    """Start transfers and settle what they leave; used inside the cache actor's operations only.

    `moved_bytes` counts what was copied, by direction; `skipped` backups found no room on L2.
    """

    def __init__(
        self, parts: Parts, room: Room, page_bytes: tuple[int, ...], report: Reporter
    ) -> None:
        self._parts = parts
        self._report = report
        self._due = room.due
        self._room = room
        self._page_bytes = page_bytes
        self._last_op = 0
        self.operations: dict[int, Operation] = {}
        self.promoted = [0] * len(parts.all)
        self.moved_bytes: dict[str, int] = dict.fromkeys(DIRECTIONS, 0)
        self.skipped_backups = 0

    def begin(self, kind: str, target: Tier) -> Operation:
        """Register a new operation."""
        self._last_op += 1
        operation = self.operations[self._last_op] = Operation(
            self.operations, self._last_op, kind, target, self._report.now()
        )
        return operation

    def due(self) -> int:
        """Count the nodes that are to be backed up or saved."""
        return len(self._due)

    def quiet(self) -> bool:
        """Say whether nothing is under way between tiers, nor due."""
        return not (self.operations or len(self._due))

    def busy(self, kind: str) -> bool:
        """Say whether an operation of a kind is in flight."""
        return any(operation.kind == kind for operation in self.operations.values())

    # -- L2 to L1 -----------------------------------------------------------------------------------

    async def promote(
        self,
        missing: list[tuple[Part, tuple[c.NodePages, ...]]],
        rooms: tuple[bytes, ...],
    ) -> Operation:
        """Start to bring payload to the L1 pages that were taken for it.

        The nodes are locked, so making room has not taken what is waited for.
        """
        operation = self.begin("promote", Tier.L1)
        moves: list[t.Move] = []
        for (part, nodes), pages in zip(missing, rooms, strict=True):
            ids = tuple(node for node, _ in nodes)
            source = await part.ref.ask(Arrive(operation.id, ids, Tier.L1, pages))
            moves.append(t.Move(part.name, source, pages))
            self.promoted[part.index] += len(pages) // PAGE_ID_BYTES
            if part.base:
                operation.nodes = ids
        await self._start(operation, Tier.L2, Tier.L1, moves)
        return operation

    async def _start(
        self, operation: Operation, source: Tier, target: Tier, moves: list[t.Move]
    ) -> None:
        operation.pages = sum(len(move.source) for move in moves) // PAGE_ID_BYTES
        operation.moved = sum(
            len(move.source)
            // PAGE_ID_BYTES
            * self._page_bytes[self._parts.by_name[move.component].index]
            for move in moves
        )
        await self._parts.below.ask(
            m.Transfer(operation.id, source, target, tuple(moves), self._room.fence)
        )

    # -- L1 to L2 -----------------------------------------------------------------------------------

    async def backup(self) -> None:
        """Start to copy to L2 what was published since, root first, as far as L2 has room.

        What finds only room that is coming stays due; what finds none is skipped.
        """
        batch = list(self._due.dirty)[:_BATCH_NODES]
        for node in batch:
            del self._due.dirty[node]
        base = self._parts.base
        chain: dict[int, int] = {}
        for node in batch:
            for id, pages in (await base.ref.ask(Foot(node))).unbacked:
                chain.setdefault(id, pages)
        operation = self.begin("backup", Tier.L2)
        moves: list[t.Move] = []
        backed = await self._back(operation, base, tuple(chain.items()), moves)
        nodes = operation.nodes = tuple(dict.fromkeys((*batch, *backed)))
        for part in self._parts.auxiliary:
            found = await part.ref.ask(Unbacked(nodes))
            # L2 keeps nothing of a node whose FULL it does not keep.
            found = tuple(
                [pair for pair in found if not await base.ref.ask(c.Lacks(pair[0], Tier.L2))]
            )
            await self._back(operation, part, found, moves)
        if moves:
            await self._start(operation, Tier.L1, Tier.L2, moves)
        else:
            self._backed(operation)
            operation.over()

    def _backed(self, operation: Operation) -> None:
        """Let nodes that were due for a backup be due for a save: whatever joined them, if anything.

        The store is asked what of them it lacks, so that nothing goes there twice.
        """
        if self._parts.store is not None:
            self._due.save(operation.nodes)

    async def _back(
        self,
        operation: Operation,
        part: Part,
        found: tuple[tuple[int, int], ...],
        moves: list[t.Move],
    ) -> tuple[int, ...]:
        """Allocate and mark what fits, from the root down; answer the nodes."""
        while found:
            want = ((part.name, sum([pages for _, pages in found])),)
            got: tuple[bytes, ...] | Lack | None = await self._room.take_free(Tier.L2, want)
            if got is None:
                got = await self._room.take(Tier.L2, want, await self._pins(found))
            if isinstance(got, Lack):
                found, rest = self._fitting(found, got.possible)
                if got.coming:
                    self._due.postpone(node for node, _ in rest)
                else:
                    self.skipped_backups += 1
                continue
            nodes = tuple(node for node, _ in found)
            source = await part.ref.ask(Arrive(operation.id, nodes, Tier.L2, got[0]))
            moves.append(t.Move(part.name, source, got[0]))
            return nodes
        return ()

    @staticmethod
    def _fitting(
        found: tuple[tuple[int, int], ...], room: int
    ) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
        """Divide nodes into those, from the first on, that fit into so many pages, and the rest."""
        fits = 0
        for _, pages in found:
            room -= pages
            if room < 0:
                break
            fits += 1
        return found[:fits], found[fits:]

    async def _pins(self, found: tuple[tuple[int, int], ...]) -> frozenset[int]:
        """Answer the nodes whose L2 copies must stay while room is made for these: their root paths."""
        pinned: set[int] = set()
        for node, _ in found:
            if node not in pinned:
                pinned.update((await self._parts.tree.ask(c.Ancestry(node))).path)
        return frozenset(pinned)

    def follow_split(self, node: int, upper: int) -> None:
        """Let what is due or on its way for a node hold for its upper half too."""
        self._due.split(node, upper)
        for operation in self.operations.values():
            operation.split(node, upper)

    def _tell(self, operation: Operation, error: str) -> None:
        """Tell the observer of a promotion, for each sampled request that waits for it."""
        if operation.kind == "promote":
            for flight in operation.waiting:
                if flight.trace is not None:
                    self._report.done(
                        PromoteDone,
                        operation.started,
                        flight.trace,
                        op=operation.id,
                        pages=operation.pages,
                        error=error,
                    )

    async def transferred(self, msg: m.Transferred) -> None:
        """Settle a transfer: presence, quarantines, and what a failed arrival leaves hanging."""
        operation = self.operations[msg.op]
        self._tell(operation, msg.error)
        if msg.ok:
            verb = "l1_l2" if operation.target == Tier.L2 else "l2_l1"
            self.moved_bytes[verb] += operation.moved
        else:
            # Who waited lets go first: what hangs below a failed arrival must not be locked.
            for flight in tuple(operation.waiting):
                await flight.let_go()
        await self.settle(operation, ok=msg.ok)
        if not msg.ok:
            await self._cut_off(operation)
        elif operation.kind == "backup":
            self._backed(operation)
        operation.over()

    async def settle(self, operation: Operation, *, ok: bool) -> None:
        """End the marks of an operation and free what was waiting for its end."""
        for part in self._parts.all:
            freed = await part.ref.ask(Moved(operation.id, ok))
            if freed.free:
                await self._room.give_back(operation.target, [(part.name, freed.free, 0)])
            for tier, pages in freed.late:
                await self._room.give_back(Tier(tier), [(part.name, pages, 0)])
        await self._room.over(operation.id)

    async def _cut_off(self, operation: Operation) -> None:
        """Drop what stands on a failed arrival of FULL on its tier: nothing may stand on a hole.

        That is all that its nodes and those below hold there, whoever brought it, also what is still
        arriving by other operations.
        """
        base, tree = self._parts.base, self._parts.tree
        for node in operation.nodes:
            if await base.ref.ask(c.Lacks(node, operation.target)):
                below = await tree.ask(c.Subtree(node))
                await self._room.drop((*reversed(below), node), operation.target)
        await self._room.reap(reversed(operation.nodes))
