"""An operation that a crash cuts off leaves its lease as it was; who waits goes on waiting."""

from __future__ import annotations

import pytest
import trio
from banyankv import ActorCrashed, NoCapacity, open_cache
from banyankv.actors import Fault, FaultKind, FaultPlan
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
