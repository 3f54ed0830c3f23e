"""Whatever a store does, no wrong byte comes out of it, and every call is answered."""

from __future__ import annotations

import random
import struct
from collections import Counter

import pytest
import trio
import trio.testing
from banyankv.actors import open_system
from banyankv.errors import ConfigError, TierUnavailable
from banyankv.spec import ModelSpec, PagedSpec
from banyankv.tiers.store.breaker import Breaker
from banyankv.tiers.store.faulty import FaultyStore, SeededFaults, StoreFailure, StoreFault
from banyankv.tiers.store.l3 import StoreTier
from banyankv.tiers.store.memory import MemoryStore
from banyankv.tiers.store.messages import Fetch, Outcomes, Probe, Probed, Save, StoreItem
from banyankv.tiers.store.protocol import MissReason

MODEL = ModelSpec(
    name="m", page_size=4, components=(PagedSpec(name="full", dtype="uint8", head_dim=3),)
)
KEY = b"k" * 32


class Pages(dict[int, bytes]):
    def gather(self, component: str, pages: bytes) -> bytes:
        return b"".join(self[page] for (page,) in struct.iter_unpack("<i", pages))

    def scatter(self, component: str, pages: bytes, body: memoryview) -> None:
        for index, (page,) in enumerate(struct.iter_unpack("<i", pages)):
            self[page] = bytes(body[index * 24 : index * 24 + 24])


def failing(what: StoreFailure, behind: MemoryStore, *, every: bool = True) -> FaultyStore:
    return FaultyStore(behind, lambda verb: StoreFault(what, 1.0, 5, every))


async def test_each_fault_is_what_it_says(mock_clock: trio.testing.MockClock) -> None:
    behind = MemoryStore()
    await behind.put([(KEY, b"0123456789")])
    with pytest.raises(TierUnavailable, match="injected"):
        await failing(StoreFailure.FAIL, behind).exists([KEY])
    losing = failing(StoreFailure.MISSING, behind)
    assert await losing.exists([KEY]) == [False]
    assert await losing.get([KEY]) == [None]
    assert await losing.put([(KEY, b"x")]) == [True]
    assert await losing.delete([KEY]) == [True]
    assert behind.objects == {KEY: b"0123456789"}
    assert await failing(StoreFailure.SHORT, behind).get([KEY]) == [b"01234"]
    corrupt = failing(StoreFailure.CORRUPT, behind)
    assert await corrupt.get([KEY]) == [b"\x10123456789"]
    await corrupt.put([(KEY, b"0123456789")])
    assert behind.objects == {KEY: b"\x10123456789"}
    for what, jump in ((StoreFailure.DELAY, 1.0), (StoreFailure.HANG, 1e6)):
        with trio.move_on_after(2.0) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(failing(what, behind).get, [KEY])
                await trio.testing.wait_all_tasks_blocked()
                mock_clock.jump(jump)
        assert scope.cancelled_caught is (what is StoreFailure.HANG)


async def test_a_fault_of_one_object_leaves_the_others() -> None:
    keys, objects = [bytes([n]) * 32 for n in range(3)], [b"aaaa", b"bbbb", b"cccc"]
    behind = MemoryStore()
    await behind.put(list(zip(keys, objects, strict=True)))
    # position 5 is the last of three objects
    for what, last in (
        (StoreFailure.CORRUPT, b"accc"),
        (StoreFailure.SHORT, b"cc"),
        (StoreFailure.MISSING, None),
    ):
        assert await failing(what, behind, every=False).get(keys) == [b"aaaa", b"bbbb", last]
    losing = failing(StoreFailure.MISSING, behind, every=False)
    assert await losing.exists(keys) == [True, True, False]
    assert await losing.put([(keys[2], b"lost")]) == [True]
    assert await losing.delete(keys) == [True, True, True]
    assert behind.objects == {keys[2]: b"cccc"}
    await behind.put(list(zip(keys, objects, strict=True)))
    swapping = failing(StoreFailure.SWAPPED, behind, every=False)
    assert await swapping.get(keys) == [b"aaaa", b"cccc", b"bbbb"]
    assert await failing(StoreFailure.SWAPPED, behind).get(keys) == [b"bbbb", b"cccc", b"aaaa"]
    counting = failing(StoreFailure.COUNT, behind)
    assert await counting.get(keys) == [b"aaaa", b"bbbb"]
    assert await counting.exists(keys) == [True, True]


