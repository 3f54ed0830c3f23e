"""acquire_batch answers what acquires one by one would, in one message a component."""

from __future__ import annotations

import random

import pytest
import trio
from banyankv import (
    CacheConfig,
    ConfigError,
    ModelSpec,
    PagedSpec,
    SnapshotSpec,
    StateTensor,
    open_cache,
)

PAGE = 4
MODEL = ModelSpec(
    name="m",
    page_size=PAGE,
    components=(
        PagedSpec(name="full", head_dim=2),
        PagedSpec(name="swa", rule="swa", window=8, head_dim=2),
        SnapshotSpec(states=(StateTensor("s", (1,), "float32"),)),
    ),
)


def config(dispatch: str, *, pages: int = 400, slots: int = 100, l2: bool = False) -> CacheConfig:
    room = {"full": pages, "swa": pages, "mamba": slots}
    return CacheConfig(model=MODEL, l1=room, l2=room if l2 else None, dispatch=dispatch)


async def serve(cache, tokens, snapshots=()) -> None:
    """Publish a prompt, keeping states at these positions and at the end."""
    async with await cache.acquire(tokens) as lease:
        position = lease.length
        for at in (*snapshots, len(tokens) // PAGE * PAGE):
            if at > position:
                await lease.extend(at - position)
                position = at
                cache.pools.view("mamba")[0][lease.state()] = at
                await lease.snapshot(at=at)
        await lease.publish()


def told(cache, lease) -> tuple:
    """Everything that a fresh lease says, but for which slot its state is in."""
    state = lease.state()
    return (
        lease.length,
        lease.full_match,
        lease.hit,
        lease.extent,
        lease.published,
        lease.pages("full").tolist(),
        lease.pages("swa").tolist(),
        lease.start("full"),
        lease.start("swa"),
        None if state is None else float(cache.pools.view("mamba")[0][state]),
    )


def prompts(seed: int) -> list[list[int]]:
    """Prompts over few tokens, so that they fork in nodes, at their ends and inside edges."""
    draw = random.Random(seed)
    trunk = [draw.randrange(3) for _ in range(80)]
    made = []
    for _ in range(40):
        cut = draw.randrange(0, 80)
        made.append(trunk[:cut] + [draw.randrange(3) for _ in range(draw.randrange(1, 30))])
    return made


@pytest.mark.parametrize("seed", range(6))
async def test_a_batch_is_what_single_acquires_are(dispatch, seed):
    asked = prompts(seed)
    draw = random.Random(seed + 100)
    async with open_cache(config(dispatch)) as batched, open_cache(config(dispatch)) as single:
        for tokens in prompts(seed)[:12]:
            stands = sorted(draw.sample(range(PAGE, 120, PAGE), 3))
            inside = [at for at in stands if at < len(tokens)]
            await serve(batched, tokens, inside)
            await serve(single, tokens, inside)
        leases = await batched.acquire_batch(asked)
        others = [await single.acquire(each) for each in asked]
        assert [told(batched, each) for each in leases] == [told(single, each) for each in others]
        await batched.check()
        stats = await batched.stats()
        assert stats.requests == (await single.stats()).requests
        assert stats.hit_tokens == (await single.stats()).hit_tokens
        for lease in (*leases, *others):
            await lease.release()
        await batched.check()
        assert (await batched.stats()).leases == 0


async def test_where_slots_are_short_each_takes_its_turn(dispatch):
    async with open_cache(config(dispatch, slots=5)) as cache:
        await serve(cache, range(40), (8, 16))
        leases = await cache.acquire_batch([range(100)] * 4)
        # three states stand in the tree; making room for copies evicts what nobody is to copy
        lengths = [lease.length for lease in leases]
        assert lengths[:2] == [40, 40]
        assert all(length in (0, 8, 16, 40) for length in lengths)
        states = cache.pools.view("mamba")[0]
        for lease in leases:
            if lease.length:
                assert float(states[lease.state()]) == lease.length
        await cache.check()
        for lease in leases:
            await lease.release()
        await cache.check()


async def test_an_inside_of_an_edge_is_split_after_the_others_are_served(dispatch):
    plain = ModelSpec(name="p", page_size=PAGE, components=(PagedSpec(name="full", head_dim=2),))
    small = CacheConfig(model=plain, l1={"full": 100}, dispatch=dispatch)
    async with open_cache(small) as cache:
        async with await cache.acquire(range(40)) as lease:
            await lease.extend(40)
            await lease.publish()
        asked = [[*range(length), 999] for length in (40, 12, 0, 24, 12)]
        leases = await cache.acquire_batch(asked)
        assert [lease.length for lease in leases] == [40, 12, 0, 24, 12]
        for lease in leases:
            assert len(lease.pages("full")) == lease.length // PAGE
            assert (
                lease.pages("full").tolist()
                == leases[0].pages("full").tolist()[: lease.length // PAGE]
            )
        await cache.check()
        for lease in leases:
            await lease.release()
        await cache.check()


async def test_it_brings_nothing_up(dispatch):
    async with open_cache(config(dispatch, l2=True)) as cache:
        await serve(cache, range(40))
        await cache.settle()
        for component in ("full", "swa", "mamba"):
            await cache.evict(component, 400)
        (lease,) = await cache.acquire_batch([range(100)])
        assert lease.length == 0
        assert lease.full_match == 0
        await lease.release()
        async with await cache.acquire(range(100)) as promoted:
            assert promoted.hit.l2 == 40
        await cache.check()


async def test_one_bad_prompt_refuses_all(dispatch):
    async with open_cache(config(dispatch)) as cache:
        assert await cache.acquire_batch([]) == []
        with pytest.raises(ConfigError):
            await cache.acquire_batch([range(10), []])
        assert (await cache.stats()).leases == 0


async def test_cancelled_before_it_begins_it_takes_nothing(dispatch):
    async with open_cache(config(dispatch)) as cache:
        with trio.CancelScope() as scope:
            scope.cancel()
            await cache.acquire_batch([range(10)] * 3)
        assert scope.cancelled_caught
        assert (await cache.stats()).leases == 0
        await cache.check()
