"""Faults that were found once, each as the shortest history that showed it."""

from __future__ import annotations

import pytest
import trio
from banyankv import (
    CacheConfig,
    Closed,
    ModelSpec,
    NoCapacity,
    PagedSpec,
    SnapshotSpec,
    StateTensor,
    Tier,
    open_cache,
)
from banyankv.actors import Fault, FaultKind, FaultPlan
from banyankv.errors import ActorCrashed, BanyanError
from banyankv.tiers.store.memory import MemoryStore

MODEL = ModelSpec(name="m", page_size=16, components=(PagedSpec(name="full", head_dim=8),))


def config(dispatch: str, pages: int, l2: int | None = None, **more) -> CacheConfig:
    lower = None if l2 is None else {"full": l2}
    return CacheConfig(model=MODEL, l1={"full": pages}, l2=lower, dispatch=dispatch, **more)


async def serve(cache, tokens) -> int:
    async with await cache.acquire(tokens) as lease:
        if len(tokens) > lease.length:
            await lease.extend(len(tokens) - lease.length)
        await lease.publish()
        return lease.length


async def test_an_extend_within_its_last_page_never_queues_behind_who_waits_for_room(dispatch):
    async with open_cache(config(dispatch, 4)) as cache:
        running = await cache.acquire(range(100))
        await running.extend(50)  # four pages, fourteen tokens of the last one unused
        starved = await cache.acquire(range(1000, 1100))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(starved.extend, 16)
            await trio.testing.wait_all_tasks_blocked()
            await running.extend(14)
            assert running.extent == 64
            await running.release()  # and now the other one is served
        assert starved.extent == 16
        await starved.release()
        await cache.check()


async def test_thousands_of_waiters_may_leave_at_once(dispatch):
    async with open_cache(config(dispatch, 4)) as cache:
        holder = await cache.acquire(range(100))
        await holder.extend(64)
        leases = [await cache.acquire([index] * 20) for index in range(2000)]
        async with trio.open_nursery() as nursery:
            for lease in leases:
                nursery.start_soon(lease.extend, 16)
            await trio.testing.wait_all_tasks_blocked()
            assert (await cache.stats()).waiting == 2000
            nursery.cancel_scope.cancel()
        for lease in (holder, *leases):
            await lease.release()
        assert (await cache.stats()).waiting == 0
        await cache.check()


async def test_who_joins_a_prefetch_gets_nothing_of_the_askers_tokens(dispatch):
    store = MemoryStore()
    tokens = list(range(1, 1026))
    other = tokens[:256] + [999_999] * 769
    lower = config(dispatch, 300, 300, prefetch_threshold=16)
    async with open_cache(lower, store=store) as cache:
        await serve(cache, tokens)
        await cache.settle()
    gate = trio.Event()
    exists = store.exists

    async def slow_exists(keys):
        await gate.wait()
        return await exists(keys)

    store.exists = slow_exists
    async with open_cache(lower, store=store) as cache, trio.open_nursery() as nursery:
        left = trio.CancelScope()

        async def asker() -> None:
            with left:
                await cache.acquire(tokens)

        async def joiner() -> None:
            async with await cache.acquire(other) as lease:
                assert lease.length == 256

        nursery.start_soon(asker)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(joiner)
        await trio.testing.wait_all_tasks_blocked()
        left.cancel()
        await trio.testing.wait_all_tasks_blocked()
        gate.set()


async def test_a_node_may_be_saved_twice(dispatch):
    tokens = list(range(600))
    lower = config(dispatch, 200, 200, prefetch_threshold=10**6)
    async with open_cache(lower, store=MemoryStore()) as cache:
        await serve(cache, tokens)
        await cache.settle()
        await cache.evict("full", 1000, Tier.L2)
        assert await serve(cache, [*tokens, *[7] * 100]) == 592
        await cache.settle()
        await cache.check()


