"""Extends that wait for room: who waits, in which order, and what is never evicted for nothing."""

from __future__ import annotations

import functools
import gc

import pytest
import trio
import trio.testing
from banyankv import (
    NoCapacity,
    Tier,
    open_cache,
)
from banyankv.runtime.coordinator.extending import ExtendFlight
from trio.testing import wait_all_tasks_blocked

from .room import OLD, Copies, config, only_on_l2, serve


async def test_first_come_first_served_extends_and_acquires_alike(dispatch):
    """A hit from L2 does not take the room that an extend before it waits for, nor overtakes it."""
    async with open_cache(config(dispatch, {"full": 12}, 40)) as cache:
        await only_on_l2(cache, OLD)
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


async def test_who_is_refused_may_do_more_than_release_before_others_are_refused(
    dispatch, autojump_clock
):
    """It looks where its windows are, publishes and releases: the others get what it gives back."""
    async with open_cache(config(dispatch, {"full": 32, "swa": 32}, patience=0.3)) as cache:
        leases = [await cache.acquire([number] * 11) for number in range(3)]
        for lease in leases:
            await lease.extend(10)
        ends: list[str] = []

        async def client(lease) -> None:
            try:
                await lease.extend(8)
                ends.append("served")
            except NoCapacity:
                ends.append("refused")
                await lease.publish(10)
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


async def test_short_deadlines_behind_a_long_one_cost_one_sleeping_task(dispatch, autojump_clock):
    async with open_cache(config(dispatch, {"full": 8})) as cache:
        holder, patient, brief = [await cache.acquire([number]) for number in range(3)]
        await holder.extend(8)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(patient.extend, 4)
            await wait_all_tasks_blocked()
            before = trio.lowlevel.current_statistics().tasks_living
            for _ in range(200):
                with pytest.raises(NoCapacity):
                    await brief.extend(4, deadline=0.02)
            # an alarm that has rung may still be telling so
            assert trio.lowlevel.current_statistics().tasks_living <= before + 1
            await holder.release()
        assert patient.extent == 4
        await patient.release()
        await brief.release()


async def test_those_who_came_and_left_leave_nothing_behind_one_who_waits_for_long(dispatch):
    async with open_cache(config(dispatch, {"full": 4})) as cache:
        holder = await cache.acquire(range(100))
        await holder.extend(4)
        patient, other = await cache.acquire(range(100)), await cache.acquire(range(100))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(functools.partial(patient.extend, 1, deadline=10**6))
            await wait_all_tasks_blocked()
            tasks, before = trio.lowlevel.current_statistics().tasks_living, flights()
            for sooner in range(9):
                async with trio.open_nursery() as leaving:
                    leaving.start_soon(functools.partial(other.extend, 1, deadline=10**5 - sooner))
                    await wait_all_tasks_blocked()
                    leaving.cancel_scope.cancel()
            await wait_all_tasks_blocked()
            assert trio.lowlevel.current_statistics().tasks_living == tasks
            assert flights() <= before + 1
            await holder.release()
        for lease in (patient, other):
            await lease.release()
        await cache.check()


def flights() -> int:
    gc.collect()
    return sum(type(each) is ExtendFlight for each in gc.get_objects())
