"""What goes to the store: each object once, also what joins a node later than its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing
from banyankv import Tier, open_cache
from banyankv.tiers.store.memory import MemoryStore

from .positions import TOKENS, Gate, config, empty, entries, serve


class Counting(MemoryStore):
    """Notes the keys of every put."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[bytes] = []

    async def put(self, items: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        self.puts += [key for key, _ in items]
        return await super().put(items)


async def test_a_state_that_joins_a_saved_node_is_saved(dispatch: str) -> None:
    made, store = config(dispatch, states=True), Counting()
    async with open_cache(made, store=store) as cache:
        await serve(cache, TOKENS[:300], (288,), keep=())
        assert ("mamba", 256) not in entries(store)
        await serve(cache, TOKENS[:300], (256,))
        assert (await cache.peek(TOKENS[:300])).length == 256
        assert ("mamba", 256) in entries(store)
        assert len(store.puts) == len(set(store.puts))
    async with open_cache(made, store=store) as cache:
        assert await serve(cache, TOKENS[:300], ()) == 256
        await empty(cache)


@pytest.mark.parametrize("fork", [False, True])
async def test_a_window_that_is_computed_again_is_saved_with_the_chunk_that_it_completes(
    dispatch: str, fork: bool
) -> None:
    """The first half of the chunk loses its window before the second half is saved.

    Who computes it again may go on with other tokens than those that end the chunk.
    """
    made, store, gate = config(dispatch, swa=192), Counting(), Gate(Tier.L2)
    again = [*TOKENS[:128], 7] if fork else TOKENS[:257]
    async with open_cache(made, store=store, before_copy=gate) as cache:
        await serve(cache, TOKENS[:257], (128,))
        gate.open = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, cache, TOKENS[:257], (256,))
            await trio.testing.wait_all_tasks_blocked(0.05)
            for tier in (Tier.L1, Tier.L2):
                await cache.evict("swa", 8, tier)
            gate.open.set()
        assert set(entries(store)) == {("full", 256)}
        assert await serve(cache, again, (len(again) - 1,)) == 0
        assert set(entries(store)) == {("full", 256), ("swa", 256)}
        assert len(store.puts) == 2
    async with open_cache(made, store=store) as cache:
        assert await serve(cache, TOKENS[:257], ()) == 256
        await empty(cache)


async def test_a_window_that_comes_from_the_store_completes_a_chunk_of_another_branch(
    dispatch: str,
) -> None:
    made, store, gate = config(dispatch, swa=192), Counting(), Gate(Tier.L2)
    other = [*TOKENS[:128], *TOKENS[:129]]
    async with open_cache(made, store=store) as cache:
        await serve(cache, TOKENS[:257], (256,))
    async with open_cache(made, store=store, before_copy=gate) as cache:
        await serve(cache, other, (128,))
        gate.open = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, cache, other, (256,))
            await trio.testing.wait_all_tasks_blocked(0.05)
            for tier in (Tier.L1, Tier.L2):
                await cache.evict("swa", 8, tier)
            gate.open.set()
        assert len(store.objects) == 3  # of the other branch FULL alone
        assert await serve(cache, TOKENS[:257], ()) == 256
        assert len(store.puts) == len(store.objects) == 4
    async with open_cache(made, store=store) as cache:
        assert await serve(cache, other, ()) == 256
        await empty(cache)


async def test_what_the_store_has_is_not_written_again(dispatch: str) -> None:
    made, store = config(dispatch, swa=100, states=True), Counting()
    async with open_cache(made, store=store) as cache:
        await serve(cache, TOKENS[:513], (256, 512))
        wrote = len(store.puts)
        assert wrote
        for name in ("mamba", "swa", "full"):
            await cache.evict(name, 99, Tier.L2)
        for name in ("mamba", "swa"):
            await cache.evict(name, 99, Tier.L1)
        await serve(cache, [*TOKENS[:512], 7], (256, 512))
        assert len(store.puts) == wrote
        seen = (await cache.inspect()).components[0]
        assert all(record.l2 is not None for record in seen.records)
        await empty(cache)
