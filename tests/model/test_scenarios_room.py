"""Room: duplicates, drafts, eviction amounts and cascades, and waiting for pages.

Not replayed: views of one large token tensor (the cache packs every prompt into bytes of its own).
"""

from __future__ import annotations

import pytest
import trio
import trio.testing
from banyankv import NoCapacity, Tier

from .engine import Turn, config_of, model_of
from .harness import NOBODY, Bench, bench_of
from .hunt import play
from .reference import Key
from .script import Script, Step

PROMPT = tuple(range(16))


async def held(bench: Bench, component: str, tier: Tier = Tier.L1) -> list[int]:
    """Page ends (or positions) at which a component has payload, all prefixes together."""
    return sorted(len(key.prefix) for key in (await bench.look()).pages(component, tier))


async def test_duplicates_are_freed_and_the_table_points_at_the_tree() -> None:
    """Who reused 8 of 12 hands over 4; who reused 4 gives 8 back and reads the tree's pages."""
    async with bench_of(config_of(model_of(2, window=4), 64)) as bench:
        prompt = PROMPT[:12]
        await bench.serve(prompt[:4])
        late = await bench.start((*prompt, 50))
        assert late.lease.length == 4
        await bench.serve((*prompt[:8], 60))
        early = await bench.start((*prompt, 51))
        assert early.lease.length == 8
        free = (await bench.room())["full"]
        assert await bench.publish(early, 12) == 12
        assert (await bench.room())["full"] == free
        assert await bench.publish(late, 12) == 12
        assert (await bench.room())["full"] == free + 4
        assert bytes(late.lease.pages("full"))[: 6 * 4] == bytes(early.lease.pages("full"))[: 6 * 4]
        await bench.settled()
        assert await bench.publish(late, 12) == 12
        await bench.release(early)
        await bench.release(late)


async def test_two_requests_at_once_end_with_one_copy() -> None:
    """Both compute all of one prompt before either publishes."""
    async with bench_of(config_of(model_of(2, window=4, states=True), 64)) as bench:
        turns = [await bench.start(PROMPT, keep=(8,)) for _ in range(2)]
        for turn in turns:
            await bench.publish(turn, None)
            await bench.settled()
        assert await held(bench, "full") == list(range(2, 17, 2))
        assert await held(bench, "mamba") == [8]
        for turn in turns:
            await bench.release(turn)


async def test_rejected_drafts_and_the_tail_are_given_back() -> None:
    """Pages of 4, ten tokens and three rejected drafts: two pages stay."""
    async with bench_of(config_of(model_of(4), 16)) as bench:
        turn = await bench.start(PROMPT[:10])
        await turn.lease.extend(3)
        await turn.lease.trim(3)
        assert turn.lease.extent == 10
        await bench.settled()
        await bench.publish(turn, None)
        await bench.release(turn)
        assert (await bench.room())["full"] == 14


async def test_eviction_goes_on_to_its_target() -> None:
    """More than one victim is needed: leaves go until the target is met, not a victim further."""
    async with bench_of(config_of(model_of(2), 64)) as bench:
        for first in range(6):
            await bench.serve((100 + first, 1, 2, 3))
        report = await bench.cache.evict("full", 5, Tier.L1)
        assert report.freed == 6
        assert len(await held(bench, "full")) == 6
        report = await bench.cache.evict("full", 1000, Tier.L1)
        assert report.freed == 6
        assert report.why
        assert await held(bench, "full") == []


async def test_least_recently_used_goes_first_and_looking_does_not_freshen() -> None:
    """A lookup of a node's beginning freshens that, not the cold rest; a peek freshens nothing."""
    async with bench_of(config_of(model_of(2), 64)) as bench:
        old, new = tuple(range(12)), tuple(range(50, 62))
        await bench.serve(old)
        await bench.serve(new)
        assert await bench.hit((*old[:6], 99)) == 6
        await bench.cache.peek([*old, 99])
        await bench.evict("full", 3, Tier.L1)
        flat = (await bench.look()).pages("full", Tier.L1)
        assert Key(NOBODY, old[:6]) in flat and Key(NOBODY, old[:8]) not in flat
        assert Key(NOBODY, new) in flat


async def test_cascade_on_inner_nodes_and_leaves() -> None:
    """Inner: a state goes alone, SWA takes the state along. Leaf: whatever goes takes everything."""
    async with bench_of(config_of(model_of(2, window=4, states=True), 64)) as bench:
        prompt = PROMPT[:12]
        await bench.serve(prompt, keep=(4, 8, 12), publish=(4, 8, 12))
        await bench.serve((*prompt[:8], 60), publish=())
        await bench.serve((*prompt, 60), publish=())
        await bench.evict("mamba", 1, Tier.L1)
        assert await held(bench, "mamba") == [8, 12]
        assert await held(bench, "swa") == await held(bench, "full") == [2, 4, 6, 8, 10, 12]
        await bench.evict("swa", 1, Tier.L1)
        assert await held(bench, "swa") == [6, 8, 10, 12]
        await bench.evict("swa", 1, Tier.L1)
        assert (await held(bench, "swa"), await held(bench, "mamba")) == ([10, 12], [12])
        assert await held(bench, "full") == [2, 4, 6, 8, 10, 12]
        await bench.evict("mamba", 1, Tier.L1)
        assert (await held(bench, "swa"), await held(bench, "mamba")) == ([], [])
        assert await held(bench, "full") == [2, 4, 6, 8]


