"""Recurrent states: where they stand, who pins them, and what happens when there are too few.

Not replayed, because the design has no such thing: a grid of checkpoints other than the page, blocks
that stand for padding, hit lengths in units other than tokens, and temporary locks taken for a copy.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing
from banyankv import NoCapacity, Tier

from .engine import config_of, model_of
from .harness import NOBODY, Bench, bench_of
from .reference import Key

PROMPT = tuple(range(16))


async def states(bench: Bench, tier: Tier = Tier.L1) -> list[int]:
    """Positions of all states on a tier, in order."""
    return sorted(len(key.prefix) for key in (await bench.look()).pages("mamba", tier))


async def test_three_components_agree_on_the_deepest_common_boundary() -> None:
    """States at n2 and n4: n4; without n4's state n2; both with SWA everywhere."""
    async with bench_of(config_of(model_of(2, window=4, states=True), 64)) as bench:
        await bench.serve(PROMPT, stops=(4, 12), keep=(8, 16), publish=(4, 8, 12, 16))
        assert await bench.hit((*PROMPT, 99)) == 16
        assert await bench.hit((*PROMPT[:14], 99, 98)) == 8
        await bench.serve((*PROMPT[:8], 50))  # n2's state is used later than n4's
        await bench.evict("mamba", 1, Tier.L1)
        assert await states(bench) == [8]
        assert await bench.hit((*PROMPT, 99)) == 8


async def test_copy_with_a_full_pool_takes_another_state_or_none() -> None:
    """No slot is free: the copy evicts another state; where only its source is left it is a miss."""
    config = config_of(model_of(2, window=4, states=True), {"full": 64, "swa": 64, "mamba": 3})
    async with bench_of(config) as bench:
        await bench.serve(PROMPT[:8], keep=(8,))
        await bench.serve((70, 71, 72), keep=(2,))
        holder = await bench.start((90, 91))
        assert await states(bench) == [2, 8]
        turn = await bench.acquire(NOBODY, (*PROMPT[:12], 99))
        assert turn is not None and turn.lease.length == 8
        assert await states(bench) == [8]
        crowded = await bench.acquire(NOBODY, (*PROMPT[:8], 98))
        assert crowded is not None and crowded.lease.length == 0
        await bench.release(crowded)
        await bench.extend(turn, 4, False)
        await bench.publish(turn, None)
        await bench.release(turn)
        await bench.release(holder)


async def test_a_state_that_nobody_else_agrees_on_is_no_working_state() -> None:
    """State at 8, a hole in the window before it, nothing shallower: a miss starts from no state."""
    async with bench_of(config_of(model_of(1, window=4, states=True), 40)) as bench:
        await bench.serve(PROMPT[:6])
        await bench.serve(PROMPT[:9], keep=(8,))
        await bench.evict("swa", 3, Tier.L1)
        assert await states(bench) == [8]
        turn = await bench.acquire(NOBODY, PROMPT[:10])
        assert turn is not None and turn.lease.length == 0
        assert turn.lease.state("mamba") is None
        await bench.release(turn)


async def test_the_slot_for_a_copy_is_never_made_of_its_source() -> None:
    """A window comes up from L2 for a state on L1, which no slot is free to copy: the state stays."""
    room = {"full": 40, "swa": 40, "mamba": 2}
    config = config_of(model_of(1, window=4, states=True), room, 40)
    async with bench_of(config) as bench:
        await bench.serve(PROMPT[:9], keep=(8,))
        await bench.evict("swa", 100, Tier.L1)
        holder = await bench.start((90, 91))
        turn = await bench.acquire(NOBODY, PROMPT[:10])
        assert turn is not None and turn.lease.length == 0
        assert await states(bench) == [8]
        await bench.release(turn)
        await bench.release(holder)


async def test_no_slot_leaks_when_a_request_finds_no_room() -> None:
    """Ten requests that got a copy of the state and then no pages: the slots are all back."""
    config = config_of(model_of(2, states=True), {"full": 8, "mamba": 2})
    async with bench_of(config) as bench:
        await bench.serve(PROMPT[:8], keep=(8,))
        for _ in range(10):
            turn = await bench.acquire(NOBODY, PROMPT[:9])
            assert turn is not None and turn.lease.length == 8
            with pytest.raises(NoCapacity) as caught:
                await turn.lease.extend(100)
            assert caught.value.pool == "full"
            await bench.release(turn)
            await bench.settled()
            assert (await bench.room())["mamba"] == 1


