"""Host memory: copies that are slow, fail or overlap with splits and evictions.

Not replayed, because they come later: write-back and its reclaim of duplicates, sidecars, exported
event streams.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import trio
import trio.testing
from banyankv import Namespace, PagedSpec, SnapshotSpec, StateTensor, Tier, open_cache

from .engine import config_of, mark, model_of
from .harness import NOBODY, Bench, bench_of
from .reference import Key

PROMPT = tuple(range(16))


async def held(bench: Bench, component: str, tier: Tier) -> list[int]:
    """Page ends (or positions) at which a component has payload, all prefixes together."""
    return sorted(len(key.prefix) for key in (await bench.look()).pages(component, tier))


async def demote(bench: Bench) -> None:
    """Empty L1."""
    for name in reversed(bench.rules.names):
        await bench.evict(name, 1000, Tier.L1)
        await bench.settled()
    assert not await held(bench, "full", Tier.L1)


async def test_everything_published_is_on_l2_and_comes_back() -> None:
    """Write-through, all three kinds: after L1 is emptied the same prompt is a hit from L2."""
    async with bench_of(config_of(model_of(2, window=4, states=True), 64, 64)) as bench:
        await bench.serve(PROMPT, keep=(8, 16))
        for name in bench.rules.names:
            assert await held(bench, name, Tier.L2) == await held(bench, name, Tier.L1)
        await demote(bench)
        turn = await bench.acquire(NOBODY, (*PROMPT, 99))
        assert turn is not None
        assert (turn.lease.length, turn.lease.hit.l1, turn.lease.hit.l2) == (16, 0, 16)
        assert turn.verify() == 16 + 4 + 1
        await bench.release(turn)


async def test_split_while_the_backup_is_stalled() -> None:
    """A node is split before its copy has begun: both halves are on L2 afterwards."""
    async with bench_of(config_of(model_of(2, window=4), 64, 64)) as bench:
        bench.gate.stall()
        turn = await bench.start(PROMPT)
        await bench.publish(turn, None)
        await bench.release(turn)
        await bench.settled()
        fork = await bench.start((*PROMPT[:6], 60, 61))
        await bench.publish(fork, None)
        await bench.release(fork)
        await bench.settled()
        assert Key(NOBODY, PROMPT[:6]) in (await bench.look()).ends
        bench.gate.let_go()
        await bench.settled()
        assert (await bench.look()).pages("full", Tier.L2) == (await bench.look()).pages(
            "full", Tier.L1
        )
        await demote(bench)
        assert await bench.hit((*PROMPT, 99)) == 16


async def test_failed_backup_never_counts_as_one() -> None:
    """The copy of A·B fails: neither is on L2; evicting them from L1 forgets them."""
    async with bench_of(config_of(model_of(2), 64, 64)) as bench:
        bench.gate.failing = 1
        await bench.serve(PROMPT[:4])
        flat = await bench.look()
        assert flat.pages("full", Tier.L2) <= flat.pages("full", Tier.L1)
        if not flat.pages("full", Tier.L2):
            await demote(bench)
            assert not (await bench.look()).known


async def test_no_backed_child_below_an_unbacked_parent() -> None:
    """L2 has room for A alone: B and C stay on L1 only, and leave it one by one."""
    async with bench_of(config_of(model_of(4), 64, 1)) as bench:
        room = (await bench.room(Tier.L2))["full"]
        prompt = tuple(range(4 * (room + 2)))
        await bench.serve(prompt, publish=range(4, len(prompt) + 1, 4))
        assert await held(bench, "full", Tier.L2) == list(range(4, 4 * room + 1, 4))
        for left in (room + 1, room):
            await bench.evict("full", 1, Tier.L1)
            await bench.settled()
            assert await held(bench, "full", Tier.L1) == list(range(4, 4 * left + 1, 4))
        await bench.evict("full", 1, Tier.L1)
        await bench.settled()
        assert await held(bench, "full", Tier.L1) == list(range(4, 4 * (room - 1) + 1, 4))
        assert await held(bench, "full", Tier.L2) == list(range(4, 4 * room + 1, 4))
        assert await bench.hit((*prompt, 1)) == 4 * room


async def test_split_and_eviction_while_l2_is_read() -> None:
    """A promotion is stalled; the node is split and evicted from L2: the bytes arrive right."""
    async with bench_of(config_of(model_of(2, window=4), 64, 64)) as bench:
        await bench.serve(PROMPT)
        await demote(bench)
        bench.gate.stall()
        assert await bench.acquire(NOBODY, (*PROMPT, 99)) is None
        fork = (*PROMPT[:6], 60, 61, 62)
        assert await bench.acquire(NOBODY, fork) is None
        await bench.settled()
        await bench.cache.evict("swa", 100, Tier.L2)
        await bench.cache.evict("full", 100, Tier.L2)
        await bench.settled()
        bench.gate.let_go()
        await bench.settled()
        assert not bench.pending
        assert sorted(turn.lease.length for turn in bench.turns) == [6, 16]
        for turn in list(bench.turns):
            assert turn.verify()
            await bench.release(turn)


async def test_wishes_for_one_arrival_join_it() -> None:
    """Three requests for one prefix on L2: its bytes move once."""
    async with bench_of(config_of(model_of(2), 64, 64)) as bench:
        await bench.serve(PROMPT)
        await demote(bench)
        moved = (await bench.cache.stats()).moved_bytes["l2_l1"]
        bench.gate.stall()
        for salt in range(3):
            assert await bench.acquire(NOBODY, (*PROMPT, salt)) is None
        bench.gate.let_go()
        await bench.settled()
        assert [turn.lease.length for turn in bench.turns] == [16] * 3
        assert (await bench.cache.stats()).moved_bytes["l2_l1"] - moved == 16 * 8
        for turn in list(bench.turns):
            await bench.release(turn)


async def test_pages_that_a_copy_reads_wait_for_its_end() -> None:
    """Room is there only when a stalled backup is over: extend waits for it, then has the pages."""
    async with bench_of(config_of(model_of(2), 8, 64)) as bench:
        bench.gate.stall()
        turn = await bench.start(PROMPT)
        await bench.publish(turn, None)
        await bench.release(turn)
        await bench.settled()
        late = await bench.acquire(NOBODY, tuple(range(50, 59)))
        assert late is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(late.lease.extend, 9)
            await trio.testing.wait_all_tasks_blocked()
            assert late.lease.extent == 0
            await bench.settled()
            bench.gate.let_go()
        late.compute()
        await bench.settled()
        await bench.release(late)
        assert await bench.hit((*PROMPT[:6], 99)) == 6


async def test_failed_promotion_is_a_shorter_hit() -> None:
    """The copy up fails: the request is served, with what is right, and what failed is not kept."""
    async with bench_of(config_of(model_of(2, window=4, states=True), 64, 64)) as bench:
        await bench.serve(PROMPT, keep=(8, 16))
        await demote(bench)
        bench.gate.stall()
        assert await bench.acquire(NOBODY, (*PROMPT, 99)) is None
        bench.gate.failing = 1
        bench.gate.let_go()
        await bench.settled()
        (turn,) = bench.turns
        assert turn.lease.length in (0, 8, 16)
        turn.verify()
        await bench.release(turn)


async def test_child_on_l2_only_below_a_parent_on_both() -> None:
    """A is promoted, B below it stays on L2: B is reached, A may leave L1 again, pages come free."""
    async with bench_of(config_of(model_of(2), 8, 64)) as bench:
        await bench.serve(PROMPT[:8])
        await bench.serve(PROMPT)
        await demote(bench)
        assert await bench.hit((*PROMPT[:8], 99)) == 8
        assert await held(bench, "full", Tier.L1) == [2, 4, 6, 8]
        await bench.evict("full", 4, Tier.L1)
        await bench.settled()
        assert await bench.hit((*PROMPT, 99)) == 16
        other = await bench.start(range(100, 116))
        await bench.release(other)


async def test_a_prompt_outlives_noise_on_l2() -> None:
    """32 tokens, then noise far beyond L1 and far below L2: the prompt is a hit from L2."""
    config = config_of(
        model_of(2, window=4, states=True),
        {"full": 24, "swa": 24, "mamba": 4},
        {"full": 512, "swa": 512, "mamba": 64},
    )
    async with bench_of(config) as bench:
        sentinel = tuple(range(32))
        await bench.serve(sentinel, keep=(16, 30))
        for noise in range(10):
            await bench.serve(tuple(range(1000 * (noise + 1), 1000 * (noise + 1) + 20)), keep=(20,))
        turn = await bench.acquire(NOBODY, sentinel)
        assert turn is not None
        assert (turn.lease.length, turn.lease.hit.l2) == (30, 30)
        await bench.release(turn)


@pytest.mark.parametrize("where", ["device", "host"])
async def test_equal_tokens_of_two_namespaces_never_meet(where: str) -> None:
    """None, "", and split fields are different namespaces, on either tier."""
    spaces = [
        Namespace(),
        Namespace(salt=""),
        Namespace(extra_key=""),
        Namespace("a", "bc"),
        Namespace("ab", "c"),
        Namespace("x", None),
        Namespace(None, "x"),
    ]
    async with bench_of(config_of(model_of(2, window=4), 128, 128)) as bench:
        for index, space in enumerate(spaces):
            for other in spaces[index:]:
                assert await bench.hit((*PROMPT[:8], 1), namespace=other) == 0
            await bench.serve(PROMPT[:8], namespace=space)
        if where == "host":
            await demote(bench)
        for space in spaces:
            assert await bench.hit((*PROMPT[:8], 1), namespace=space) == 8


async def test_every_tensor_of_a_state_travels() -> None:
    """A state of three tensors of different shapes and types is whole after L2 and back."""
    shapes = (
        StateTensor("conv", (3, 2), "float32"),
        StateTensor("ssm", (2, 2, 2), "float64"),
        StateTensor("count", (1,), "int32"),
    )
    plain = model_of(2)
    model = msgspec.structs.replace(
        plain,
        components=(PagedSpec(name="full", head_dim=4, tensors=1), SnapshotSpec(states=shapes)),
    )
    config = config_of(model, 16, 16)
    async with open_cache(config) as cache:
        expected = []
        async with await cache.acquire(list(PROMPT[:8])) as lease:
            await lease.extend(8)
            slot = lease.state("mamba")
            for raw in cache.pools.raw("mamba"):
                row = np.asarray(raw)[slot]
                expected.append(np.frombuffer(mark("m", NOBODY, str(row.size), (1,)) * 8, "u1"))
                row[:] = expected[-1][: row.size]
            assert await lease.snapshot("mamba", at=8) is not None
            assert await lease.publish() == 8
        await cache.settle()
        for component in ("mamba", "full"):
            await cache.evict(component, 16, Tier.L1)
        for raw in cache.pools.raw("mamba"):
            np.asarray(raw)[:] = 0
        async with await cache.acquire([*PROMPT[:8], 9]) as lease:
            assert (lease.length, lease.hit.l2) == (8, 8)
            slot = lease.state("mamba")
            for raw, want in zip(cache.pools.raw("mamba"), expected, strict=True):
                row = np.asarray(raw)[slot]
                assert (row == want[: row.size]).all()
        await cache.check()
