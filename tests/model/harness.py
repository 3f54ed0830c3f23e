"""A cache in a thread of its own, watched: every call is followed by the referee's look at all of it.

Hypothesis drives its state machines from plain functions, so `TrioThread` runs trio beside it and
`Bench` holds what lives there: the cache, its gate on copies, the turns in hand and the requests that
wait. `Bench.settled` is called after every step.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import trio
import trio.testing
from banyankv import (
    Cache,
    CacheConfig,
    Lease,
    Namespace,
    NoCapacity,
    Tier,
    TierUnavailable,
    open_cache,
)
from banyankv.runtime.inspection import Inspection

from .engine import Turn
from .reference import Flat, Key, Referee, State, floor

T = TypeVar("T")

NOBODY = Namespace()

Lock = tuple[str, Key]
"""A component and a page."""


def len_of(key: Key) -> int:
    """The boundary that a key names."""
    return len(key.prefix)


def decode(encoded: bytes) -> Namespace:
    """Undo `Namespace.encode`: the tree reports its namespaces framed."""
    fields: list[str | None] = []
    at = 0
    while at < len(encoded):
        if encoded[at] == 0:
            fields.append(None)
            at += 1
        else:
            end = at + 9 + int.from_bytes(encoded[at + 1 : at + 9], "little")
            fields.append(encoded[at + 9 : end].decode())
            at = end
    return Namespace(*fields)


def flatten(seen: Inspection, page: int) -> Flat:
    """Cut the tree's nodes into the pages that the referee knows."""
    held: State = {(part.name, tier): {} for part in seen.components for tier in (Tier.L1, Tier.L2)}
    ends: set[Key] = set()
    known: set[Key] = set()
    locks: dict[tuple[str, Key], int] = {}
    node_of: dict[Key, tuple[int, int]] = {}
    records = {part.name: {r.id: r for r in part.records} for part in seen.components}
    prefixes: dict[int, Key] = {}
    for node in sorted(seen.nodes, key=lambda node: (node.start, node.end)):
        above = prefixes[node.parent].prefix if node.start else ()
        edge = tuple(np.frombuffer(node.key, "<u4").tolist())
        last = prefixes[node.id] = Key(decode(node.namespace), above + edge)
        assert len(last.prefix) == node.end, "a node's tokens reach from its start to its end"
        if node.end == 0:
            continue
        ends.add(last)
        for end in range(node.start + page, node.end + 1, page):
            key = Key(last.namespace, last.prefix[:end])
            assert key not in known, f"two nodes hold the page {key}"
            known.add(key)
            node_of[key] = (node.start, node.end)
            for part in seen.components:
                record = records[part.name].get(node.id)
                if record is None or (part.snapshot and end != node.end):
                    continue
                if record.l1 is not None:
                    held[part.name, Tier.L1][key] = "arriving" if record.l1_writer else "present"
                if record.l2 is not None:
                    held[part.name, Tier.L2][key] = "arriving" if record.l2_writer else "present"
                if record.lock:
                    locks[part.name, key] = record.lock
    return Flat(held, frozenset(ends), frozenset(known), locks, node_of)


class Gate:
    """Stands before the copy engine: lets batches through, holds them, or makes them fail."""

    def __init__(self) -> None:
        self._open = trio.Event()
        self._open.set()
        self.failing = 0
        self.waiting = 0

    @property
    def stalled(self) -> bool:
        """Whether copies are held."""
        return not self._open.is_set()

    def stall(self) -> None:
        """Hold every copy that has not started."""
        if self._open.is_set():
            self._open = trio.Event()

    def let_go(self) -> None:
        """Let all copies go."""
        self._open.set()

    async def __call__(self, *_: object) -> None:
        self.waiting += 1
        try:
            await self._open.wait()
        finally:
            self.waiting -= 1
        if self.failing:
            self.failing -= 1
            raise TierUnavailable("the test lets this copy fail")