async def test_every_bit_of_every_object_can_be_chosen() -> None:
    behind, keys = MemoryStore(), [bytes([n]) * 32 for n in range(2)]
    await behind.put([(key, bytes(2)) for key in keys])
    seen = set()
    for position in range(2 * 16):
        fault = StoreFault(StoreFailure.CORRUPT, position=position, every=False)
        seen.add(tuple(await FaultyStore(behind, lambda _, fault=fault: fault).get(keys)))
    assert len(seen) == 2 * 16


@pytest.mark.parametrize(
    "rates", [(0.8, 0.8), (1.6, -1.0), (float("nan"), 0.0), (float("inf"), 0.0)]
)
def test_rates_that_are_no_probabilities_are_refused(rates: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="together 1 at most"):
        SeededFaults(1, dict(zip((StoreFailure.FAIL, StoreFailure.COUNT), rates, strict=True)))


def test_rates_may_come_to_one() -> None:
    faults = SeededFaults(1, dict.fromkeys(list(StoreFailure)[:6], 1 / 6))
    assert all(faults("get") for _ in range(100))


def test_equal_seeds_give_equal_faults() -> None:
    rates = {StoreFailure.FAIL: 0.2, StoreFailure.CORRUPT: 0.3}
    one, two, other = (SeededFaults(seed, rates) for seed in (1, 1, 2))
    ones = [one("get") for _ in range(200)]
    assert ones == [two("get") for _ in range(200)]
    assert ones != [other("get") for _ in range(200)]
    kinds = Counter(fault.what if fault else None for fault in ones)
    assert set(kinds) == {None, StoreFailure.FAIL, StoreFailure.CORRUPT}


@pytest.mark.parametrize("seed", range(4))
async def test_no_fault_serves_a_wrong_byte_or_leaves_a_call_unanswered(
    dispatch: str, seed: int
) -> None:
    chance = random.Random(seed)
    rates = dict.fromkeys(set(StoreFailure) - {StoreFailure.DELAY, StoreFailure.HANG}, 0.05)
    store = FaultyStore(MemoryStore(), SeededFaults(seed, rates))
    pages = Pages({page: bytes([page]) * 24 for page in range(8)})
    seen: Counter[MissReason | None] = Counter()

    def items(base: int) -> tuple[StoreItem, ...]:
        chosen = chance.sample(range(8), chance.randint(1, 4))
        return tuple(
            StoreItem("full", bytes([n]) * 32, 4 * n, 4 * n + 4, struct.pack("<i", base + n))
            for n in chosen
        )

    async with open_system("test", dispatch=dispatch) as system:
        l3 = await system.spawn(
            lambda: StoreTier(store, MODEL, pages, breaker=Breaker(threshold=1000)), name="l3"
        )
        for _ in range(150):
            wanted = items(100)
            for item in wanted:
                pages[struct.unpack("<i", item.pages)[0]] = b"?" * 24
            saved = await l3.ask(Save(items(0)))
            probed = await l3.ask(Probe((("full", b"".join(i.chain for i in wanted)),)))
            fetched = await l3.ask(Fetch(wanted))
            assert isinstance(saved, Outcomes)
            assert isinstance(probed, Probed)
            assert len(probed.present[0]) == len(wanted)
            for item, outcome in zip(wanted, fetched.outcomes, strict=True):
                (page,) = struct.unpack("<i", item.pages)
                expected = pages[page - 100] if outcome is None else b"?" * 24
                assert pages[page] == expected
                seen[outcome] += 1
    assert seen[None] > 50
    assert {MissReason.MISSING, MissReason.STORE_FAILED, MissReason.SHORT} <= set(seen)
