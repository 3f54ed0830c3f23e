"""Requests that wait: asked in tasks of their own, taken in when they are answered.

An answer is held against what the cache could do when it was asked, where nothing else has happened
since; else it must only be right: bytes, invariants, and nothing refused for which there was room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio
import trio.testing
from banyankv import Cache, DeadlineExceeded, Lease, Namespace, NoCapacity, Tier

from .driving import Gate, Rounds
from .engine import Turn
from .history_store import HistoryStore
from .judging import Judge
from .reference import Flat, Key


@dataclass
class Waiting:
    """A request that has not been answered yet, or not been looked at since."""

    scope: trio.CancelScope
    namespace: Namespace
    tokens: tuple[int, ...]
    changes: int
    """Steps that had changed something when it was asked."""
    deadline: float = math.inf
    turn: Turn | None = None
    """Whose extend this is; None for an acquire."""
    count: int = 0
    keep: bool = False
    leaves: bool = False
    """Whether its owner gives everything back at once where it is refused."""
    heard: int = 0
    """The round of the event loop in which it heard that it is refused."""
    before: Flat | None = None
    trees: list[Flat] = field(default_factory=list[Flat])
    """What there was when it was asked, and after each step since: in one of these it is locked."""
    free: dict[str, int] = field(default_factory=dict[str, int])
    stored: int = 0
    """How far an honest store could lift it when it was asked; 0 where L2 may lack the room."""
    lease: Lease | None = None
    error: Exception | None = None
    over: bool = False


class Asking(Judge):
    """A cache and the requests of it that wait: asked in tasks of their own, judged when answered."""

    def __init__(
        self,
        cache: Cache,
        gate: Gate,
        nursery: trio.Nursery,
        history_store: HistoryStore | None = None,
    ) -> None:
        super().__init__(cache, gate, history_store)
        self.nursery = nursery
        self.pending: list[Waiting] = []
        self.changes = 0
        self.refused: list[Waiting] = []
        """Extends that waited and were refused since the last step began, in the order in which they
        heard it: of those that heard it in one round of the event loop, the cache's may be another."""
        self.rounds = Rounds()
        trio.lowlevel.add_instrument(self.rounds)

    async def rest(self) -> None:
        """Let everything come to rest that can. Where the clock stands still, it is moved for what
        waits for it, such as a store that hangs."""
        await trio.testing.wait_all_tasks_blocked()
        if self.held:
            return
        clock = trio.lowlevel.current_clock()
        settling = Waiting(trio.CancelScope(), Namespace(), (), 0)
        self.nursery.start_soon(self._settle, settling)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(500):
            if settling.over or not isinstance(clock, trio.testing.MockClock):
                break
            clock.jump(0.2)
            await trio.testing.wait_all_tasks_blocked()
        while not settling.over:
            assert not isinstance(clock, trio.testing.MockClock), "the cache does not settle"
            await trio.sleep(0.001)
        await trio.testing.wait_all_tasks_blocked()

    async def _settle(self, settling: Waiting) -> None:
        await self.cache.settle()
        settling.over = True

    async def settled(self) -> Flat:
        """Let everything come to rest that can, then hold all invariants against the cache."""
        await self.rest()
        await self.collect()
        self.waiting = len(self.pending)
        at_rest = not (self.held or self.gate.failed or self.waiting)
        flat = await self.judge_moment(at_rest=at_rest)
        for request in self.pending:
            request.trees.append(flat)
        if at_rest and self.history_store and not self.history_store.harmed:
            await self._saved(flat)
        return flat

    async def _saved(self, flat: Flat) -> None:
        stats = await self.cache.stats()
        if not stats.skipped_backups and not any(part.evicted_l2 for part in stats.components):
            assert self.history_store is not None
            lacking = self.history_store.unsaved(self.rules, flat)
            assert not lacking, f"the store lacks what L2 has: {lacking}"

    async def adopt(
        self,
        lease: Lease,
        namespace: Namespace,
        tokens: Sequence[int],
        *locked_in: Flat,
    ) -> Turn:
        """Take a lease in hand; `locked_in` is the tree in which it was locked, by default today's.

        Several, where it is not known in which of them.
        """
        turn = Turn(self.cache, lease, namespace, tokens)
        self.turns.append(turn)
        self.cover(turn, *(locked_in or [await self.look()]))
        turn.verify()
        return turn

    def leave(self, turn: Turn) -> None:
        """Have a turn in hand no longer: its lease is given back, or will be at once."""
        self.turns.remove(turn)
        del self.covers[id(turn)]

    async def collect(self) -> None:
        """Take in the requests that have been answered."""
        for request in [r for r in self.pending if r.over]:
            self.pending.remove(request)
            await self._take(request)

    async def _take(self, request: Waiting) -> Turn | None:
        """Take in one request: what it has got is judged where nothing else has happened meanwhile."""
        if request.turn is not None:
            return await self._take_room(request)
        if isinstance(request.error, DeadlineExceeded):
            assert trio.current_time() >= request.deadline
        elif request.error is not None:
            raise AssertionError(
                f"acquire of {request.tokens}: {request.error!r}"
            ) from request.error
        if request.lease is None:
            return None
        trees = [*request.trees, await self.look()]
        turn = await self.adopt(request.lease, request.namespace, request.tokens, *trees)
        calm = not (self.held or self.gate.failed or self.pending)
        if request.before is not None and calm and request.changes == self.changes:
            self.judge_length(request.before, request.free, turn, host=True)
            self._judge_store(request, request.before, turn)
        return turn

    async def _take_room(self, request: Waiting) -> Turn | None:
        turn = request.turn
        assert turn is not None
        turn.busy = False
        if request.scope.cancelled_caught:
            return turn
        if request.error is None:
            await turn.computed_room(request.keep)
        elif not isinstance(request.error, NoCapacity):
            raise AssertionError(f"extend of {turn.lease}: {request.error!r}") from request.error
        elif request.leaves:
            self.leave(turn)
            return None
        return turn

    def _judge_store(self, request: Waiting, before: Flat, turn: Turn) -> None:
        """An honest store lifts the hit as far as it can, where L1 and L2 have room for that."""
        stored = request.stored
        if self.history_store and not self.history_store.harmed and stored > turn.lease.length:
            key = Key(request.namespace, request.tokens[:stored])
            self.judge_room(before, request.free, key, turn.lease.length)

    # -- requests --------------------------------------------------------------------------------------

    async def ask(
        self, namespace: Namespace, tokens: Sequence[int], deadline: float | None = None
    ) -> Waiting:
        """Begin an acquire in a task of its own."""
        query = tuple(tokens)
        request = Waiting(trio.CancelScope(), namespace, query, self.changes)
        request.trees.append(await self.look())
        if not self.pending:  # else others may be served first
            request.before, request.free = request.trees[0], await self.room()
            request.stored = await self._stored(request.before, namespace, query)
        if deadline is not None:
            request.deadline = trio.current_time() + deadline
        self.nursery.start_soon(self._acquire, request, deadline)
        return request

    async def _stored(self, before: Flat, namespace: Namespace, tokens: tuple[int, ...]) -> int:
        """How far beyond L1 and L2 the store can lift a request, where L2 has room for what it reads.

        What is arriving on L2 is no source yet, and is not read again: there nothing is promised.
        """
        if self.history_store is None:
            return 0
        pages = [Key(namespace, tokens[: end + 1]) for end in range(len(tokens))]
        for name in self.rules.names:
            held = before.held[name, Tier.L2]
            if any(held.get(key) == "arriving" for key in pages):
                return 0
        usage = (await self.cache.stats()).pools["l2"]
        if min(pool.free for pool in usage) * self.rules.page < 2 * len(tokens):
            return 0
        ground = self.referee.ground(before, namespace, tokens)
        end = self.history_store.endpoint(self.rules, ground, namespace, tokens)
        return end if end > self.referee.boundary(before, namespace, tokens) else 0

    async def _acquire(self, request: Waiting, deadline: float | None) -> None:
        with request.scope:
            try:
                request.lease = await self.cache.acquire(
                    list(request.tokens), namespace=request.namespace, deadline=deadline
                )
            except Exception as error:  # noqa: BLE001 - handed to the step that looks at this request
                request.error = error
        request.over = True

    async def acquire(
        self, namespace: Namespace, tokens: Sequence[int], deadline: float | None = None
    ) -> Turn | None:
        """Ask for a lease in the background; judge the answer, or leave it waiting (None)."""
        self.waiting = len(self.pending)
        await self.judge_peek(await self.look(), namespace, tuple(tokens))
        return await self.answered(await self.ask(namespace, tokens, deadline))

    async def answered(self, request: Waiting) -> Turn | None:
        """Let everything come to rest, and take in a request that is answered then."""
        await self.rest()
        if request.over:
            return await self._take(request)
        self.pending.append(request)
        return None

    def ask_room(
        self, turn: Turn, count: int, deadline: float, keep: bool, leaves: bool
    ) -> Waiting:
        """Begin an extend in a task of its own."""
        request = Waiting(
            trio.CancelScope(),
            turn.namespace,
            (),
            self.changes,
            deadline=trio.current_time() + deadline,
            turn=turn,
            count=count,
            keep=keep,
            leaves=leaves,
        )
        turn.busy = True
        self.nursery.start_soon(self._extend, turn, request, deadline)
        return request

    async def _extend(self, turn: Turn, request: Waiting, deadline: float) -> None:
        with request.scope:
            try:
                await turn.lease.extend(request.count, deadline=deadline)
            except NoCapacity as error:
                request.error, request.heard = error, self.rounds.count
                self.refused.append(request)
                if request.leaves:
                    await turn.lease.release()
            except Exception as error:  # noqa: BLE001 - handed to the step that looks at this request
                request.error = error
        request.over = True

    async def judge_refusals(self) -> None:
        """Who was refused last, when deadlines passed, found no room after all that others left."""
        refused, self.refused = self.refused, []
        last = refused[-1] if refused else None
        older = [r for r in self.pending if r.turn is not None and not r.over]
        if last is None or self.held or older:
            return
        if any(r.leaves for r in refused if r.heard == last.heard):
            return
        error = last.error
        assert isinstance(error, NoCapacity)
        possible = (await self.room())[error.pool] + self.evictable(await self.look(), error.pool)
        assert possible < error.needed, f"{error}, yet others have left {possible}"

    async def cancel(self, index: int) -> None:
        """Cancel a request that waits."""
        request = self.pending.pop(index % len(self.pending))
        request.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert request.over, "a cancelled request ends at once"
        await self._take(request)