class TrioThread:
    """Runs one async main in a thread; `call` runs functions in it and brings back what they raise."""

    def __init__(self, main: Callable[[Callable[[Any], None]], Awaitable[None]]) -> None:
        self._ready = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = threading.Thread(target=self._run, args=(main,), daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def _run(self, main: Callable[[Callable[[Any], None]], Awaitable[None]]) -> None:
        async def run() -> None:
            self._token = trio.lowlevel.current_trio_token()
            await main(self._started)

        try:
            trio.run(run)
        except BaseException as error:  # noqa: BLE001 - raised again by `join`
            self._error = error
        finally:
            self._ready.set()

    def _started(self, value: Any) -> None:
        self._value = value
        self._ready.set()

    @property
    def value(self) -> Any:
        """What main handed over when it had started."""
        return self._value

    def call(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Run an async function in the thread and wait for it."""
        bound = functools.partial(function, *args, **kwargs)
        return trio.from_thread.run(bound, trio_token=self._token)

    def join(self) -> None:
        """Wait for the end of main; raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error


@dataclass
class Waiting:
    """A request that has not been answered yet."""

    what: str
    scope: trio.CancelScope
    lease: Lease | None = None
    error: Exception | None = None
    over: bool = False
    namespace: Namespace = field(default_factory=Namespace)
    tokens: tuple[int, ...] = ()


class Bench:
    """A cache, its turns in hand, and all that the referee holds against it."""

    def __init__(self, cache: Cache, gate: Gate, nursery: trio.Nursery) -> None:
        self.cache = cache
        self.gate = gate
        self.nursery = nursery
        self.config = cache.config
        self.referee = Referee(cache.config.model)
        self.rules = self.referee.rules
        self.turns: list[Turn] = []
        self.pending: list[Waiting] = []
        self.covers: dict[int, dict[str, tuple[Key, int]]] = {}
        """id(turn) -> what its lease locks: per paged component the anchor and the lowest start."""
        self.end = trio.Event()

    # -- looking -------------------------------------------------------------------------------

    async def look(self) -> Flat:
        """The cache as it is, flat."""
        return flatten(await self.cache.inspect(), self.rules.page)

    async def room(self, tier: Tier = Tier.L1) -> dict[str, int]:
        """Free pages of each pool of a tier."""
        return {
            usage.component: usage.free
            for usage in (await self.cache.stats()).pools[tier.name.lower()]
        }

    def evictable(self, flat: Flat, component: str, tier: Tier = Tier.L1) -> int:
        """Pages of one component that no lock holds (all of them, for L2)."""
        pages = flat.pages(component, tier)
        return sum(not (tier == Tier.L1 and flat.locks.get((component, key))) for key in pages)

    # -- what must hold after every step ---------------------------------------------------------

    async def settled(self) -> Flat:
        """Let everything come to rest that can, then hold all invariants against the cache."""
        if self.gate.stalled:
            await trio.testing.wait_all_tasks_blocked()
        else:
            await self.cache.settle()
            await trio.testing.wait_all_tasks_blocked()
        await self.collect()
        await self.cache.check()
        flat = await self.look()
        faults = self.referee.faults(flat, write_through=True)
        assert not faults, faults
        for turn in self.turns:
            turn.verify()
            self._covered(flat, turn)
        self._locks(flat)
        await self._conservation(flat)
        return flat

    def _covered(self, flat: Flat, turn: Turn) -> None:
        full, published = self.rules.names[0], turn.lease.published
        for end in range(self.rules.page, published + 1, self.rules.page):
            key = Key(turn.namespace, tuple(turn.tokens[:end]))
            assert key in flat.pages(full, Tier.L1), f"a live lease lost {key}"

    def _explained(self, flat: Flat) -> tuple[Counter[Lock], Counter[Lock]]:
        """How often each page must at least be locked, and may at most be."""
        must: Counter[Lock] = Counter()
        may: Counter[Lock] = Counter()
        for turn in self.turns:
            for name, (anchor, start) in self.covers[id(turn)].items():
                needed = max(start, self._needed(flat, name, anchor, turn.lease.start(name)))
                for end in range(start + self.rules.page, len(anchor.prefix) + 1, self.rules.page):
                    where = (name, Key(anchor.namespace, anchor.prefix[:end]))
                    may[where] += 1
                    must[where] += end > needed
        return must, may

    def _locks(self, flat: Flat) -> None:
        must, may = self._explained(flat)
        for where in {*may, *flat.locks}:
            count = flat.locks.get(where, 0)
            assert must[where] <= count <= may[where] or (self.pending and count > may[where]), (
                f"{where} is locked {count} times, leases explain {must[where]} to {may[where]}"
            )

    def _needed(self, flat: Flat, name: str, anchor: Key, table: int) -> int:
        """Start of the lowest node that boundary `anchor` needs and the running request still uses."""
        at = len(anchor.prefix)
        low = max(table, floor(self.rules.low(name, at), self.rules.page))
        if low >= at:
            return at
        return flat.node_of[Key(anchor.namespace, anchor.prefix[: low + self.rules.page])][0]

    async def _conservation(self, flat: Flat) -> None:
        private: Counter[str] = Counter()
        for turn in self.turns:
            for name in self.rules.names:
                private[name] += turn.private(name)
        for usage in (await self.cache.stats()).pools["l1"]:
            name = usage.component
            cached = len(flat.pages(name, Tier.L1))
            explained = usage.free + usage.quarantined + cached + private[name]
            assert explained == usage.capacity or (self.pending and explained < usage.capacity), (
                f"{name}: {usage} but {cached} cached and {private[name]} private"
            )
        for usage in (await self.cache.stats()).pools.get("l2", ()):
            cached = len(flat.pages(usage.component, Tier.L2))
            assert usage.free + usage.quarantined + cached == usage.capacity, (usage, cached)

    # -- turns -------------------------------------------------------------------------------------

    def cover(self, flat: Flat, turn: Turn) -> None:
        """Note what the lease of `turn` locks, as the tree stands at this moment: whole nodes, from
        the one where its boundary's need begins."""
        at = turn.lease.published
        anchor = Key(turn.namespace, tuple(turn.tokens[:at]))
        starts = {name: self._needed(flat, name, anchor, 0) for name in self.rules.paged if at}
        self.covers[id(turn)] = {n: (anchor, start) for n, start in starts.items() if start < at}

    async def _adopt(self, lease: Lease, namespace: Namespace, tokens: Sequence[int]) -> Turn:
        turn = Turn(self.cache, lease, namespace, tokens)
        self.turns.append(turn)
        self.cover(await self.look(), turn)
        return turn

    async def collect(self) -> None:
        """Take in the requests that have been answered."""
        for request in [r for r in self.pending if r.over]:
            self.pending.remove(request)
            if request.error is not None:
                raise AssertionError(f"{request.what} failed") from request.error
            if request.lease is not None:
                await self._adopt(request.lease, request.namespace, request.tokens)

    async def acquire(self, namespace: Namespace, tokens: Sequence[int]) -> Turn | None:
        """Ask for a lease in the background; judge the answer, or leave it waiting (None)."""
        query = tuple(tokens)
        before = await self.look()
        free = await self.room()
        await self.judge_peek(before, namespace, query)
        request = Waiting("acquire", trio.CancelScope(), namespace=namespace, tokens=query)
        self.nursery.start_soon(self._acquire, request)
        await trio.testing.wait_all_tasks_blocked()
        if not self.gate.stalled:
            await self.cache.settle()
            await trio.testing.wait_all_tasks_blocked()
        if not request.over:
            self.pending.append(request)
            return None
        if request.error is not None:
            raise request.error
        assert request.lease is not None
        turn = await self._adopt(request.lease, namespace, query)
        self.judge_length(before, free, turn, host=True)
        return turn

    async def _acquire(self, request: Waiting) -> None:
        with request.scope:
            try:
                request.lease = await self.cache.acquire(
                    list(request.tokens), namespace=request.namespace
                )
            except Exception as error:  # noqa: BLE001 - handed to the step that looks at this request
                request.error = error
        request.over = True

    async def cancel(self, index: int) -> None:
        """Cancel a request that waits."""
        request = self.pending.pop(index % len(self.pending))
        request.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert request.over, "a cancelled request ends at once"
        if request.lease is not None:
            await self._adopt(request.lease, request.namespace, request.tokens)

    async def try_acquire(self, namespace: Namespace, tokens: Sequence[int]) -> Turn | None:
        """The form that never waits and uses what is on L1."""
        query, before, free = tuple(tokens), await self.look(), await self.room()
        lease = self.cache.try_acquire(list(query), namespace=namespace)
        if lease is None:
            assert self.config.dispatch == "mailbox" or self.pending or self.gate.stalled
            return None
        turn = await self._adopt(lease, namespace, query)
        self.judge_length(before, free, turn, host=False)
        return turn

    async def judge_peek(self, flat: Flat, namespace: Namespace, tokens: tuple[int, ...]) -> None:
        """`peek` and `explain` agree with the referee and change nothing."""
        peek = await self.cache.peek(list(tokens), namespace=namespace)
        referee = self.referee
        assert peek.length == referee.boundary(flat, namespace, tokens), "peek.length"
        assert peek.device == referee.boundary(flat, namespace, tokens, host=False), "peek.device"
        assert peek.full == referee.full_extent(flat, namespace, tokens), "peek.full"
        for verdict in await self.cache.explain(list(tokens), namespace=namespace):
            own = referee.boundary(flat, namespace, tokens, components=(verdict.component,))
            assert verdict.reach == own, verdict
        assert await self.look() == flat, "looking changed the tree"

    def judge_length(self, before: Flat, free: dict[str, int], turn: Turn, host: bool) -> None:
        """The hit is a good boundary; and the deepest one, unless room was short for it."""
        lease, tokens = turn.lease, tuple(turn.tokens)
        length, namespace = lease.length, turn.namespace
        turn.verify()
        assert length % self.rules.page == 0 and length <= len(tokens) - 1
        assert length <= lease.full_match <= floor(len(tokens) - 1, self.rules.page)
        assert lease.hit.l1 + lease.hit.l2 + lease.hit.l3 == length
        best = self.referee.boundary(before, namespace, tokens, host=host)
        allowed = [
            len(key.prefix)
            for key in self.referee.candidates(before, namespace, tokens)
            if all(self.referee.allows(before, n, key, host) for n in self.rules.names)
        ]
        assert length in allowed, f"{length} is no good boundary: {allowed}"
        if length == best:
            return
        lacking = self.referee.missing_on_l1(before, Key(namespace, tokens[:best]))
        for name in self.rules.snapshots:
            lacking[name] += 1  # the private copy of the state
        assert any(free[name] < count for name, count in lacking.items()), (
            f"reused {length} of {tokens}, {best} was possible and there was room: {lacking}, {free}"
        )

    async def extend(self, turn: Turn, count: int, keep: bool) -> bool:
        """Extend, compute, perhaps snapshot; whether there was room."""
        before, free = await self.look(), await self.room()
        old, extent = turn.lease.start, turn.lease.extent
        starts = {name: old(name) for name in self.rules.paged}
        snapshots = tuple(turn.snapshots)
        try:
            await turn.extend(count, deadline=0.0, keep=keep)
        except NoCapacity as error:
            after, room = await self.look(), await self.room()
            possible = room[error.pool] + self.evictable(after, error.pool)
            assert turn.lease.extent == extent
            assert possible < error.needed or self.gate.stalled, (
                f"{error}: {room[error.pool]} free and {possible - room[error.pool]} evictable"
            )
            return False
        for name in self.rules.paged:
            low = max(starts[name], self.rules.trimmed(name, extent, snapshots))
            assert turn.lease.start(name) == low, (name, turn.lease.start(name), low)
        after = await self.look()
        must, _ = self._explained(before)
        for name in self.rules.names:
            gone = before.pages(name, Tier.L1) - after.pages(name, Tier.L1)
            locked = [key for key in gone if must[name, key]]
            assert not locked, f"{name}: locked pages were evicted: {locked}"
        if all(free[name] > count + 1 for name in self.rules.names):
            assert after.on_device() == before.on_device(), "room was there, yet L1 changed"
        return True

    async def publish(self, turn: Turn, upto: int | None) -> int:
        """Publish, and hold what the tree has on L1 afterwards against the flat sum."""
        before, old = await self.look(), turn.lease.published
        starts = {name: turn.lease.start(name) for name in self.rules.paged}
        kept = {at: dict(slots) for at, slots in turn.snapshots.items()}
        wanted = turn.publishable if upto is None else upto
        reached = await turn.publish(upto)
        after = await self.look()
        assert old <= reached <= max(wanted, old)
        assert reached == max(wanted, old) or self.gate.stalled, "publish stopped for no reason"
        tokens = tuple(turn.tokens)
        keys = {at: Key(turn.namespace, tokens[:at]) for at in range(reached + 1)}
        for name in self.rules.names:
            if name in self.rules.snapshots:
                own = {keys[at] for at, slots in kept.items() if at <= reached and name in slots}
            else:
                first = max(old, starts[name]) + self.rules.page
                own = {keys[at] for at in range(first, reached + 1, self.rules.page)}
            was, now = before.pages(name, Tier.L1), after.pages(name, Tier.L1)
            lost, gained = sorted(map(len_of, was - now)), now - was
            if self.pending or (name in self.rules.snapshots and self.config.l2):
                # A waiting request may go on with what was given back; a backup may take from L2 the
                # last copy of a window, and the state that needs it with it.
                continue
            assert not lost, f"publish took {name} away at {lost}"
            got, due = (sorted(map(len_of, keys)) for keys in (gained, own - was))
            assert got == due, f"publish gave {name} at {got}, the request had {due}"
        for name in self.rules.paged:
            low = max(starts[name], self.rules.trimmed(name, wanted, turn.snapshots))
            assert turn.lease.start(name) in {starts[name], low}, f"table of {name} after publish"
        self._judge_cuts(before, after, turn, old, reached, starts, kept)
        self.cover(after, turn)
        return reached

    def _judge_cuts(
        self,
        before: Flat,
        after: Flat,
        turn: Turn,
        old: int,
        reached: int,
        starts: dict[str, int],
        kept: dict[int, dict[str, int]],
    ) -> None:
        if reached == old:
            assert after.ends == before.ends, "nothing was published, yet something was cut"
            return
        new = {key for key in after.ends - before.ends if key.namespace == turn.namespace}
        assert new == after.ends - before.ends
        tokens, page = tuple(turn.tokens), self.rules.page
        apart = before.walk_end(turn.namespace, tokens[:reached], page)
        caps = {floor(self.rules.low(name, reached), page) for name in self.rules.paged}
        may = {apart, reached, old, *caps, *starts.values(), *kept}
        for key in new:
            at = len(key.prefix)
            assert key.prefix == tokens[:at] and at in may, f"publish cut at {key}, may at {may}"
        must = {at for at, slots in kept.items() if slots and at <= reached} | {reached}
        for at in must:
            assert Key(turn.namespace, tokens[:at]) in after.ends, f"publish did not cut at {at}"

    async def release(self, turn: Turn) -> None:
        """Release; what the tree holds stays as it is, unless somebody waits or a copy may land."""
        before, stats = await self.look(), await self.cache.stats()
        await turn.lease.release()
        await turn.lease.release()
        self.turns.remove(turn)
        del self.covers[id(turn)]
        if not (self.pending or stats.waiting or stats.in_flight):
            assert (await self.look()).on_device() == before.on_device(), "release changed L1"

    async def evict(self, component: str, count: int, tier: Tier) -> None:
        """Evict, and judge what left and why."""
        before = await self.look()
        unlocked = self.evictable(before, component, tier)
        report = await self.cache.evict(component, count, tier)
        after = await self.look()
        gone = {
            name: before.pages(name, tier) - after.pages(name, tier) for name in self.rules.names
        }
        if tier == Tier.L1:
            for name, keys in gone.items():
                locked = [key for key in keys if before.locks.get((name, key))]
                assert not locked, f"{name}: locked pages were evicted: {locked}"
        freed = len(gone[component])
        assert freed >= min(count, unlocked) or self.gate.stalled, (report, freed, unlocked)
        self._judge_cascade(before, gone, component, tier)
        biggest = max(
            (before.node_of[key][1] - before.node_of[key][0] for key in gone[component]), default=0
        )
        if component not in self.rules.snapshots:
            assert freed < count + max(1, biggest // self.rules.page), "evicted beyond one victim"

    def _judge_cascade(
        self, before: Flat, gone: dict[str, frozenset[Key]], trigger: str, tier: Tier
    ) -> None:
        full = self.rules.names[0]
        if trigger == full:
            return  # whatever is on a node without FULL is caught by the invariants
        held = before.pages(trigger, tier)
        for key in gone[full]:
            start, end = before.node_of[key]
            del start
            last = {k for k in held if before.node_of[k] == before.node_of[key]}
            assert last, f"{trigger} took {full} from {key}, where it had nothing ({end})"
        for name in self.rules.names[1:]:
            if name == trigger:
                continue
            for key in gone[name] - gone[full]:
                assert name in self.rules.snapshots and trigger not in self.rules.snapshots, (
                    f"{trigger} took {name} from the inner node at {key}"
                )

    async def flush(self) -> None:
        """Forget everything; nobody holds a lease."""
        await self.cache.flush()
        assert not (await self.look()).known, "flush left nodes behind"

    # -- whole turns, for scenarios -------------------------------------------------------------------

    async def serve(
        self,
        tokens: Sequence[int],
        *,
        namespace: Namespace = NOBODY,
        stops: Sequence[int] = (),
        keep: Sequence[int] = (),
        publish: Sequence[int] | None = None,
    ) -> int:
        """Run one whole turn and answer how many tokens it reused.

        Computes in chunks that end at `stops` and `keep`, takes a snapshot at each of `keep` that is
        not reused, and publishes up to each of `publish` in turn (None: everything).
        """
        turn = await self.start(tokens, namespace=namespace, stops=stops, keep=keep)
        length = turn.lease.length
        for upto in (None,) if publish is None else publish:
            await self.publish(turn, upto)
        await self.release(turn)
        await self.settled()
        return length

    async def start(
        self,
        tokens: Sequence[int],
        *,
        namespace: Namespace = NOBODY,
        stops: Sequence[int] = (),
        keep: Sequence[int] = (),
    ) -> Turn:
        """Acquire and compute a turn like `serve`, and leave it in hand, unpublished."""
        turn = await self.acquire(namespace, tokens)
        assert turn is not None, "the acquire waits"
        for at in sorted({*stops, *keep, len(tokens)}):
            if at > turn.computed:
                room = await self.extend(turn, at - turn.computed, at in keep)
                assert room, "a scenario has room"
        return turn

    async def hit(self, tokens: Sequence[int], *, namespace: Namespace = NOBODY) -> int:
        """How many tokens a request for `tokens` reuses; the lease is given back at once."""
        turn = await self.acquire(namespace, tokens)
        assert turn is not None, "the acquire waits"
        length = turn.lease.length
        await self.release(turn)
        await self.settled()
        return length

    # -- the end ---------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Release everything, evict to empty, and find every page free."""
        self.gate.failing = 0
        self.gate.let_go()
        while self.pending:
            await self.settled()
            if self.pending:
                await self.cancel(0)
        await self.settled()
        for turn in list(self.turns):
            await self.release(turn)
        await self.settled()
        for tier in (Tier.L1, Tier.L2) if self.config.l2 else (Tier.L1,):
            for name in reversed(self.rules.names):
                await self.cache.evict(name, 1 << 20, tier)
                flat = await self.settled()
                assert not flat.pages(name, tier), f"unlocked {name} stays on {tier.name}"
        assert not flat.known, f"nodes without payload are left: {flat.known}"
        for tier, pools in (await self.cache.stats()).pools.items():
            for usage in pools:
                assert usage.free == usage.capacity, (tier, usage)

    async def close(self) -> None:
        """Let the thread end."""
        self.end.set()


async def run_bench(config: CacheConfig, started: Callable[[Bench], None]) -> None:
    """Open a cache and keep it until its bench says that it is enough."""
    gate = Gate()
    async with open_cache(config, before_copy=gate) as cache, trio.open_nursery() as nursery:
        bench = Bench(cache, gate, nursery)
        started(bench)
        await bench.end.wait()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def bench_of(config: CacheConfig) -> AsyncIterator[Bench]:
    """A bench for an async test; leaving it evicts the cache to empty and finds every page free."""
    gate = Gate()
    async with open_cache(config, before_copy=gate) as cache, trio.open_nursery() as nursery:
        bench = Bench(cache, gate, nursery)
        yield bench
        await bench.finish()
