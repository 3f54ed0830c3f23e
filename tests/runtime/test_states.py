"""States that an acquire has claimed: copied at once, or locked while it waits, never evicted for it."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from banyankv import (
    CacheConfig,
    ModelSpec,
    NoCapacity,
    PagedSpec,
    SnapshotSpec,
    StateTensor,
    Tier,
    open_cache,
)

MODEL = ModelSpec(
    name="m",
    page_size=4,
    components=(
        PagedSpec(name="full", head_dim=2),
        PagedSpec(name="swa", rule="swa", window=8, head_dim=2),
        SnapshotSpec(states=(StateTensor("s", (1,), "float32"),)),
    ),
)
OLD, NEW = list(range(40)), list(range(1000, 1040))


def config(dispatch: str, slots: int, *, l2: bool = False, policy: str = "lru") -> CacheConfig:
    room = {"full": 200, "swa": 200, "mamba": slots}
    return CacheConfig(
        model=MODEL,
        l1=room,
        l2={"full": 200, "swa": 200, "mamba": 50} if l2 else None,
        dispatch=dispatch,
        policy=policy,
    )


async def serve(cache, tokens, at: int, mark: float) -> None:
    """Publish a prompt with a state at one position: the working state itself, so one slot does."""
    async with await cache.acquire(tokens) as lease:
        await lease.extend(len(tokens) - lease.length)
        cache.pools.view("mamba")[0][lease.state()] = mark
        assert await lease.snapshot(at=at) is not None
        await lease.publish()


def value(cache, lease) -> float:
    return float(cache.pools.view("mamba")[0][lease.state()])


async def locks(cache) -> int:
    seen = (await cache.inspect()).components
    return sum(record.lock for part in seen if part.name == "mamba" for record in part.records)


@pytest.mark.parametrize("policy", ["lru", "fifo"])
async def test_room_for_the_copy_is_made_beside_the_state_that_is_copied(dispatch, policy):
    async with open_cache(config(dispatch, 3, policy=policy)) as cache:
        await serve(cache, OLD, 40, 1.5)
        await serve(cache, NEW, 40, 2.5)
        busy = await cache.acquire(range(2000, 2040))
        await busy.extend(4)  # takes the last free slot
        lease = await cache.acquire([*OLD, 7])
        assert (lease.length, value(cache, lease)) == (40, 1.5)
        assert await locks(cache) == 0  # it was copied at once
        assert (await cache.peek([*OLD, 7])).length == 40
        assert (await cache.peek([*NEW, 7])).length == 0  # made room
        await cache.check()
        await lease.release()
        await busy.release()


async def test_a_state_is_no_room_for_its_own_copy(dispatch):
    async with open_cache(config(dispatch, 2)) as cache:
        await serve(cache, OLD, 40, 1.5)
        async with await cache.acquire(range(2000, 2040)) as busy:
            await busy.extend(4)
            async with await cache.acquire([*OLD, 7]) as lease:
                assert (lease.length, lease.full_match) == (0, 40)
                await cache.check()
        async with await cache.acquire([*OLD, 7]) as lease:
            assert (lease.length, value(cache, lease)) == (40, 1.5)


async def test_nor_is_it_while_the_window_beside_it_comes_back(dispatch):
    async with open_cache(config(dispatch, 2, l2=True)) as cache:
        await serve(cache, OLD, 40, 1.5)
        await cache.settle()
        await cache.evict("swa", 200)
        async with await cache.acquire(range(2000, 2040)) as busy:
            await busy.extend(4)
            async with await cache.acquire([*OLD, 7]) as lease:
                assert (lease.length, lease.full_match) == (0, 40)
                await cache.check()
        async with await cache.acquire([*OLD, 7]) as lease:
            assert (lease.length, value(cache, lease)) == (40, 1.5)
            assert lease.hit.l2 == 40


async def test_who_waits_for_a_window_locks_the_state_meanwhile(dispatch):
    held, gate = trio.Event(), trio.Event()

    async def stall(*_) -> None:
        if stalling:
            held.set()
            await gate.wait()

    stalling = False
    lower = config(dispatch, 4, l2=True, policy="lru_k")
    async with open_cache(lower, before_copy=stall) as cache:
        await serve(cache, OLD, 40, 1.5)
        await cache.settle()
        await cache.evict("swa", 200)
        stalling = True
        async with trio.open_nursery() as nursery:
            leases = []

            async def acquire() -> None:
                leases.append(await cache.acquire([*OLD, 7]))

            nursery.start_soon(acquire)
            await held.wait()
            assert await locks(cache) == 1
            assert (await cache.evict("mamba", 4)).nodes == 0
            assert (await cache.evict("mamba", 4, Tier.L2)).nodes == 1
            await cache.check()
            gate.set()
        (lease,) = leases
        assert (lease.length, value(cache, lease)) == (40, 1.5)
        assert await locks(cache) == 0
        await cache.check()
        await lease.release()


async def test_who_has_a_slot_asks_for_pages_only_wherever_the_model_names_its_states(dispatch):
    """Its pool of states has nothing free, but what it lacks behind a waiter is pages."""
    full, window, states = MODEL.components
    model = ModelSpec(name="m", page_size=4, components=(full, states, window))
    room = {"full": 10, "swa": 10, "mamba": 2}
    small = CacheConfig(model=model, l1=room, dispatch=dispatch)
    async with open_cache(small) as cache, trio.open_nursery() as nursery:
        first, second = await cache.acquire(OLD), await cache.acquire(NEW)
        await first.extend(24)
        await second.extend(6)
        assert [len(second.pages(name)) for name in ("full", "swa")] == [2, 2]
        assert {first.state(), second.state()} == {0, 1}
        nursery.start_soon(first.extend, 16)
        await trio.testing.wait_all_tasks_blocked()
        await second.extend(2)
        with pytest.raises(NoCapacity) as caught:
            await second.extend(1, deadline=0)
        assert (caught.value.pool, caught.value.needed, caught.value.free) == ("full", 1, 2)
        await second.release()
        await trio.testing.wait_all_tasks_blocked()
        assert [len(first.pages(name)) for name in ("full", "swa")] == [10, 6]
        await first.release()
        await cache.check()
