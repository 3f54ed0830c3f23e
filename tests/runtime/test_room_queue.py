"""Waiting for room: who waits, for what, in which order, and what is never evicted for nothing."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from banyankv import (
    CacheConfig,
    DeadlineExceeded,
    ModelSpec,
    NoCapacity,
    PagedSpec,
    SnapshotSpec,
    StateTensor,
    Tier,
    TierUnavailable,
    open_cache,
)
from banyankv.testing import MemoryStore
from trio.testing import wait_all_tasks_blocked

FULL = PagedSpec(name="full")
STATES = SnapshotSpec(states=(StateTensor("s", (1,), "float32"),))
OLD, NEW = list(range(9)), list(range(100, 109))


def config(dispatch: str, l1: dict[str, int], l2: int = 0, *, patience: float = 99) -> CacheConfig:
    """Pages of one token; components as `l1` names them."""
    kinds = {"full": FULL, "swa": PagedSpec(name="swa", rule="swa", window=2), "mamba": STATES}
    model = ModelSpec(name="m", page_size=1, components=tuple(kinds[name] for name in l1))
    lower = dict.fromkeys(l1, l2) if l2 else None
    return CacheConfig(model=model, l1=l1, l2=lower, dispatch=dispatch, room_timeout=patience)


class Copies:
    """Stands before the copies: holds those to the tiers in `held`, lets them go one by one."""

    def __init__(self) -> None:
        self.held: set[Tier] = set()
        self._waiting: list[list] = []

    async def __call__(self, source, target, moves) -> None:
        if target in self.held:
            entry = [trio.Event(), True]
            self._waiting.append(entry)
            await entry[0].wait()
            if not entry[1]:
                raise TierUnavailable("the test lets this copy fail")

    async def go(self, *, ok: bool = True) -> None:
        """Let the copy that has waited longest go."""
        entry = self._waiting.pop(0)
        entry[1] = ok
        entry[0].set()
        await wait_all_tasks_blocked()

    async def let_all_go(self) -> None:
        """Hold nothing any more."""
        self.held.clear()
        while self._waiting:
            await self.go()


async def serve(cache, tokens, *cuts: int, states: bool = False) -> int:
    """Run one turn; publish at each of `cuts` and at the end."""
    async with await cache.acquire(tokens) as lease:
        for at in (*cuts, len(tokens)):
            if at > lease.extent:
                await lease.extend(at - lease.extent)
                if states:
                    cache.pools.view("mamba")[0][lease.state()] = at
                    await lease.snapshot(at=at)
                await lease.publish(at)
        return lease.length


async def hit(cache, tokens, hits: list[int]) -> None:
    """Note how much of a prompt is reused."""
    async with await cache.acquire(tokens, deadline=99) as lease:
        hits.append(lease.length)


async def pages(cache, component: str, tier: int = 0) -> list[int]:
    """Ends of the nodes that hold payload of a component on a tier."""
    seen = (await cache.inspect()).components
    records = next(part.records for part in seen if part.name == component)
    return sorted(r.end for r in records if (r.l1, r.l2)[tier] is not None)


async def locks(cache) -> int:
    return sum(r.lock for part in (await cache.inspect()).components for r in part.records)


async def test_a_hit_waits_for_room_that_is_only_coming(dispatch):
    """L1 is full of what is being backed up: the hit waits for the copy, and the copy is not lost."""
    copies = Copies()
    small = config(dispatch, {"full": 9}, 40)
    async with open_cache(small, before_copy=copies) as cache, trio.open_nursery() as nursery:
        await serve(cache, OLD)
        await cache.settle()
        copies.held = {Tier.L2}
        await serve(cache, NEW)
        nursery.start_soon(hit, cache, OLD, hits := [])
        await wait_all_tasks_blocked()
        assert not hits
        assert await locks(cache) == 0
        assert (await cache.stats()).waiting == 1
        await cache.check()
        await copies.let_all_go()
        await cache.settle()
        assert hits == [8]
        assert (await cache.peek(NEW)).length == 8
        await cache.check()


async def test_a_hit_that_waits_for_room_has_a_deadline_and_may_be_cancelled(
    dispatch, autojump_clock
):
    copies = Copies()
    small = config(dispatch, {"full": 9}, 40)
    async with open_cache(small, before_copy=copies) as cache:
        await serve(cache, OLD)
        await cache.settle()
        copies.held = {Tier.L2}
        await serve(cache, NEW)
        with pytest.raises(DeadlineExceeded):
            await cache.acquire(OLD, deadline=1)
        with trio.move_on_after(1) as scope:
            await cache.acquire(OLD)
        assert scope.cancelled_caught
        stats = await cache.stats()
        assert (stats.waiting, stats.leases) == (0, 0)
        await copies.let_all_go()
        await cache.settle()
        assert (await cache.peek(NEW)).length == 8
        await cache.check()


async def test_requests_that_overlap_keep_their_prefixes(dispatch):
    """One runs and pushes out what is being backed up, the other comes back to what is on L2."""
    copies = Copies()
    small = config(dispatch, {"full": 24}, 60)
    async with open_cache(small, before_copy=copies) as cache, trio.open_nursery() as nursery:
        await serve(cache, OLD)
        await cache.settle()
        await cache.evict("full", 99)
        copies.held = {Tier.L2}
        await serve(cache, NEW)
        running = await cache.acquire([7, 7])
        await running.extend(4)
        nursery.start_soon(running.extend, 12)
        await wait_all_tasks_blocked()
        nursery.start_soon(hit, cache, OLD, hits := [])
        await wait_all_tasks_blocked()
        assert (running.extent, hits) == (4, [])
        await copies.let_all_go()
        await cache.settle()
        assert (running.extent, hits) == (16, [8])
        await running.release()
        assert (await cache.peek(NEW)).length == 8
        await cache.check()


async def test_where_only_leases_hold_the_room_a_hit_has_what_the_device_has(dispatch):
    """At once, and nothing is evicted for what cannot come."""
    async with open_cache(config(dispatch, {"full": 8, "swa": 6}, 40)) as cache:
        await serve(cache, OLD[:8], 4)
        await cache.settle()
        await cache.evict("full", 99)
        await serve(cache, OLD[:5])
        await cache.settle()
        async with await cache.acquire([77]) as busy:
            await busy.extend(4)
            before = await pages(cache, "full"), await pages(cache, "swa")
            assert (await cache.peek(OLD)).length == 8
            device = (await cache.peek(OLD)).device
            assert device == 4
            async with await cache.acquire(OLD) as lease:
                assert lease.length == device
            assert (await pages(cache, "full"), await pages(cache, "swa")) == before
        await cache.check()


async def test_a_hit_waits_for_a_slot_that_is_only_coming(dispatch):
    """All other states are being backed up: one of them goes when its copy is over."""
    copies = Copies()
    small = config(dispatch, {"full": 40, "mamba": 3}, 40)
    async with open_cache(small, before_copy=copies) as cache, trio.open_nursery() as nursery:
        await serve(cache, OLD[:8], states=True)
        await cache.settle()
        copies.held = {Tier.L2}
        await serve(cache, NEW[:8], states=True)
        busy = await cache.acquire([77])
        await busy.extend(1)
        hits: list[tuple[int, float]] = []

        async def hit() -> None:
            async with await cache.acquire(OLD) as lease:
                hits.append((lease.length, float(cache.pools.view("mamba")[0][lease.state()])))

        nursery.start_soon(hit)
        await wait_all_tasks_blocked()
        assert not hits
        await copies.let_all_go()
        assert hits == [(8, 8.0)]
        await busy.release()
        await cache.settle()
        await cache.check()


async def test_first_come_first_served_extends_and_acquires_alike(dispatch):
    """A hit from L2 does not take the room that an extend before it waits for, nor overtakes it."""
    async with open_cache(config(dispatch, {"full": 12}, 40)) as cache:
        await serve(cache, OLD)
        await cache.settle()
        await cache.evict("full", 99)
        holder, first = await cache.acquire([7, 7]), await cache.acquire([8, 8])
        await holder.extend(10)
        order: list[str] = []

        async def extend() -> None:
            await first.extend(4)
            order.append("extend")

        async def acquire() -> None:
            async with await cache.acquire(OLD) as lease:
                order.append(f"acquire {lease.length}")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(extend)
            await wait_all_tasks_blocked()
            nursery.start_soon(acquire)
            await wait_all_tasks_blocked()
            assert not order
            assert (await cache.stats()).waiting == 2
            await holder.release()
        assert order == ["extend", "acquire 8"]
        await first.release()
        await cache.settle()
        await cache.check()


async def test_a_hit_behind_an_extend_waits_no_longer_than_the_extend_may(dispatch, autojump_clock):
    """One task holds a lease and acquires: it must not wait for the release that it would make itself."""
    async with open_cache(config(dispatch, {"full": 12}, 40, patience=5)) as cache:
        await serve(cache, OLD)
        await cache.settle()
        await cache.evict("full", 99)
        holder, first = await cache.acquire([7, 7]), await cache.acquire([8, 8])
        await holder.extend(10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: first.extend(6, deadline=1000))
            await wait_all_tasks_blocked()
            async with await cache.acquire(OLD) as lease:
                assert lease.length == 0
            await holder.release()
        await first.release()
        await cache.check()


async def test_an_extend_that_can_never_succeed_evicts_nothing(dispatch):
    async with open_cache(config(dispatch, {"full": 32, "mamba": 2})) as cache:
        await serve(cache, OLD, states=True)
        async with await cache.acquire([77]) as lease, await cache.acquire([78]) as other:
            for count, error in ((1000, "1000 pages needed"), (24, "24 pages needed")):
                with pytest.raises(NoCapacity, match=error):
                    await lease.extend(count, deadline=0)
                assert (await cache.peek([*OLD, 1])).length == 9
                await other.extend(10)
        await cache.check()


async def test_no_capacity_says_what_is_being_copied(dispatch):
    copies = Copies()
    small = config(dispatch, {"full": 9}, 40)
    async with open_cache(small, before_copy=copies) as cache:
        copies.held = {Tier.L2}
        await serve(cache, OLD)
        async with await cache.acquire([77]) as lease:
            with pytest.raises(NoCapacity, match="the room is coming") as caught:
                await lease.extend(4, deadline=0)
            error = caught.value
            assert (error.free, error.locked) == (0, 0)
            assert error.pending + error.evictable == 9
            assert error.pending >= 4
        await copies.let_all_go()


async def test_one_release_serves_the_others_whose_deadline_is_the_same(dispatch, autojump_clock):
    """Three leases hold 10 pages of 32 and want 8 more: one is refused and gives room to the others."""
    async with open_cache(config(dispatch, {"full": 32}, patience=0.3)) as cache:
        leases = [await cache.acquire([number]) for number in range(3)]
        for lease in leases:
            await lease.extend(10)
        ends: list[str] = []

        async def client(lease) -> None:
            try:
                await lease.extend(8)
                ends.append("served")
            except NoCapacity:
                ends.append("refused")
            await lease.release()

        async with trio.open_nursery() as nursery:
            for lease in leases:
                nursery.start_soon(client, lease)
        assert ends == ["refused", "served", "served"]
        await cache.check()


async def test_many_whose_patience_ends_at_once_are_all_refused(dispatch, autojump_clock):
    async with open_cache(config(dispatch, {"full": 8})) as cache:
        holder, refused = await cache.acquire([7]), []
        await holder.extend(8)

        async def client(number: int) -> None:
            async with await cache.acquire([number]) as lease:
                with pytest.raises(NoCapacity):
                    await lease.extend(8, deadline=0.5)
                refused.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(client, number)
        assert len(refused) == 300
        assert (await cache.stats()).waiting == 0
        await holder.release()
        async with await cache.acquire([1]) as lease:
            await lease.extend(8)
        await cache.check()


async def test_what_a_refused_extend_lets_go_serves_who_waits(dispatch):
    """Its window has moved on; the pages behind it are room for others, though it is refused itself."""
    async with open_cache(config(dispatch, {"full": 40, "swa": 12})) as cache:
        holder, waiter = await cache.acquire([7]), await cache.acquire([8])
        await holder.extend(10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter.extend, 6)
            await wait_all_tasks_blocked()
            with pytest.raises(NoCapacity):
                await holder.extend(12, deadline=0)
        assert waiter.extent == 6
        await holder.release()
        await waiter.release()
        await cache.check()


async def test_a_backup_that_finds_only_room_that_is_coming_is_not_forgotten(dispatch):
    """L2's pages are being read by a promotion: the new node is backed up when that is over."""
    copies = Copies()
    tight = config(dispatch, {"full": 30}, 9)
    async with open_cache(tight, before_copy=copies) as cache, trio.open_nursery() as nursery:
        await serve(cache, OLD)
        await cache.settle()
        await cache.evict("full", 99)
        copies.held = {Tier.L1}
        nursery.start_soon(hit, cache, OLD, [])
        await wait_all_tasks_blocked()
        await serve(cache, NEW)
        await wait_all_tasks_blocked()
        assert (await cache.stats()).in_flight == 2
        await copies.let_all_go()
        await cache.settle()
        assert await pages(cache, "full", tier=1) == [9]
        assert (await cache.stats()).skipped_backups == 0
        await cache.evict("full", 99)
        assert (await cache.peek(NEW)).length == 8
        await cache.check()


