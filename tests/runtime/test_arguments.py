"""Wrong types are refused where they are handed in: an actor never meets them, and the cache lives on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from banyankv import CacheConfig, ConfigError, ModelSpec, Namespace, PagedSpec, open_cache

MODEL = ModelSpec(
    name="m",
    page_size=4,
    components=(PagedSpec(name="full"), PagedSpec(name="swa", rule="swa", window=8)),
)

TOKENS = [
    5,
    None,
    b"abc",
    [-1],
    ["a"],
    [1 << 32],
    [[1, 2], [3, 4]],
    np.array([1.5]),
    np.array(["2026-01-01"], dtype="datetime64[D]"),
    np.zeros((2, 2), dtype=np.int32),
    torch.Tensor,
    torch.zeros(2, dtype=torch.bfloat16),
    torch.zeros(2, requires_grad=True),
    b"",
]


@pytest.mark.parametrize("tokens", TOKENS, ids=lambda value: repr(value)[:30])
async def test_tokens(dispatch, tokens):
    async with opened(dispatch) as cache:
        with pytest.raises(ConfigError):
            await cache.acquire(tokens)
        await still_serves(cache)


@pytest.mark.parametrize(
    "wrong",
    [
        {"namespace": "a"},
        {"namespace": 5},
        {"namespace": Namespace(salt="\ud800")},
        {"namespace": Namespace(extra_key=5)},
        {"priority": "x"},
        {"priority": 1.5},
        {"deadline": "x"},
        {"deadline": float("nan")},
    ],
    ids=repr,
)
async def test_acquire(dispatch, wrong):
    async with opened(dispatch) as cache:
        with pytest.raises(ConfigError):
            await cache.acquire(range(20), **wrong)
        await still_serves(cache)


@pytest.mark.parametrize(
    ("verb", "args", "named"),
    [
        ("extend", (0,), {}),
        ("extend", (-1,), {}),
        ("extend", (1.5,), {}),
        ("extend", (True,), {}),
        ("extend", ("x",), {}),
        ("extend", (1,), {"deadline": "x"}),
        ("trim", (1.5,), {}),
        ("trim", (100,), {}),
        ("trim", (None,), {}),
        ("publish", (1.5,), {}),
        ("publish", ("x",), {}),
        ("publish", (1000,), {}),
        ("snapshot", ("full",), {"at": 4}),
        ("snapshot", ([],), {"at": 4}),
        ("snapshot", ("full",), {"at": "x"}),
    ],
)
async def test_lease(dispatch, verb, args, named):
    async with opened(dispatch) as cache, await cache.acquire(range(40)) as lease:
        await lease.extend(20)
        before = (lease.extent, lease.start("swa"), bytes(lease.pages("swa")))
        with pytest.raises(ConfigError):
            await getattr(lease, verb)(*args, **named)
        assert (lease.extent, lease.start("swa"), bytes(lease.pages("swa"))) == before
        await cache.check()
        await lease.extend(20)
        assert await lease.publish() == 40


@pytest.mark.parametrize(
    "args", [("none", 1), ([], 1), ("full", "x"), ("full", -1), ("full", 1, 7), ("full", 1, None)]
)
async def test_evict(dispatch, args):
    async with opened(dispatch) as cache:
        with pytest.raises(ConfigError):
            await cache.evict(*args)
        await still_serves(cache)


def opened(dispatch):
    return open_cache(CacheConfig(model=MODEL, l1={"full": 64, "swa": 64}, dispatch=dispatch))


async def still_serves(cache):
    async with await cache.acquire(range(20)) as lease:
        await lease.extend(20 - lease.length)
        await lease.publish()
    await cache.check()
