"""A cache at work, watched: every call is followed by the referee's look at all of it.

`Bench` holds what a test plays with: the cache, the gate before its copies, the turns in hand and the
requests that wait. Its verbs do one thing to the cache and judge what came of it; `settled` is called
after every step.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing
from banyankv import (
    CacheConfig,
    Namespace,
    NoCapacity,
    Tier,
    open_cache,
)

from .asking import Asking
from .driving import Gate
from .engine import Turn
from .reference import Key, len_of

NOBODY = Namespace()


class Bench(Asking):
    """A cache, its turns in hand, and the verbs that are judged."""

    async def try_acquire(self, namespace: Namespace, tokens: Sequence[int]) -> Turn | None:
        """The form that never waits and uses what is on L1."""
        query, before, free = tuple(tokens), await self.look(), await self.room()
        lease = self.cache.try_acquire(list(query), namespace=namespace)
        if lease is None:
            assert self.config.dispatch == "mailbox" or self.pending or self.held
            return None
        turn = await self.adopt(lease, namespace, query)
        self.judge_length(before, free, turn, host=False)
        return turn

    async def batch(self, namespace: Namespace, prompts: Sequence[Sequence[int]]) -> None:
        """Several prompts of a scheduler step, each served as by `try_acquire`."""
        before, free = await self.look(), await self.room()
        leases = await self.cache.acquire_batch([list(p) for p in prompts], namespace=namespace)
        assert len(leases) == len(prompts)
        for prompt, lease in zip(prompts, leases, strict=True):
            # All are locked before one of them may split a node for the boundary that it falls back to.
            turn = await self.adopt(lease, namespace, prompt, before)
            if len(prompts) == 1:  # else what one takes is not there for the next
                self.judge_length(before, free, turn, host=False)

    async def speculate(self, turn: Turn, drafts: list[int], told: bool, accepted: int) -> None:
        """Draft, accept some and roll back; nothing where there is no room."""
        tokens = len(turn.tokens)
        try:
            await turn.speculate(drafts, told, accepted)
        except NoCapacity:
            if told:  # the ids of drafts that have no room are taken back as others are
                await turn.lease.trim(0)
        assert turn.lease.extent == len(turn.tokens) or turn.lease.extent == tokens

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
            assert possible < error.needed or self.held or self.pending, (
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
        roomy = all(free[name] > count + 1 for name in self.rules.names)
        if roomy and not (self.held or self.pending):
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
        self.judge_cuts(before, after, turn, old, reached, starts, kept)
        if reached > old:  # else the locks stay as they were, whatever was split since
            self.cover(turn, after)
        return reached

    async def release(self, turn: Turn) -> None:
        """Release; what the tree holds stays as it is, unless somebody waits or a copy may land."""
        before, stats = await self.look(), await self.cache.stats()
        await turn.lease.release()
        await turn.lease.release()
        self.leave(turn)
        if not (self.pending or stats.waiting or stats.in_flight or stats.due):
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
        assert freed >= min(count, unlocked) or self.held or self.pending, (report, freed, unlocked)
        self.judge_cascade(before, gone, component, tier)
        biggest = max(
            (before.node_of[key][1] - before.node_of[key][0] for key in gone[component]), default=0
        )
        if component not in self.rules.snapshots:
            assert freed < count + max(1, biggest // self.rules.page), "evicted beyond one victim"

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
        if self.history_store is not None:
            self.history_store.heal()
            self.history_store.let_go()
        await self.settled()
        for request in [request for request in self.pending if request.turn is not None]:
            await self.cancel(self.pending.index(request))
        for _ in range(50):
            for turn in list(self.turns):
                await self.release(turn)
            await self.settled()
            if not (self.turns or self.pending):
                break
        assert not self.pending, "a request waits although nobody holds anything"
        await self.settled()
        for tier in (Tier.L1, Tier.L2) if self.config.l2 else (Tier.L1,):
            for name in reversed(self.rules.names):
                await self.cache.evict(name, 1 << 20, tier)
                flat = await self.settled()
                assert not flat.pages(name, tier), f"unlocked {name} stays on {tier.name}"
        assert not flat.known, f"nodes without payload are left: {flat.known}"
        for place, pools in (await self.cache.stats()).pools.items():
            for usage in pools:
                assert usage.free == usage.capacity, (place, usage)


@asynccontextmanager
async def bench_of(config: CacheConfig) -> AsyncIterator[Bench]:
    """A bench for an async test; leaving it evicts the cache to empty and finds every page free."""
    gate = Gate()
    async with open_cache(config, before_copy=gate) as cache, trio.open_nursery() as nursery:
        bench = Bench(cache, gate, nursery)
        yield bench
        await bench.finish()