async def test_state_of_a_leaf_whose_full_is_locked_goes_alone() -> None:
    """Evicting a state on a locked leaf leaves the leaf's other payload where it is."""
    async with bench_of(config_of(model_of(2, states=True), 32)) as bench:
        await bench.serve(PROMPT[:8], keep=(8,))
        turn = await bench.acquire(NOBODY, PROMPT[:9])
        assert turn is not None
        await bench.evict("mamba", 8, Tier.L1)
        assert await states(bench) == []
        assert Key(NOBODY, PROMPT[:8]) in (await bench.look()).pages("full", Tier.L1)
        await bench.extend(turn, 1, False)
        await bench.release(turn)


async def test_slots_that_are_all_taken_are_waited_for() -> None:
    """Every slot is a running request's: NoCapacity at once or at the deadline, else a wait."""
    config = config_of(model_of(2, states=True), {"full": 32, "mamba": 2})
    async with bench_of(config) as bench:
        running = [await bench.start((k, k + 1, k + 2)) for k in (0, 10)]
        late = await bench.acquire(NOBODY, (20, 21, 22))
        assert late is not None
        with pytest.raises(NoCapacity) as caught:
            await late.lease.extend(3, deadline=0.0)
        assert (caught.value.pool, caught.value.needed, caught.value.free) == ("mamba", 1, 0)
        done = trio.Event()

        async def wait() -> None:
            await late.lease.extend(3)
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert not done.is_set()
            await running.pop().lease.release()
            await done.wait()
        late.compute()
        late.verify()
        for turn in (*running, late):
            await turn.lease.release()
        bench.turns.clear()
        bench.covers.clear()


async def test_eviction_of_nothing_but_locked_things_ends() -> None:
    """All is locked: evict says so at once."""
    async with bench_of(config_of(model_of(2), 8)) as bench:
        await bench.serve(PROMPT[:8])
        turn = await bench.acquire(NOBODY, PROMPT[:9])
        assert turn is not None
        report = await bench.cache.evict("full", 4, Tier.L1)
        assert (report.freed, report.pending) == (0, 0)
        assert report.why
        await bench.release(turn)


async def test_a_fork_within_a_node_hits_again_after_a_snapshot_there() -> None:
    """A state at 12 does not serve who leaves at 7; a snapshot where FULL agreed serves the third."""
    async with bench_of(config_of(model_of(2, states=True), 64)) as bench:
        await bench.serve(PROMPT[:12], keep=(12,))
        fork = (*PROMPT[:7], 50, 51, 52)
        turn = await bench.acquire(NOBODY, fork)
        assert turn is not None
        assert (turn.lease.length, turn.lease.full_match) == (0, 6)
        await bench.extend(turn, turn.lease.full_match, True)
        await bench.extend(turn, 4, True)
        await bench.publish(turn, None)
        await bench.release(turn)
        await bench.settled()
        assert await bench.hit((*PROMPT[:7], 60, 61)) == 6
        assert await bench.hit((*fork, 60)) == 10
        assert await bench.hit((*PROMPT[:12], 60)) == 12


async def test_the_root_of_many_forks_keeps_its_state() -> None:
    """Eight forks of one prompt, room for four states: the shared one is used most and stays."""
    config = config_of(model_of(2, states=True), {"full": 128, "mamba": 4})
    async with bench_of(config) as bench:
        root = tuple(range(32))
        await bench.serve(root, keep=(32,))
        for fork in range(8):
            prompt = (*root, 100 + fork, 101, 102, 103)
            assert await bench.serve(prompt, keep=(36,)) == 32
        assert await bench.hit((*root, 99)) == 32


async def test_prompt_of_whole_pages_leaves_its_last_one_to_compute() -> None:
    """A prompt of 12 with states at 8 and 12 reuses 8; one of 64, pages of 16, reuses 48 or 32."""
    async with bench_of(config_of(model_of(4, states=True), 64)) as bench:
        await bench.serve(PROMPT[:12], keep=(8, 12))
        assert await bench.hit(PROMPT[:12]) == 8
        assert await bench.hit((*PROMPT[:12], 99)) == 12
    prompt = tuple(range(64))
    async with bench_of(config_of(model_of(16), 64)) as bench:
        await bench.serve(prompt)
        assert await bench.hit(prompt) == 48
    async with bench_of(config_of(model_of(16, states=True), 64)) as bench:
        await bench.serve(prompt, keep=(16, 32, 64))
        assert await bench.hit(prompt) == 32


async def test_snapshot_keeps_the_window_before_it() -> None:
    """The window before an unpublished snapshot is not given back, or the state would be useless."""
    async with bench_of(config_of(model_of(2, window=4, states=True), 64)) as bench:
        turn = await bench.start((*PROMPT, 20, 21), stops=range(9, 16), keep=(8,))
        assert turn.lease.start("swa") == 4
        await bench.publish(turn, 8)
        await bench.release(turn)
        await bench.settled()
        assert await bench.hit((*PROMPT[:8], 99)) == 8
