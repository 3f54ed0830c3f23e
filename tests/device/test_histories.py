"""A whole cache on a simulated device: engines on several streams never meet a wrong byte."""

from __future__ import annotations

import os
import random
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
import trio.testing
from banyankv import ActorCrashed, CacheConfig, ModelSpec, PagedSpec, open_cache
from banyankv.actors import Fault, FaultKind, FaultPlan
from banyankv.testing import MemoryStore, simulated_device

from .engine import history, repeatable

SEEDS = int(os.environ.get("BANYANKV_HISTORIES", "30"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_byte_is_wrong(seed):
    with repeatable(seed):
        engine = history(seed, streams=1 + seed % 3, l2=seed % 4 != 3)
    assert not engine.wrong
    assert engine.done["compared"]


@pytest.mark.parametrize("seed", range(4))
def test_no_byte_is_wrong_with_copies_on_threads(seed):
    assert not history(seed, streams=1 + seed % 2).wrong


MESSAGES = (
    *("Acquire", "Extend", "Snapshot", "Trim", "Publish", "Release", "Background", "Copied"),
    *("Walk", "Insert", "Claim", "Grow", "Evict", "Allocate", "Clone", "Free", "Over", "Copy"),
)


@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_no_byte_is_wrong_after_crashes(seed):
    rng = random.Random(seed)
    crashes = tuple(
        Fault(message=message, what=FaultKind.CRASH, nth=rng.randint(1, 60))
        for message in rng.sample(MESSAGES, 3)
    )
    clock = trio.testing.MockClock(autojump_threshold=0)
    with repeatable(seed):
        engine = history(seed, streams=1 + seed % 3, faults=FaultPlan(faults=crashes), clock=clock)
    assert not engine.wrong


def test_a_history_is_repeated_by_its_seed_and_moves_pages_both_ways():
    done = Counter()
    for seed in range(4):
        with repeatable(seed):
            first = history(seed, streams=2)
        with repeatable(seed):
            assert history(seed, streams=2).done == first.done
        done += first.done
    for what in ("l1_l2", "l2_l1", "l1 hit", "l2 hit", "full evicted", "mamba evicted"):
        assert done[what], what


MODEL = ModelSpec(
    name="m", page_size=16, components=(PagedSpec(name="full", head_dim=4, tensors=1),)
)


def row(cache, lease, page):
    (raw,) = cache.pools.raw("full")
    return raw[lease.pages("full")[page]]


def fill(cache, lease, stream, value):
    for page in range(len(lease.pages("full"))):
        stream.enqueue(partial(row(cache, lease, page).fill_, value))


async def publish(cache, prompt, stream, value):
    """Compute a prompt on a stream: every byte of it is `value`."""
    async with await cache.acquire(prompt, stream=stream.handle) as lease:
        await lease.extend(len(prompt) - lease.length)
        fill(cache, lease, stream, value)
        await lease.publish()


@pytest.mark.parametrize("seed", range(10))
async def test_an_engine_on_another_stream_finds_what_was_published(seed):
    seen = []
    with simulated_device(seed) as device:
        config = CacheConfig(model=MODEL, l1={"full": 8})
        async with open_cache(config) as cache:
            one, other = device.new_stream(), device.new_stream()
            await publish(cache, range(33), one, 7)
            async with await cache.acquire(range(33), stream=other.handle) as lease:
                assert lease.length == 32
                found = row(cache, lease, 1)
                other.enqueue(lambda: seen.append(found.tolist()))
                other.synchronize()
    assert seen == [[7] * len(seen[0])]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("seed", range(10))
async def test_leaving_a_lease_waits_for_the_stream_that_it_was_acquired_with(seed, crash):
    """Also where the cache crashes then: what a recovery frees has to cool as well."""
    with simulated_device(seed) as device:
        config = CacheConfig(model=MODEL, l1={"full": 3})
        plan = FaultPlan(faults=(Fault(message="Peek", what=FaultKind.CRASH),))
        async with open_cache(config, faults=plan) as cache:
            one, other = device.new_stream(), device.new_stream()
            second = await cache.acquire([1], stream=other.handle)
            async with await cache.acquire([2], stream=one.handle) as first:
                await first.extend(48)
                fill(cache, first, one, 1)
            if crash:
                with pytest.raises(ActorCrashed):
                    await cache.peek([1])
            await second.extend(48)
            fill(cache, second, other, 2)
            device.synchronize()
            assert np.unique(cache.pools.raw("full")[0].numpy()).tolist() == [2]
            await second.release()


@pytest.mark.parametrize("seed", range(10))
async def test_lent_tensors_may_still_be_zeroed_when_a_cache_opens(seed):
    store = MemoryStore()
    config = CacheConfig(model=MODEL, l1={"full": 40}, l2={"full": 40}, prefetch_threshold=1)
    prompt = range(513)
    with simulated_device(seed) as device:
        async with open_cache(config, store=store) as cache:
            await publish(cache, prompt, device.new_stream(), 7)
            await cache.settle()
    with simulated_device(seed) as device:
        lent = torch.empty((40, 1, 16, 1, 4), dtype=torch.float16)
        device.stream_at(0).enqueue(lent.zero_)
        async with (
            open_cache(config, store=store, lent={"full": [lent]}) as cache,
            await cache.acquire(prompt) as lease,
        ):
            assert lease.length == 512
            device.synchronize()
            assert row(cache, lease, 3).unique().tolist() == [7]