async def test_a_copy_that_fails_takes_along_what_another_brought_to_its_nodes(dispatch):
    """A state that others brought to a node whose FULL does not come: it goes, here and below."""
    copies = Copies()
    lower = config(dispatch, {"full": 32, "mamba": 32}, 32)
    for second_first in (False, True):
        async with open_cache(lower, before_copy=copies) as cache, trio.open_nursery() as nursery:
            await serve(cache, OLD, 2, 4, states=True)
            await cache.settle()
            await cache.evict("full", 99)
            copies.held = {Tier.L1}
            for tokens in (OLD[:5], OLD[:3]):
                nursery.start_soon(hit, cache, tokens, [])
                await wait_all_tasks_blocked()
            if second_first:
                copies._waiting.reverse()
                await copies.go()
                await copies.go(ok=False)
            else:
                await copies.go(ok=False)
                await cache.check()
                await copies.go()
            await copies.let_all_go()
            await cache.settle()
            await cache.check()
            assert await pages(cache, "full") == await pages(cache, "mamba") == []
            for tier in (Tier.L2, Tier.L1):
                await cache.evict("full", 99, tier)
            assert (await cache.stats()).nodes == 0


async def test_a_fetch_waits_for_room_on_l2_that_is_only_coming(dispatch):
    """L2 is full of what is being promoted: what the store has comes down when that is over."""
    copies = Copies()
    model = ModelSpec(name="m", page_size=16, components=(FULL,))
    tight = CacheConfig(
        model=model, l1={"full": 64}, l2={"full": 17}, dispatch=dispatch, prefetch_threshold=16
    )
    first, second = range(257), range(1000, 1257)
    async with (
        open_cache(tight, before_copy=copies, store=MemoryStore()) as cache,
        trio.open_nursery() as nursery,
    ):
        for tokens in (first, second):
            await serve(cache, tokens)
            await cache.settle()
        await cache.evict("full", 99)
        copies.held = {Tier.L1}
        nursery.start_soon(hit, cache, second, hits := [])
        await wait_all_tasks_blocked()
        nursery.start_soon(hit, cache, first, hits)
        await wait_all_tasks_blocked()
        assert not hits
        await copies.let_all_go()
        await cache.settle()
        await wait_all_tasks_blocked()  # they have been answered, and may still have to run
        assert hits == [256, 256]
        assert (await cache.stats()).prefetches == {"absent": 2, "loaded": 1}
        await cache.check()
