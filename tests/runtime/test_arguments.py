"""Wrong types are refused where they are handed in: an actor never meets them, and the cache lives on."""

from __future__ import annotations

import re
from array import array

import numpy as np
import pytest
import torch
from banyankv import (
    CacheConfig,
    ConfigError,
    ModelSpec,
    Namespace,
    PagedSpec,
    SnapshotSpec,
    StateTensor,
    StoreConfig,
    open_cache,
)
from banyankv.runtime.tokens import pack
from banyankv.testing import MemoryStore

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
    {1, 2},
    {1: 2},
    (i for i in range(3)),
    memoryview(b"abcd"),
    np.array([1, -200], dtype=np.int32),
    np.array([1, -200], dtype=np.int64),
    np.array([1, 1 << 32], dtype=np.uint64),
    torch.tensor([1, -200], dtype=torch.int32),
    array("i", [1, -200]),
    np.array([True]),
]

FORMS = [
    b"\x01\0\0\0\xff\0\0\0",
    bytearray(b"\x01\0\0\0\xff\0\0\0"),
    [1, 255],
    (1, 255),
    memoryview(b"\x01\0\0\0\xff\0\0\0").cast("I"),
    array("q", [1, 255]),
    np.array([1, 255], dtype=np.uint8),
    np.array([1, 255], dtype=np.int32),
    np.array([1, 255], dtype=">u4"),
    np.array([1, 0, 255, 0], dtype=np.int64)[::2],
    torch.tensor([1, 255], dtype=torch.uint8),
    torch.tensor([1, 255]),
]


def said(value):
    """Name a parameter; without an address, which is another one in each process that runs tests."""
    return re.sub(r" at 0x\w+", "", repr(value))[:40]


@pytest.mark.parametrize("tokens", FORMS, ids=said)
def test_every_form_of_the_same_ids_is_the_same_key(tokens):
    assert pack(tokens) == b"\x01\0\0\0\xff\0\0\0"


@pytest.mark.parametrize("tokens", TOKENS, ids=said)
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
        {"session": 7},
        {"session": "\ud800"},
        {"stream": "x"},
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


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": None},
        {"l1": {"full": 1.5, "swa": 4}},
        {"l1": {"full": True, "swa": 4}},
        {"l1": None},
        {"l1": {"full": 4}},
        {"l1": {"full": 4, "swa": 0}},
        {"l2": {"full": None, "swa": 4}},
        {"l2": 7},
        {"store": "folder"},
        {"policy": None},
        {"policy": "best"},
        {"dispatch": 1},
        {"device": None},
        {"seed": "x"},
        {"prefetch_threshold": 0},
        {"prefetch_threshold": 1.5},
        {"room_timeout": float("nan")},
        {"room_timeout": -1},
        {"room_timeout": "x"},
        {"store_timeout": float("nan")},
        {"store_timeout": 0},
    ],
    ids=repr,
)
def test_a_configuration_refuses_what_it_cannot_mean(wrong):
    with pytest.raises(ConfigError):
        CacheConfig(**{"model": MODEL, "l1": {"full": 64, "swa": 64}, **wrong})


@pytest.mark.parametrize(
    "make",
    [
        lambda: StoreConfig(path="", max_bytes=1 << 20),
        lambda: StoreConfig(path="a\0b", max_bytes=1 << 20),
        lambda: StoreConfig(path="a", max_bytes=1.5e9),
        lambda: StoreConfig(path="a", max_bytes=1 << 70),
        lambda: PagedSpec(name="full", layers=1.5),
        lambda: PagedSpec(name="full", window=-1),
        lambda: PagedSpec(name="full", window=None),
        lambda: PagedSpec(name="full", dtype=None),
        lambda: PagedSpec(name=7),
        lambda: PagedSpec(name="full", rule=None),
        lambda: StateTensor("s", (1.5,)),
        lambda: StateTensor("s", [1]),
        lambda: SnapshotSpec(states=("s",)),
        lambda: ModelSpec(name="\ud800", components=MODEL.components),
        lambda: ModelSpec(name="m", components=list(MODEL.components)),
        lambda: ModelSpec(name="m", components=("full",)),
        lambda: ModelSpec(name="m", page_size=2.0, components=MODEL.components),
    ],
)
def test_a_specification_refuses_what_it_cannot_mean(make):
    with pytest.raises(ConfigError):
        make()


class Refuses:
    """An index that cannot be had, as that of an array of two."""

    def __index__(self):
        raise TypeError("only one-element arrays")


@pytest.mark.parametrize("number", [np.array([1, 2]), torch.tensor([1, 2]), Refuses()], ids=said)
async def test_what_refuses_to_be_an_index_is_no_whole_number(dispatch, number):
    async with opened(dispatch) as cache, await cache.acquire(range(40)) as lease:
        with pytest.raises(ConfigError, match="must be a whole number"):
            await lease.extend(number)
        with pytest.raises(ConfigError, match="use infinity"):
            await lease.extend(1, deadline=10**400)
        with pytest.raises(ConfigError, match="sequence of prompts"):
            await cache.acquire_batch(5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": []},
        {"lent": 5},
        {"rules": "full"},
        {"rules": {"full": 5}},
        {"telemetry": 5},
        {"before_copy": 5},
        {"journal": "file"},
        {"faults": {}},
        {"store": MemoryStore()},
    ],
    ids=said,
)
async def test_opening_refuses_what_it_cannot_use(wrong):
    with pytest.raises(ConfigError):
        async with open_cache(CacheConfig(model=MODEL, l1={"full": 64, "swa": 64}), **wrong):
            pass


def opened(dispatch):
    return open_cache(CacheConfig(model=MODEL, l1={"full": 64, "swa": 64}, dispatch=dispatch))


async def still_serves(cache):
    async with await cache.acquire(range(20)) as lease:
        await lease.extend(20 - lease.length)
        await lease.publish()
    await cache.check()