async def test_a_refused_extend_leaves_no_page_in_the_table_that_is_not_owned(dispatch):
    model = ModelSpec(name="w", page_size=1, components=(PagedSpec(name="full"), _swa(window=1)))
    small = CacheConfig(model=model, l1={"full": 8, "swa": 8}, dispatch=dispatch)
    async with open_cache(small) as cache, await cache.acquire([0, 0, 0]) as lease:
        await lease.extend(3)
        with pytest.raises(NoCapacity) as caught:
            await lease.extend(6, deadline=0)
        assert (caught.value.pool, caught.value.needed, caught.value.free) == ("full", 6, 5)
        assert lease.start("swa") == 2
        assert len(lease.pages("swa")) == 1
        await cache.check()


def _swa(window: int) -> PagedSpec:
    return PagedSpec(name="swa", rule="swa", window=window)


async def test_a_payload_comes_back_to_the_eviction_index_under_the_same_key(dispatch):
    model = ModelSpec(
        name="s",
        page_size=4,
        components=(PagedSpec(name="full"), SnapshotSpec(states=(StateTensor("s", (4,)),))),
    )
    both = {"full": 40, "mamba": 8}
    async with open_cache(CacheConfig(model=model, l1=both, l2=both, dispatch=dispatch)) as cache:
        for turn in range(3):
            async with await cache.acquire([turn] * 9) as lease:
                await lease.extend(8 - lease.length)
                await lease.snapshot("mamba", at=8)
                await lease.publish(8)
            await cache.settle()
            await cache.evict("mamba", 1000, Tier.L2)
        async with await cache.acquire([0] * 9) as lease:
            assert lease.length == 8
            await lease.extend(1)
            await lease.publish()
        await cache.settle()
        await cache.check()


async def test_crashes_beyond_patience_close_the_cache_and_leaving_says_so(
    dispatch, autojump_clock
):
    plan = FaultPlan(
        faults=(Fault(receiver="/tree", message="Insert", what=FaultKind.CRASH, times=0),)
    )
    with pytest.raises(Closed) as caught:
        async with open_cache(config(dispatch, 40), faults=plan) as cache:
            lease = await cache.acquire(range(40))
            await lease.extend(40)
            for _ in range(6):
                with pytest.raises(ActorCrashed, match="/tree"):
                    await lease.publish()
                await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(Closed):
                await cache.acquire(range(40))
            await lease.release()
    assert caught.value.cause is not None


async def test_an_operation_that_closing_cuts_off_is_no_crash(dispatch, autojump_clock):
    """Who waits meanwhile is told that the cache has closed, not that it has crashed."""
    ends: list[type] = []

    async def ending(call) -> None:
        with pytest.raises((Closed, ActorCrashed)) as caught:
            await call
        ends.append(caught.type)

    stuck = Fault(what=FaultKind.DELAY, message="Insert", seconds=3600.0)
    patient = config(dispatch, 8, room_timeout=1e6)
    plan = FaultPlan(faults=(stuck,))
    async with trio.open_nursery() as nursery, open_cache(patient, faults=plan) as cache:
        publishing = await cache.acquire(range(100))
        await publishing.extend(100)
        starved = await cache.acquire(range(1000, 1100))
        nursery.start_soon(ending, starved.extend(100))
        await trio.sleep(1)
        nursery.start_soon(ending, publishing.publish())
        await trio.sleep(1)
    assert ends == [Closed, Closed]


@pytest.mark.parametrize("steps", range(30))
async def test_an_operation_that_ends_in_a_closing_cache_is_no_crash(steps):
    """Its last act may be to tell the cache something, and nobody is there to hear it any more."""
    ends: list[type | None] = []
    leases = []

    async def turn(cache) -> None:
        try:
            lease = await cache.acquire(range(100))
            leases.append(lease)
            await lease.extend(100)
            await lease.publish()
        except BanyanError as error:
            ends.append(type(error))
        else:
            ends.append(None)

    async with trio.open_nursery() as nursery, open_cache(config("mailbox", 40, l2=40)) as cache:
        nursery.start_soon(turn, cache)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
    assert ends in ([None], [Closed])
