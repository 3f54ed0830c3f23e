"""The private room of a lease: states kept and kept again, room and ids taken back, cancelled extends."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from banyankv import (
    CacheConfig,
    ConfigError,
    ModelSpec,
    NoCapacity,
    PagedSpec,
    SnapshotSpec,
    StateTensor,
    open_cache,
)

STATES = SnapshotSpec(states=(StateTensor("s", (1,), "float32"),))
MODEL = ModelSpec(name="m", page_size=4, components=(PagedSpec(name="full"), STATES))
PROMPT = list(range(12))


def config(dispatch: str, full: int = 32, slots: int = 8, *, l2: bool = False) -> CacheConfig:
    room = {"full": full, "mamba": slots}
    return CacheConfig(
        model=MODEL, l1=room, l2=room if l2 else None, dispatch=dispatch, room_timeout=99
    )


def put(cache, slot: int | None, value: float) -> None:
    cache.pools.view("mamba")[0][slot] = value


async def free(cache) -> dict[str, int]:
    return {pool.component: pool.free for pool in (await cache.stats()).pools["l1"]}


@pytest.mark.parametrize("ticks", range(1, 40))
async def test_a_cancelled_first_extend_gives_its_slot_back(ticks):
    """Cancelled at any moment around its answer, it is as if it had not been asked."""
    async with open_cache(config("mailbox", 2, 2)) as cache:
        first = await cache.acquire([1] * 9)
        await first.extend(6)
        second, scope = await cache.acquire([2] * 9), trio.CancelScope()

        async def extend() -> None:
            with scope:
                await second.extend(3)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(extend)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(first.release)
            for _ in range(ticks):
                await trio.lowlevel.checkpoint()
            scope.cancel()
        if not second.extent:
            assert second.state() is None
            assert await free(cache) == {"full": 2, "mamba": 2}
            await second.extend(2)
        assert second.state() is not None
        await second.release()
        assert await free(cache) == {"full": 2, "mamba": 2}
        await cache.check()


async def test_a_newer_state_replaces_the_one_kept_for_its_place(dispatch):
    async with open_cache(config(dispatch)) as cache:
        async with await cache.acquire(PROMPT) as lease:
            await lease.extend(8)
            put(cache, lease.state(), 1.0)
            kept = await lease.snapshot(at=8)
            before = await free(cache)
            put(cache, lease.state(), 2.0)
            assert await lease.snapshot(at=8) == kept
            assert await free(cache) == before
            await lease.publish(8)
        async with await cache.acquire(PROMPT) as lease:
            assert lease.length == 8
            assert cache.pools.view("mamba")[0][lease.state()] == 2.0
        await cache.check()


async def test_a_snapshot_again_after_a_publish_that_had_to_stop(dispatch):
    """What a server does when it pre-empts: the state stayed private, and is kept anew."""
    gate = trio.Event()

    async def hold(*_: object) -> None:
        await gate.wait()

    async def reuse(cache):
        async with await cache.acquire(PROMPT):
            pass

    gate.set()
    lower = config(dispatch, l2=True)
    async with open_cache(lower, before_copy=hold) as cache, trio.open_nursery() as nursery:
        late = await cache.acquire(PROMPT)
        async with await cache.acquire(PROMPT) as lease:
            await lease.extend(8)
            await lease.snapshot(at=8)
            await lease.publish()
        await cache.settle()
        await cache.evict("full", 32)
        gate = trio.Event()
        nursery.start_soon(reuse, cache)
        await trio.testing.wait_all_tasks_blocked()
        await late.extend(8)
        await late.snapshot(at=8)
        assert await late.publish(8) == 0
        assert await late.snapshot(at=8) is not None
        gate.set()
        await cache.settle()
        assert await late.publish(8) == 8
        await late.release()
        await cache.check()


async def test_a_state_is_that_of_all_tokens_there_is_room_for(dispatch):
    """Kept for an earlier place it would be another prefix's: roll back to that place first."""
    async with open_cache(config(dispatch)) as cache, await cache.acquire(PROMPT) as lease:
        await lease.extend(6)
        for at in (4, 8):
            with pytest.raises(ConfigError, match="extent, 6"):
                await lease.snapshot(at=at)
        with pytest.raises(ConfigError, match="extent, 6"):
            await lease.snapshot(at=0)
        await lease.trim(2)
        assert await lease.snapshot(at=4) is not None
        assert await lease.publish() == 4
        with pytest.raises(ConfigError, match="behind what is published, 4"):
            await lease.snapshot(at=4)


async def test_trimmed_room_takes_the_ids_of_its_tokens_along(dispatch):
    """Drafts whose ids were sent with a publish and then rejected: others are published there."""
    async with open_cache(config(dispatch)) as cache:
        prompt = PROMPT[:4]
        async with await cache.acquire(prompt) as lease:
            await lease.extend(4)
            await lease.extend(4)
            lease.append([91, 92, 93, 94])
            assert await lease.publish(4) == 4
            await lease.trim(4)
            await lease.extend(4)
            with pytest.raises(ConfigError, match="4 token ids are known"):
                await lease.publish(8)
        async with await cache.acquire(PROMPT) as lease:  # a prompt is known before it has room
            await lease.extend(12)
            await lease.trim(8)
            await lease.extend(8)
            assert await lease.publish(12) == 12
        await cache.check()


async def test_what_a_window_has_passed_is_gone_also_after_a_refusal_or_a_cancellation(dispatch):
    window = PagedSpec(name="swa", rule="swa", window=1)
    model = ModelSpec(name="w", page_size=1, components=(PagedSpec(name="full"), window))
    small = CacheConfig(model=model, l1={"full": 8, "swa": 8}, dispatch=dispatch, room_timeout=99)
    async with open_cache(small) as cache, await cache.acquire([0, 0, 0]) as lease:
        await lease.extend(3)
        with pytest.raises(NoCapacity):
            await lease.extend(6, deadline=0)
        assert (lease.start("swa"), len(lease.pages("swa"))) == (2, 1)
        await lease.extend(2)
        async with await cache.acquire([1]) as other:
            await other.extend(3)
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(lease.extend, 3)
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
        assert scope.cancelled_caught
        assert (lease.start("swa"), len(lease.pages("swa"))) == (4, 1)
        await cache.check()
