"""Windows: what has gone wrong elsewhere with sliding windows, locks and tombstones, replayed here.

Not replayed, because the design has no such thing: a second, early release of a window's lock (a lease
moves its locks once, at publish), keys of bigrams, and a map from FULL's page ids to SWA's.
"""

from __future__ import annotations

import itertools

import pytest
from banyankv import Tier

from .engine import config_of, model_of
from .harness import NOBODY, Bench, bench_of
from .reference import Key, Rules

SHARED = tuple(range(16))


async def live(bench: Bench, tokens: tuple[int, ...], component: str = "swa") -> list[int]:
    """Ends of the pages of `tokens` for which a component has payload on L1."""
    held = (await bench.look()).pages(component, Tier.L1)
    page = bench.rules.page
    return [end for end in range(page, len(tokens) + 1, page) if Key(NOBODY, tokens[:end]) in held]


async def windowless(bench: Bench, tokens: tuple[int, ...], upto: int) -> None:
    """Publish FULL up to `upto` of `tokens` without SWA behind what was there already."""
    longer = (*tokens[:upto], *range(900, 900 + 2 * bench.rules.page + 8))
    turn = await bench.start(longer, stops=range(len(longer)))
    assert turn.lease.start("swa") >= upto
    await bench.publish(turn, upto)
    await bench.release(turn)
    await bench.settled()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_segments_survive_splits_and_any_order_of_release(order: tuple[int, ...]) -> None:
    """Three windows over a shared prefix, with splits within: all counts come back to 0."""
    async with bench_of(config_of(model_of(2, window=4), 64)) as bench:
        first = (*SHARED, *range(20, 26))
        await bench.serve(SHARED)
        turns = [await bench.start(first)]
        await bench.publish(turns[0], None)
        for prompt in ((*first[:18], 80, 81), (*SHARED[:6], 90, 91, 92, 93)):
            turn = await bench.start(prompt)
            await bench.publish(turn, None)
            turns.append(turn)
            await bench.settled()
        await bench.evict("swa", 2, Tier.L1)
        await bench.settled()
        for index in order:
            await bench.release(turns[index])
            await bench.settled()
        assert not any((await bench.look()).locks.values())


async def test_lock_covers_one_window_and_its_split() -> None:
    """A·B·C of four tokens, window 6: C's lock is on B and C for SWA, on all for FULL; B is split."""
    async with bench_of(config_of(model_of(2, window=6), 64)) as bench:
        prompt = SHARED[:12]
        for upto in (4, 8, 12):
            await bench.serve(prompt[:upto])
        holder = await bench.acquire(NOBODY, (*prompt, 99))
        assert holder is not None and holder.lease.length == 12

        async def counts(name: str) -> list[int]:
            flat = await bench.look()
            return [
                flat.locks.get((name, Key(NOBODY, prompt[:end])), 0) for end in (2, 4, 6, 8, 10, 12)
            ]

        assert await counts("full") == [1] * 6
        window = await counts("swa")
        assert window[3:] == [1] * 3 and window[:1] == [0]
        await bench.serve((*prompt[:6], 50, 51))
        assert Key(NOBODY, prompt[:6]) in (await bench.look()).ends
        assert await counts("full") == [1] * 6
        assert await counts("swa") == window
        await bench.release(holder)
        assert await counts("swa") == await counts("full") == [0] * 6


async def test_hole_in_the_window_is_a_miss() -> None:
    """A=4 live, B=2 tombstone, C=2 live, window 4: A, never the end of C."""
    async with bench_of(config_of(model_of(2, window=4), 64)) as bench:
        prompt = SHARED[:8]
        await bench.serve(prompt[:4])
        turn = await bench.start((*prompt, 70, 71, 72), stops=range(5, 11))
        assert turn.lease.start("swa") == 6
        await bench.publish(turn, 8)
        await bench.release(turn)
        await bench.settled()
        assert await live(bench, prompt) == [2, 4, 8]
        assert await bench.hit((*prompt, 99)) == 4


