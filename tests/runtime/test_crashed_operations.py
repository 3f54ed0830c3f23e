"""An operation that a crash cuts off leaves its lease as it was; who waits goes on waiting."""

from __future__ import annotations

import pytest
import trio
from banyankv import ActorCrashed, ConfigError, NoCapacity, open_cache
from banyankv.actors import Fault, FaultKind, FaultPlan
from banyankv.runtime import messages as m
from trio.testing import wait_all_tasks_blocked

from .room import config


async def test_a_publish_that_crashed_half_way_has_published_nothing(dispatch):
    """It hands over to what others have published, then to new nodes: its record changes after both."""
    second = Fault(what=FaultKind.CRASH, receiver="/full", message="Grow", nth=2)
    plan = FaultPlan(faults=(second,))
    async with (
        open_cache(config(dispatch, {"full": 12}), faults=plan) as cache,
        await cache.acquire([1, 2, 3, 4, 5]) as first,
        await cache.acquire([1, 2, 3, 4, 6, 7]) as other,
    ):
        await first.extend(5)
        await other.extend(6)
        table = bytes(other.pages("full"))
        await first.publish(4)
        with pytest.raises(ActorCrashed):
            await other.publish()
        assert (other.published, bytes(other.pages("full"))) == (0, table)
        await cache.check()
        assert await other.publish() == 6
        assert other.pages("full")[:4] == first.pages("full")[:4]
        await cache.check()


async def test_an_extend_waits_no_longer_than_its_deadline_whatever_crashes(
    dispatch, autojump_clock
):
    """A life that hears it again counts from when it was asked."""
    async with (
        open_cache(config(dispatch, {"full": 12})) as cache,
        await cache.acquire([1]) as lease,
        await cache.acquire([2]) as other,
    ):
        await lease.extend(12)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def extend() -> None:
                with pytest.raises(NoCapacity):
                    await other.extend(1, deadline=3)

            await wait_all_tasks_blocked()
            await trio.sleep(2)
            cache._assembled.system.find("/tree").crashed(RuntimeError("on purpose"))
        assert trio.current_time() - began == pytest.approx(3)


async def test_a_publish_that_is_refused_forgets_no_id_that_is_published(dispatch):
    """Its asker may not have heard of the one before, and tells the same ids again."""
    async with (
        open_cache(config(dispatch, {"full": 12})) as cache,
        await cache.acquire([1, 2, 3]) as lease,
    ):
        await lease.extend(6)
        lease.append([4, 5, 6])
        await lease.publish()
        record = cache._port.leases[lease.id]
        with pytest.raises(ConfigError, match="reaches"):
            await cache._port.ref.ask(m.Publish(lease.id, 20, record.key(3, 6), 3))
        assert record.known == 6
        assert (await cache._port.ref.ask(m.Publish(lease.id, 6, record.key(3, 6), 3))).length == 6
        cache._assembled.system.find("/tree").condemn(RuntimeError("on purpose"))
        await cache.check()


@pytest.mark.parametrize("nth", [1, 2])
async def test_an_extend_whose_asker_left_is_undone_by_the_next_life(autojump_clock, nth):
    fault = Fault(what=FaultKind.CRASH, receiver="/l1", message="Free", nth=nth)
    small = config("mailbox", {"full": 8})
    async with open_cache(small, faults=FaultPlan(faults=(fault,))) as cache:
        holder, lease = await cache.acquire([1]), await cache.acquire([2])
        await holder.extend(8)
        async with trio.open_nursery() as nursery:
            scope, cell = trio.CancelScope(), cache._port.ref

            async def extend() -> None:
                with scope:
                    await lease.extend(4)

            nursery.start_soon(extend)
            await wait_all_tasks_blocked()
            nursery.start_soon(holder.release)
            while cell.parked is None or not isinstance(cell.parked.msg, m.Release):
                await trio.lowlevel.checkpoint()
            scope.cancel()  # at the moment at which the answer is being given
        await trio.sleep(1)
        assert scope.cancelled_caught
        assert lease.extent == 0
        await cache.check()
        await lease.release()
