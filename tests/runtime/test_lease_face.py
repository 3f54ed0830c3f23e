"""What a lease promises its request: drafts, deadlines of 0, releases that never fail, forgotten leases."""

from __future__ import annotations

import pytest
import trio
from banyankv import (
    CacheConfig,
    Closed,
    ConfigError,
    ModelSpec,
    NoCapacity,
    PagedSpec,
    StaleLease,
    open_cache,
)
from banyankv.actors import Fault, FaultKind, FaultPlan

MODEL = ModelSpec(name="m", page_size=1, components=(PagedSpec(name="full"),))


def config(dispatch, pages=16, **more):
    return CacheConfig(model=MODEL, l1={"full": pages}, dispatch=dispatch, **more)


@pytest.mark.parametrize("told_by_publish", [False, True])
async def test_trim_takes_back_the_ids_of_what_it_trims(dispatch, told_by_publish):
    async with open_cache(config(dispatch)) as cache:
        async with await cache.acquire([10, 11]) as lease:
            await lease.extend(2)
            lease.append([20, 30])  # drafts
            if told_by_publish:
                await lease.publish(1)
            await lease.extend(2, deadline=0)
            await lease.trim(1)
            assert (lease.extent, lease.known) == (3, 3)
            lease.append([21])
            await lease.extend(1)
            assert await lease.publish() == 4
        assert (await cache.peek([10, 11, 20, 30, 0])).length == 3
        assert (await cache.peek([10, 11, 20, 21, 0])).length == 4


@pytest.mark.parametrize("told_by_publish", [False, True])
async def test_trim_of_nothing_takes_back_ids_whose_room_was_refused(dispatch, told_by_publish):
    async with open_cache(config(dispatch, 4)) as cache:
        async with await cache.acquire([10, 11]) as lease:
            await lease.extend(2)
            lease.append([20, 21, 22, 23])  # drafts
            if told_by_publish:
                await lease.publish(2)
            with pytest.raises(NoCapacity):
                await lease.extend(4, deadline=0)
            await lease.trim(0)
            assert (lease.extent, lease.known) == (2, 2)
            lease.append([30])
            await lease.extend(1)
            assert await lease.publish() == 3
        assert (await cache.peek([10, 11, 20, 0])).length == 2
        assert (await cache.peek([10, 11, 30, 0])).length == 3


async def test_trim_leaves_the_ids_of_the_prompt(dispatch):
    async with (
        open_cache(config(dispatch)) as cache,
        await cache.acquire([10, 11, 12, 13]) as lease,
    ):
        await lease.extend(3)
        lease.append([14])
        await lease.trim(2)
        assert (lease.extent, lease.known) == (1, 4)
        await lease.trim(0)
        await lease.extend(3)
        assert await lease.publish() == 4


async def test_a_deadline_of_0_means_not_to_wait(dispatch):
    async with open_cache(config(dispatch, 8, l2={"full": 8})) as cache:
        async with await cache.acquire(range(4)) as lease:
            await lease.extend(4)
            await lease.publish()
        await cache.settle()
        async with await cache.acquire(range(4), deadline=0) as lease:
            assert lease.length == 3
        await cache.evict("full", 8)
        for deadline in (0, -1.5):  # what L2 has would have to be waited for
            async with await cache.acquire(range(4), deadline=deadline) as lease:
                assert lease.length == 0
                with pytest.raises(NoCapacity):
                    await lease.extend(9, deadline=deadline)
        async with await cache.acquire(range(4), deadline=5) as lease:
            assert lease.length == 3


async def test_a_dropped_lease_is_named(dispatch):
    async with open_cache(config(dispatch)) as cache:
        lease = await cache.acquire([1, 2])
        with pytest.warns(ResourceWarning, match=f"Lease {lease.id} .*not released"):
            del lease
        kept = await cache.acquire([1, 2])
    del kept  # the cache has closed: nothing is leaked


@pytest.mark.parametrize("what", [FaultKind.CRASH, FaultKind.DROP, FaultKind.FAIL])
async def test_a_release_is_never_lost(dispatch, autojump_clock, what):
    plan = FaultPlan(faults=(Fault(message="Release", what=what, times=2),))
    async with open_cache(config(dispatch), faults=plan) as cache:
        lease = await cache.acquire([1, 2])
        late = await cache.acquire([1, 2])
        await lease.release()
        with pytest.raises(StaleLease):
            await lease.extend(1)
        await late.release()
        assert (await cache.stats()).leases == 0
        await cache.check()


async def test_a_release_never_raises_for_what_happened_to_the_cache(dispatch, autojump_clock):
    plan = FaultPlan(faults=(Fault(message="Release", what=FaultKind.CRASH, times=0),))
    with pytest.raises(Closed):
        async with open_cache(config(dispatch), faults=plan) as cache:
            lease = await cache.acquire([1, 2])
            late = await cache.acquire([1, 2])
            await lease.release()
            await late.release()


async def test_a_wrong_argument_of_release_releases_nothing(dispatch):
    async with open_cache(config(dispatch)) as cache:
        lease = await cache.acquire([1, 2])
        with pytest.raises(ConfigError, match="stream"):
            await lease.release(stream="x")
        await lease.extend(2)
        await lease.release()


async def test_trying_a_closed_cache_says_so(dispatch):
    async with open_cache(config(dispatch)) as cache:
        pass
    await trio.lowlevel.checkpoint()
    with pytest.raises(Closed):
        cache.try_acquire([1, 2])