async def test_a_window_that_nobody_else_agrees_on_is_no_start_of_a_table() -> None:
    """SWA reaches the end, the chunk has a hole at its beginning: the miss's tables start at 0."""
    async with bench_of(config_of(model_of(1, window=3, chunk=64), 40)) as bench:
        await bench.serve(SHARED[:4])
        await bench.serve(SHARED[:12])
        await bench.evict("chunked", 1, Tier.L1)
        assert await live(bench, SHARED[:12], "chunked") == list(range(2, 13))
        turn = await bench.acquire(NOBODY, SHARED[:13])
        assert turn is not None and turn.lease.length == 0
        assert turn.lease.start("swa") == 0
        await bench.extend(turn, 13, False)
        await bench.settled()


async def test_a_chunks_start_inside_an_edge_is_a_boundary() -> None:
    """One node of 16 tokens without its chunks: whoever shares 14 of them starts at 8, node or not."""
    async with bench_of(config_of(model_of(2, chunk=8), {"full": 64, "chunked": 12})) as bench:
        prompt, shorter = SHARED, (*SHARED[:14], 99)
        await bench.serve((*prompt, 20, 21))
        await bench.evict("chunked", 8, Tier.L1)
        assert await live(bench, prompt, "chunked") == []
        assert {len(key.prefix) for key in (await bench.look()).ends} == {16, 18}
        (batched,) = await bench.cache.acquire_batch([list(shorter)])
        assert batched.length == 8
        await batched.release()
        assert {len(key.prefix) for key in (await bench.look()).ends} == {8, 16, 18}
        assert await bench.hit(shorter) == 8  # and it is neither more nor less after the split
        turn = await bench.start(shorter)
        await bench.publish(turn, None)
        await bench.release(turn)
        assert await bench.hit((*shorter, 98)) == 14


async def test_a_leaf_that_ends_with_a_chunk_outlives_its_chunk() -> None:
    """What its boundary does not need goes alone: FULL stays, and so does the state."""
    async with bench_of(config_of(model_of(2, chunk=8, states=True), 64)) as bench:
        await bench.serve(SHARED, keep=(16,))
        await bench.evict("chunked", 8, Tier.L1)
        assert await live(bench, SHARED, "chunked") == []
        assert await bench.hit((*SHARED, 99)) == 16
        turn = await bench.start((*SHARED, 98, 97))
        await bench.publish(turn, 18)
        await bench.release(turn)
        await bench.evict("chunked", 1, Tier.L1)  # this one's boundary needs it
        assert await live(bench, (*SHARED, 98, 97), "full") == list(range(2, 17, 2))


async def test_full_window_behind_a_hole_is_good_again() -> None:
    """n1..n4 of four tokens, window 4: without SWA on n2 the end of n4 is still good."""
    async with bench_of(config_of(model_of(2, window=4, states=True), 64)) as bench:
        prompt = SHARED
        await bench.serve(prompt[:4])
        await windowless(bench, prompt, 8)
        await bench.serve(prompt, stops=(8, 12), keep=(16,), publish=(16,))
        assert await bench.hit((*prompt, 99)) == 16
        await bench.evict("mamba", 1, Tier.L1)
        assert await bench.hit((*prompt, 99)) == 0


async def test_window_is_revived_beside_someone_elses_pages() -> None:
    """A tombstoned node's old SWA pages belong to another request when the node is revived."""
    async with bench_of(config_of(model_of(2, window=4), {"full": 32, "swa": 8})) as bench:
        prompt = SHARED[:8]
        await bench.serve(prompt)
        await bench.serve((*prompt, 20, 21))
        other = await bench.start(range(40, 57), stops=(16,))
        assert await live(bench, prompt) == []
        assert await live(bench, prompt, "full") == [2, 4, 6, 8]
        again = await bench.start((*prompt, 60, 61), stops=(8,))
        assert again.lease.length == 0
        await bench.publish(again, None)
        await bench.settled()
        assert await live(bench, prompt) == [6, 8]
        assert other.verify() and again.verify()
        await bench.release(other)
        await bench.release(again)


