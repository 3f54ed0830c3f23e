"""What comes out of the store, byte by position, where objects of any component do not come right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import trio
import trio.testing
from banyankv import Cache, HitTokens, Tier, TierUnavailable, open_cache
from banyankv.runtime.assembly import make_rules
from banyankv.tiers.store.faulty import FaultyStore, SeededFaults, StoreFailure
from banyankv.tiers.store.memory import MemoryStore

from .positions import CHUNK, PAGE, TOKENS, Gate, config, empty, entries, positions_of, serve


def flip(store: MemoryStore, key: bytes) -> None:
    data = store.objects[key]
    store.objects[key] = data[:-1] + bytes([data[-1] ^ 1])


def cut_short(store: MemoryStore, key: bytes) -> None:
    store.objects[key] = store.objects[key][:-7]


class Forgetful(MemoryStore):
    """Says of lost keys that they are there, and has nothing for them."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[bytes] = set()

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = await super().get(keys)
        return [None if key in self.lost else data for key, data in zip(keys, found, strict=True)]


def lose(store: MemoryStore, key: bytes) -> None:
    assert isinstance(store, Forgetful)
    store.lost.add(key)


def swap(store: MemoryStore, key: bytes) -> None:
    other = next(iter(store.objects))
    store.objects[key], store.objects[other] = store.objects[other], store.objects[key]


DAMAGE: list[Callable[[MemoryStore, bytes], None]] = [flip, cut_short, lose, swap]


@pytest.mark.parametrize("harm", DAMAGE)
@pytest.mark.parametrize("end", [256, 512, 768])
async def test_a_bad_object_inside_a_window_moves_no_page_to_another_place(
    dispatch: str, end: int, harm: Callable[[MemoryStore, bytes], None]
) -> None:
    made, store = config(dispatch, swa=600), Forgetful()
    async with open_cache(made, store=store) as cache:
        await serve(cache, TOKENS, (256, 512, 768))
    harm(store, entries(store)["swa", end])
    async with open_cache(made, store=store) as cache:
        for count in (257, 769, 513, 769):
            async with await cache.acquire(TOKENS[:count]) as lease:
                positions_of(cache, lease)
                assert end > lease.length or not lease.length
            await cache.check()
        await empty(cache)


