"""Hits, backups and fetches that wait for room: what they wait for, and what is never lost meanwhile."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from banyankv import (
    CacheConfig,
    DeadlineExceeded,
    ModelSpec,
    Tier,
    open_cache,
)
from banyankv.runtime.coordinator.capacity import Capacity, Shortage
from banyankv.testing import FaultyStore, MemoryStore, StoreFailure, StoreFault
from trio.testing import wait_all_tasks_blocked

from .room import FULL, NEW, OLD, Copies, config, hit, locks, only_on_l2, pages, serve


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
        await only_on_l2(cache, OLD)
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


async def test_a_hit_behind_an_extend_waits_no_longer_than_the_extend_may(dispatch, autojump_clock):
    """One task holds a lease and acquires: it must not wait for the release that it would make itself."""
    async with open_cache(config(dispatch, {"full": 12}, 40, patience=5)) as cache:
        await only_on_l2(cache, OLD)
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


async def test_a_backup_that_finds_only_room_that_is_coming_is_not_forgotten(dispatch):
    """L2's pages are being read by a promotion: the new node is backed up when that is over."""
    copies = Copies()
    tight = config(dispatch, {"full": 30}, 9)
    async with open_cache(tight, before_copy=copies) as cache, trio.open_nursery() as nursery:
        await only_on_l2(cache, OLD)
        copies.held = {Tier.L1}
        nursery.start_soon(hit, cache, OLD, [])
        await wait_all_tasks_blocked()
        await serve(cache, NEW)
        await wait_all_tasks_blocked()
        stats = await cache.stats()
        assert (stats.in_flight, stats.due) == (1, 1)
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


@asynccontextmanager
async def fetch_without_room(dispatch, copies: Copies, *, patience: float = 20):
    """L2 is full of what is being promoted, and somebody asks for what only the store has."""
    model = ModelSpec(name="m", page_size=16, components=(FULL,))
    tight = CacheConfig(
        model=model,
        l1={"full": 64},
        l2={"full": 17},
        dispatch=dispatch,
        prefetch_threshold=16,
        store_timeout=patience,
    )
    first, second = range(257), range(1000, 1257)
    async with open_cache(tight, before_copy=copies, store=MemoryStore()) as cache:
        for tokens in (first, second):
            await serve(cache, tokens)
            await cache.settle()
        await cache.evict("full", 99)
        copies.held = {Tier.L1}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hit, cache, second, hits := [])
            await wait_all_tasks_blocked()
            yield cache, first, hits
        await cache.settle()
        await cache.check()


async def test_a_fetch_waits_for_room_on_l2_that_is_only_coming(dispatch):
    """What the store has comes down when the promotion is over."""
    copies = Copies()
    async with fetch_without_room(dispatch, copies) as (cache, tokens, hits):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hit, cache, tokens, hits)
            await wait_all_tasks_blocked()
            assert not hits
            await copies.let_all_go()
        assert hits == [256, 256]
        assert (await cache.stats()).prefetches == {"absent": 2, "loaded": 1}


async def test_a_fetch_waits_for_room_no_longer_than_for_the_store(dispatch):
    copies = Copies()
    async with fetch_without_room(dispatch, copies, patience=0.2) as (cache, tokens, hits):
        with trio.fail_after(10):
            await hit(cache, tokens, hits)
        assert hits == [0]
        assert (await cache.stats()).prefetches == {"absent": 2, "host_capacity": 1}
        await copies.let_all_go()
        assert hits == [0, 256]


async def test_a_fetch_for_nobody_does_not_wait_for_room(dispatch):
    copies = Copies()
    async with fetch_without_room(dispatch, copies) as (cache, tokens, hits):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hit, cache, tokens, hits)
            await wait_all_tasks_blocked(0.1)
            nursery.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        assert (await cache.stats()).prefetches == {"absent": 2, "abandoned": 1}
        await copies.let_all_go()
        assert hits == [256]


async def test_a_hit_waits_for_room_so_long_in_all(dispatch, autojump_clock, monkeypatch):
    """It waits for room, then for a copy that fails, then for room again, and all that once."""

    async def is_coming(*_) -> Shortage:
        return Shortage(coming=True)

    copies = Copies()
    small = config(dispatch, {"full": 40, "mamba": 9}, 40, patience=10)
    async with open_cache(small, before_copy=copies) as cache:
        await serve(cache, OLD[:8], 4, states=True)
        await cache.settle()
        for component in ("mamba", "full"):
            await cache.evict(component, 99)
        async with await cache.acquire(OLD[:5]) as lease:  # the shorter boundary is on L1 again
            assert lease.length == 4
        copies.held = {Tier.L1}
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            with monkeypatch.context() as patch:
                patch.setattr(Capacity, "allocate", is_coming)
                nursery.start_soon(hit, cache, OLD, hits := [])
                await wait_all_tasks_blocked()
            assert (await cache.stats()).waiting == 1
            await trio.sleep(6)
            await cache.stats()  # after any operation the queue is served
            await wait_all_tasks_blocked()
            stats = await cache.stats()
            assert (stats.waiting, stats.in_flight) == (0, 1)
            await trio.sleep(2)
            monkeypatch.setattr(Capacity, "clone", is_coming)
            await copies.go(ok=False)
            assert (await cache.stats()).waiting == 1
        assert (hits, trio.current_time() - began) == ([0], 10)
        await cache.check()


async def test_who_waits_for_the_store_does_not_wait_for_room(dispatch):
    model = ModelSpec(name="m", page_size=16, components=(FULL,))
    made = CacheConfig(
        model=model, l1={"full": 64}, l2={"full": 64}, dispatch=dispatch, prefetch_threshold=16
    )
    store = FaultyStore(MemoryStore(), lambda _: StoreFault(StoreFailure.HANG))
    async with open_cache(made, store=store) as cache, trio.open_nursery() as nursery:
        nursery.start_soon(hit, cache, range(300), [])
        await wait_all_tasks_blocked()
        stats = await cache.stats()
        assert (stats.waiting, stats.in_flight, stats.due) == (0, 1, 0)
        nursery.cancel_scope.cancel()
