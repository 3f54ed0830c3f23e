"""Room that the device must pass first: freed pages that enqueued work may still touch."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing
from banyankv import (
    CacheConfig,
    ModelSpec,
    PagedSpec,
    SnapshotSpec,
    StateTensor,
    open_cache,
)
from banyankv.actors import Journal
from banyankv.runtime import messages
from banyankv.tiers.fences import NoFences
from trio.testing import wait_all_tasks_blocked

STATES = SnapshotSpec(states=(StateTensor("s", (1,), "float32"),))


class Device(NoFences):
    """The fences of a device that has done what the test says."""

    def __init__(self) -> None:
        self._recorded = self._done = 0
        self._moved = threading.Condition()

    def record(self, stream: int = 0) -> int:
        self._recorded += 1
        return self._recorded

    def passed(self, fence: int) -> bool:
        return fence <= self._done

    def wait(self, fence: int) -> None:
        with self._moved:
            self._moved.wait_for(lambda: self.passed(fence))

    def catch_up(self) -> None:
        """Do all that is enqueued."""
        with self._moved:
            self._done = self._recorded
            self._moved.notify_all()


class Cooled(Journal):
    """Tells when the cache has heard that a fence has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = trio.Event()

    def message(self, kind, sender, receiver, msg, **kwargs) -> int:
        if isinstance(msg, messages.Cooled):
            self.first.set()
        return super().message(kind, sender, receiver, msg, **kwargs)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr("banyankv.tiers.fences.fences_for", lambda _: device)
    return device


def config(dispatch: str, *, slots: int = 0) -> CacheConfig:
    parts = (PagedSpec(name="full"), STATES) if slots else (PagedSpec(name="full"),)
    room = {"full": 8, "mamba": slots} if slots else {"full": 8}
    model = ModelSpec(name="m", page_size=1, components=parts)
    return CacheConfig(model=model, l1=room, dispatch=dispatch, room_timeout=99)


async def test_an_extend_is_served_when_what_was_released_meanwhile_has_cooled(dispatch, device):
    journal = Cooled()
    async with (
        open_cache(config(dispatch), journal=journal) as cache,
        trio.open_nursery() as nursery,
    ):
        holder, waiter = await cache.acquire([1]), await cache.acquire([2])
        await holder.extend(8)
        served = trio.Event()

        async def extend() -> None:
            await waiter.extend(4)
            served.set()

        nursery.start_soon(extend)
        await wait_all_tasks_blocked()
        device.catch_up()
        await journal.first.wait()
        await wait_all_tasks_blocked()
        await holder.release()
        await wait_all_tasks_blocked()
        assert not served.is_set()
        device.catch_up()
        with trio.fail_after(20):
            await served.wait()
        await waiter.release()


async def test_a_hit_waits_for_a_slot_that_cools(dispatch, device):
    async with open_cache(config(dispatch, slots=2)) as cache, trio.open_nursery() as nursery:
        async with await cache.acquire([1, 2, 3]) as lease:
            await lease.extend(2)
            await lease.snapshot(at=2)
            await lease.publish()
        device.catch_up()
        async with await cache.acquire([9]) as busy:
            await busy.extend(1)
        served = trio.Event()

        async def hit() -> None:
            async with await cache.acquire([1, 2, 3]) as lease:
                assert lease.length == 2
                served.set()

        nursery.start_soon(hit)
        await wait_all_tasks_blocked()
        assert not served.is_set()
        device.catch_up()
        with trio.fail_after(20):
            await served.wait()
        device.catch_up()
        await cache.check()


async def test_a_device_that_hangs_does_not_keep_the_cache_from_closing(dispatch, device):
    freed = threading.Timer(20, device.catch_up)
    freed.start()
    async with open_cache(config(dispatch)) as cache:
        holder, waiter = await cache.acquire([1]), await cache.acquire([2])
        await holder.extend(8)
        with trio.move_on_after(0.1) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(waiter.extend, 4)
                await wait_all_tasks_blocked()
                await holder.release()
        assert scope.cancelled_caught
        await waiter.release()
    assert freed.is_alive()
    freed.cancel()
    device.catch_up()