async def test_revival_leaves_a_running_requests_pages_alone() -> None:
    """FULL of N is locked and read, its SWA is gone; a fresh publish revives SWA, FULL ids stay."""
    async with bench_of(config_of(model_of(2, window=4), 64)) as bench:
        prompt = SHARED[:8]
        runner = await bench.start((*prompt, 30, 31, 32, 33, 34, 35), stops=(4, 8, 10, 12, 14))
        await bench.publish(runner, 8)
        await bench.settled()
        assert 4 not in await live(bench, prompt)
        ids = bytes(runner.lease.pages("full"))
        fresh = await bench.start((*prompt, 77))
        assert fresh.lease.length == 0
        await bench.publish(fresh, 8)
        await bench.settled()
        assert bytes(runner.lease.pages("full")) == ids
        assert await live(bench, prompt) == [2, 4, 6, 8]
        assert bytes(fresh.lease.pages("full"))[: 4 * 4] == ids[: 4 * 4]
        await bench.release(fresh)
        assert await bench.hit((*prompt, 77)) == 8
        await bench.release(runner)


async def test_full_is_cached_where_all_of_swa_is_out_of_the_window() -> None:
    """A decode to 40 with windows given back: FULL of [0, 32) is cached, the window is not."""
    async with bench_of(config_of(model_of(2, window=4), 64)) as bench:
        prompt = tuple(range(40))
        turn = await bench.start(prompt, stops=range(20, 40))
        await bench.publish(turn, 32)
        await bench.release(turn)
        await bench.settled()
        assert await live(bench, prompt, "full") == list(range(2, 33, 2))
        assert await live(bench, prompt) == []


async def test_tokens_behind_the_window_never_become_live() -> None:
    """Published at 12 with the table's start at 8: tokens before it are tombstones, FULL is there."""
    async with bench_of(config_of(model_of(2, window=3), 64)) as bench:
        prompt = SHARED[:12]
        turn = await bench.start((*prompt, 50), stops=range(1, 13))
        start = turn.lease.start("swa")
        assert start == 8
        await bench.publish(turn, 12)
        assert await live(bench, prompt) == [10, 12]
        assert await live(bench, prompt, "full") == [2, 4, 6, 8, 10, 12]
        assert len(turn.lease.pages("full")) == 7
        assert await bench.hit((*prompt[:8], 99)) == 0
        assert await bench.hit((*prompt, 50)) == 12
        await bench.release(turn)


@pytest.mark.parametrize(
    ("window", "page", "extent", "start"), [(127, 64, 1023, 832), (3, 8, 23, 8)]
)
async def test_frontier_of_a_running_request(
    window: int, page: int, extent: int, start: int
) -> None:
    """The published figures for how far a request's window is given back."""
    model = model_of(page, window=window)
    assert Rules(model).trimmed("swa", extent, ()) == start
    async with bench_of(config_of(model, 64)) as bench:
        turn = await bench.start(tuple(range(extent + 1)), stops=(extent,))
        assert turn.lease.start("swa") == start
        await bench.publish(turn, None)
        await bench.release(turn)
        assert await bench.hit(tuple(range(extent + 1))) == extent // page * page


async def test_leaf_is_cut_where_its_window_begins() -> None:
    """A fresh leaf longer than a window is cut, so that a lock pins a window and not a long node."""
    async with bench_of(config_of(model_of(2, window=4), 64)) as bench:
        await bench.serve(SHARED)
        flat = await bench.look()
        assert {len(key.prefix) for key in flat.ends} == {12, 16}
        turn = await bench.acquire(NOBODY, (*SHARED, 99))
        assert turn is not None
        await bench.evict("swa", 100, Tier.L1)
        assert await live(bench, SHARED) == [14, 16]
        await bench.release(turn)