async def test_locked_childless_node_is_treated_as_an_inner_one() -> None:
    """A lease on the leaf: its state goes, its window does not, and nothing else."""
    async with bench_of(config_of(model_of(2, window=4, states=True), 64)) as bench:
        await bench.serve(PROMPT[:8], keep=(8,))
        turn = await bench.acquire(NOBODY, PROMPT[:9])
        assert turn is not None and turn.lease.length == 8
        for name in ("mamba", "swa", "full"):
            await bench.evict(name, 100, Tier.L1)
        assert (await held(bench, "full"), await held(bench, "mamba")) == ([2, 4, 6, 8], [])
        assert (await held(bench, "swa"))[-2:] == [6, 8]
        await bench.extend(turn, 1, False)
        await bench.release(turn)


async def test_waiting_for_room_is_first_come_first_served() -> None:
    """A small request behind a large one does not overtake it, though its page is free."""
    async with bench_of(config_of(model_of(2), 8)) as bench:
        holder = await bench.start(PROMPT[:14])
        first, second = [await bench.acquire(NOBODY, (200 + k, *range(15))) for k in range(2)]
        assert first is not None
        assert second is not None
        order: list[int] = []

        async def wait(turn: Turn, count: int) -> None:
            await turn.lease.extend(count)
            order.append(count)

        async with trio.open_nursery() as nursery:
            for turn, count in ((first, 16), (second, 1)):
                nursery.start_soon(wait, turn, count)
                await trio.testing.wait_all_tasks_blocked()
            assert not order
            await bench.release(holder)
            await trio.testing.wait_all_tasks_blocked()
            assert order == [16]
            first.compute()
            await bench.release(first)
        assert order == [16, 1]
        second.compute()
        await bench.release(second)


async def test_no_capacity_says_what_is_missing() -> None:
    """At once where it could never fit, at the deadline where others hold the pages."""
    async with bench_of(config_of(model_of(2), 8)) as bench:
        holder = await bench.start(PROMPT[:9])
        await bench.publish(holder, None)
        other = await bench.acquire(NOBODY, (50, 51))
        assert other is not None
        with pytest.raises(NoCapacity) as never:
            await other.lease.extend(100)
        assert (never.value.pool, never.value.needed) == ("full", 50)
        with pytest.raises(NoCapacity) as late:
            await other.lease.extend(8, deadline=0.0)
        error = late.value
        assert (error.pool, error.needed, error.free, error.locked) == ("full", 4, 3, 5)
        await bench.release(holder)
        await bench.settled()
        await other.lease.extend(8, deadline=0.0)
        other.compute()
        await bench.release(other)


async def test_cancelled_waiter_leaves_the_queue() -> None:
    """The one behind it is served, and nothing is missing."""
    async with bench_of(config_of(model_of(2), 8)) as bench:
        holder = await bench.start(PROMPT)
        first, second = [await bench.acquire(NOBODY, (200 + k, 1)) for k in range(2)]
        assert first is not None and second is not None
        scope = trio.CancelScope()

        async def wait() -> None:
            with scope:
                await first.lease.extend(16)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(second.lease.extend, 16)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            await bench.release(holder)
        assert first.lease.extent == 0
        assert second.lease.extent == 16
        second.compute()
        await bench.release(first)
        await bench.release(second)


async def test_flush_gives_back_both_tiers() -> None:
    """After a flush every page of L1 and L2 is free, and the same prompt is a miss."""
    async with bench_of(config_of(model_of(2, window=4, states=True), 32, 32)) as bench:
        await bench.serve(PROMPT, keep=(8, 16))
        assert await held(bench, "full", Tier.L2)
        await bench.flush()
        await bench.settled()
        for pools in (await bench.cache.stats()).pools.values():
            assert all(usage.free == usage.capacity for usage in pools)
        assert await bench.hit((*PROMPT, 1)) == 0


def test_waiting_for_room_on_l2_while_a_copy_is_stalled_keeps_nobody_busy() -> None:
    """A backup that waits for room must not wake itself by a save that finds nothing to write."""
    play(
        Script(
            kinds=("mamba", "l2", "store"),
            page=4,
            chunk=16,
            pages=60,
            slots=6,
            host=8,
            store=True,
            dispatch="mailbox",
            seed=700221,
            steps=(
                Step("turn", 43, 18, 16, 19),
                Step("turn", 31, 58, 41, 35),
                Step("turn", 5, 58, 29, 30),
                Step("demote", 0, 5, 0, 2),
                Step("stall"),
                Step("start", 53, 0, 12, 51),
                Step("turn", 62, 46, 37, 8),
                Step("release", 36, 33, 10, 27),
                Step("evict", 58, 54, 62, 42),
            ),
        )
    )
