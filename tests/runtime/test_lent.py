"""Pools that the engine lends: the cache works in them, and gives the engine's own tensors back as views."""

from __future__ import annotations

import pytest
import torch
from banyankv import CacheConfig, ConfigError, ModelSpec, PagedSpec, open_cache

MODEL = ModelSpec(name="m", page_size=4, components=(PagedSpec(name="full", dtype="float32"),))


def lent(pages):
    return {"full": [torch.zeros(pages, 2, 4, 1, 1)]}


async def test_a_cache_works_in_lent_tensors(dispatch):
    tensors = lent(8)
    config = CacheConfig(model=MODEL, l1={"full": 8}, dispatch=dispatch)
    async with open_cache(config, lent=tensors) as cache, await cache.acquire(range(8)) as lease:
        await lease.extend(8)
        (view,) = cache.pools.view("full")
        view[list(lease.pages("full"))] = 7.0
        assert int(tensors["full"][0].eq(7).sum()) == 16
        assert await lease.publish() == 8


@pytest.mark.parametrize(
    "wrong", [lent(9), {"full": []}, {"full": 5}, {"full": [5]}, {"none": [torch.zeros(1)]}, 5]
)
async def test_lent_tensors_that_do_not_fit_are_refused(wrong):
    with pytest.raises(ConfigError):
        async with open_cache(CacheConfig(model=MODEL, l1={"full": 8}), lent=wrong):
            pass