@pytest.mark.parametrize("seed", range(60))
async def test_whatever_does_not_come_the_reuse_is_the_deepest_that_is_legal(seed: int) -> None:
    dice = random.Random(seed)
    made = config(
        "direct",
        swa=dice.choice((0, 100, 256, 600)),
        chunked=dice.choice((0, 256, 384, 768)),
        states=dice.random() < 0.5,
    )
    store = Forgetful()
    async with open_cache(made, store=store) as cache:
        await serve(
            cache, TOKENS, sorted({1024, *dice.sample(range(16, 1025, 16), 3), 256, 512, 768})
        )
    there = entries(store)
    for key in dice.sample(sorted(there), dice.randrange(len(there) // 2)):
        if dice.random() < 0.3:
            del store.objects[there.pop(key)]
    bad = set(dice.sample(sorted(there), dice.randrange(1, 3)))
    for key in bad:
        dice.choice((flip, cut_short, lose))(store, there[key])
    rules = make_rules(made.model, None)

    def deepest(has: Callable[[str, int], bool], limit: int, low: dict[str, int]) -> int:
        """Search from the deepest on; of a chunk, tokens from `low` on were asked for."""
        for end in range(limit, 0, -CHUNK):
            for rule in rules:
                ends = {end} if rule.snapshot else set()
                for start, stop in rule.need(end):
                    if start // PAGE * PAGE < low.get(rule.name, 0):
                        ends.add(-1)
                    ends |= {(at // CHUNK + 1) * CHUNK for at in range(start, stop, PAGE)}
                    ends.add(((stop - 1) // CHUNK + 1) * CHUNK)
                if not all(has(rule.name, at) for at in ends):
                    break
            else:
                return end
        return 0

    found = deepest(lambda name, end: (name, end) in there, 4 * CHUNK, {})
    low = {
        rule.name: rule.need(found)[0][0] // PAGE * PAGE if rule.need(found) else found
        for rule in rules
        if not rule.snapshot
    }

    def came(name: str, end: int) -> bool:
        asked = end == found if name == "mamba" else end > low[name]
        return asked and (name, end) in there and (name, end) not in bad

    async with open_cache(made, store=store) as cache:
        async with await cache.acquire(TOKENS) as lease:
            assert lease.length == deepest(came, found, low)
            positions_of(cache, lease)
        for count in (1025, 700, 513, 300):
            async with await cache.acquire(TOKENS[:count]) as lease:
                positions_of(cache, lease)
            await cache.check()
        await serve(cache, TOKENS, (304, 512, 1024))
        assert await serve(cache, TOKENS, ()) == 1024
        await empty(cache)


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_a_store_does_to_its_objects_pages_stay_in_their_places(seed: int) -> None:
    dice = random.Random(seed)
    made = config(
        "direct",
        swa=dice.choice((0, 100, 600)),
        chunked=dice.choice((0, 384)),
        states=dice.random() < 0.5,
    )
    rates = dict.fromkeys([what for what in StoreFailure if what is not StoreFailure.HANG], 0.04)
    store = FaultyStore(MemoryStore(), SeededFaults(seed, rates, seconds=0.001))
    reused = 0
    for _ in range(8):
        async with open_cache(made, store=store) as cache:
            for _ in range(3):
                count = dice.randrange(260, 1025)
                cuts = sorted(dice.sample(range(16, count, 16), 3))
                reused += await serve(cache, TOKENS[:count], sorted({*cuts, count // 256 * 256}))
                await cache.check()
                if dice.random() < 0.5:
                    await cache.evict("full", dice.randrange(99), dice.choice((Tier.L1, Tier.L2)))
            await empty(cache)
    assert reused


class Slow(MemoryStore):
    """Holds back what it reads until it is told to `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = trio.Event()
        self.go.set()

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await self.go.wait()
        return await super().get(keys)


async def test_nothing_fetched_hangs_below_a_parent_whose_l2_copy_has_gone(dispatch: str) -> None:
    """The parent is on its way up to L1 when its copy on L2 goes: it is held on no tier by then."""
    made, store, gate = config(dispatch), Slow(), Gate(Tier.L1)
    tokens = TOKENS[: 2 * CHUNK + 1]
    async with open_cache(made, store=store) as cache:
        await serve(cache, tokens, (256, 512))
    async with open_cache(made, store=store, before_copy=gate) as cache:
        await serve(cache, tokens[:257], ())
        await cache.evict("full", 99)
        store.go, gate.open = trio.Event(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acquired, cache, tokens)
            await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.start_soon(acquired, cache, tokens[:257])
            await trio.testing.wait_all_tasks_blocked(0.05)
            await cache.evict("full", 99, Tier.L2)
            store.go.set()
            await trio.testing.wait_all_tasks_blocked(0.05)
            await cache.check()
            gate.open.set()
        await cache.settle()
        await empty(cache)


async def acquired(cache: Cache, tokens: Sequence[int]) -> None:
    async with await cache.acquire(tokens) as lease:
        positions_of(cache, lease)


async def test_what_comes_after_its_asker_has_left_is_kept_or_given_back(dispatch: str) -> None:
    made, store = config(dispatch, swa=100, states=True), Slow()
    async with open_cache(made, store=store) as cache:
        await serve(cache, TOKENS, (256, 512))
    async with open_cache(made, store=store) as cache:
        for count in (513, 257):
            store.go = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(acquired, cache, TOKENS[:count])
                await trio.testing.wait_all_tasks_blocked(0.05)
                nursery.cancel_scope.cancel()
            store.go.set()
            await empty(cache)
    store.go = trio.Event()
    async with trio.open_nursery() as nursery, open_cache(made, store=store) as cache:
        nursery.start_soon(acquired, cache, TOKENS[:513])
        await trio.testing.wait_all_tasks_blocked(0.05)
        nursery.cancel_scope.cancel()  # closed while it reads


class Counted(Slow):
    """Counts how often it is asked what it has, and answers when told to `go`; or fails."""

    calls = 0
    fails = False

    async def exists(self, keys: Sequence[bytes]) -> list[bool]:
        self.calls += 1
        await self.go.wait()
        if self.fails:
            raise TierUnavailable("out of order")
        return await super().exists(keys)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("shared", [len(TOKENS), 2 * CHUNK + 9])
async def test_those_who_ask_for_what_is_not_there_are_answered_together(
    dispatch: str, shared: int, fails: bool
) -> None:
    store = Counted()
    store.fails = fails
    store.go = trio.Event()
    async with open_cache(config(dispatch), store=store) as cache, trio.open_nursery() as nursery:
        for tail in range(5):
            prompt = [*TOKENS[:shared], *[tail] * (len(TOKENS) - shared)]
            nursery.start_soon(acquired, cache, prompt)
        await trio.testing.wait_all_tasks_blocked(0.05)
        store.go.set()
    assert store.calls == 1


async def test_who_joined_asks_for_itself_where_the_first_answer_is_not_its_own(
    dispatch: str,
) -> None:
    made, store = config(dispatch, swa=100, states=True), Slow()
    other = [*TOKENS[:CHUNK], *TOKENS[: 2 * CHUNK]]
    async with open_cache(made, store=store) as cache:
        await serve(cache, TOKENS, (256, 512))
        await serve(cache, other, (512,))
    async with open_cache(made, store=store) as cache:
        lengths: dict[int, int] = {}

        async def ask(number: int, prompt: Sequence[int]) -> None:
            async with await cache.acquire(prompt) as lease:
                lengths[number] = lease.length

        async with trio.open_nursery() as nursery:
            for number, prompt in enumerate(
                [TOKENS[:513], TOKENS[:257], other[:513], TOKENS[:513]]
            ):
                nursery.start_soon(ask, number, prompt)
        assert lengths == {0: 512, 1: 256, 2: 512, 3: 512}
        await empty(cache)


@pytest.mark.parametrize("stored", [0, CHUNK])
async def test_only_what_the_store_has_brought_is_a_hit_of_l3(dispatch: str, stored: int) -> None:
    """While two wait for the store, somebody computes and publishes all of their prompt."""
    made, store = config(dispatch), Counted()
    async with open_cache(made, store=store) as cache:
        await serve(cache, TOKENS, (stored,))
    store.go = trio.Event()
    hits: list[HitTokens] = []
    async with open_cache(made, store=store) as cache:

        async def ask(prompt: Sequence[int]) -> None:
            async with await cache.acquire(prompt) as lease:
                hits.append(lease.hit)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, TOKENS)
            nursery.start_soon(ask, TOKENS)
            await trio.testing.wait_all_tasks_blocked(0.05)
            (lease,) = await cache.acquire_batch([TOKENS])
            async with lease:
                await lease.extend(len(TOKENS))
                await lease.publish()
            store.go.set()
        assert hits == [HitTokens(l1=4 * CHUNK - stored, l3=stored)] * 2
        await empty(cache)


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("kept", [0, CHUNK - PAGE, CHUNK])
async def test_what_the_store_has_is_of_use_where_only_l1_holds_what_is_before_it(
    dispatch: str, kept: int, states: bool
) -> None:
    """L1 holds two chunks; of these L2 holds `kept` tokens: all behind them comes from the store."""
    async with open_cache(config(dispatch, states=states), store=MemoryStore()) as cache:
        await serve(cache, TOKENS, (kept, 2 * CHUNK, 3 * CHUNK))
        async with await cache.acquire(TOKENS[: 2 * CHUNK + 1]):
            await cache.evict("full", 999)
            await cache.evict("full", (3 * CHUNK - kept) // PAGE, Tier.L2)
            full = (await cache.inspect()).components[0]
            on_l1 = {record.end for record in full.records if record.l1}
            on_l2 = {record.end for record in full.records if record.l2}
            assert (max(on_l1), max(on_l2, default=0)) == (2 * CHUNK, kept)
            async with await cache.acquire(TOKENS[: 3 * CHUNK + 1]) as lease:
                positions_of(cache, lease)
                assert lease.hit == HitTokens(l1=2 * CHUNK, l3=CHUNK)
        await empty(cache)


async def test_what_is_only_arriving_on_l2_is_not_read_from_the_store(dispatch: str) -> None:
    made, store, gate = config(dispatch), MemoryStore(), Gate(Tier.L2)
    async with open_cache(made, store=store) as cache:
        await serve(cache, TOKENS, (CHUNK,))
    gate.open = trio.Event()
    async with open_cache(made, store=store, before_copy=gate) as cache:
        (lease,) = await cache.acquire_batch([TOKENS])
        async with lease:
            await lease.extend(CHUNK)
            await lease.publish()
        await trio.testing.wait_all_tasks_blocked(0.05)
        await cache.evict("full", 999)
        async with await cache.acquire(TOKENS) as lease:
            assert lease.length == 0
        assert (await cache.stats()).prefetches == {"absent": 1}
        gate.open.set()
        await empty(cache)
