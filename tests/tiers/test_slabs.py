"""Page bookkeeping: fixed pools and pools that share an arena by slabs."""

from __future__ import annotations

import pytest
from banyankv.errors import ConfigError, IntegrityError
from banyankv.tiers.allocator import FixedPool
from banyankv.tiers.arena import pages_per_slab
from banyankv.tiers.slabs import SlabPool, SlabSpace
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from .pages import ids, packed


def give_back(pool: FixedPool | SlabPool, pages: bytes) -> None:
    pool.owners.remove(pages)
    pool.put(pages)


def taken(pool: FixedPool | SlabPool, count: int) -> bytes:
    pages = pool.take(count)
    assert pages is not None
    return pages


def slab_pool(
    space: SlabSpace, name: str, page_bytes: int, reserved: int, slab_bytes: int
) -> SlabPool:
    return SlabPool(space, name, page_bytes, pages_per_slab(slab_bytes, page_bytes), reserved)


class TestFixedPool:
    def test_gives_every_page_once(self) -> None:
        pool = FixedPool("full", 10, 128)
        assert sorted(ids(taken(pool, 4)) + ids(taken(pool, 6))) == list(range(10))
        assert pool.take(1) is None
        assert pool.owned == 10

    def test_takes_ascending_runs_and_reuses_what_was_freed_last(self) -> None:
        pool = FixedPool("full", 100, 128)
        run = taken(pool, 5)
        assert ids(run) == list(range(95, 100))
        give_back(pool, run)
        assert taken(pool, 5) == run

    def test_taking_none_takes_none(self) -> None:
        pool = FixedPool("full", 3, 128)
        assert pool.take(0) == b""
        assert pool.available() == 3

    def test_refuses_a_negative_count(self) -> None:
        pool = FixedPool("full", 3, 128)
        with pytest.raises(ConfigError, match="-1 pages"):
            pool.take(-1)
        assert pool.available() == 3

    def test_takes_pages_back_only_from_an_owner(self) -> None:
        pool = FixedPool("full", 100, 128)
        pages = taken(pool, 50)
        refuses_what_has_no_owner(pool, pages)


class TestSlabPool:
    def test_reserve_is_kept_from_the_others(self) -> None:
        space = SlabSpace(10, 64)
        kv = slab_pool(space, "kv", 8, 1, 64)
        state = slab_pool(space, "state", 32, 3, 64)
        assert kv.take(7 * 8 + 1) is None
        taken(kv, 7 * 8)
        assert kv.take(1) is None
        assert len(ids(taken(state, 6))) == 6
        assert state.take(1) is None

    def test_what_one_does_not_use_the_other_may(self) -> None:
        space = SlabSpace(10, 64)
        kv = slab_pool(space, "kv", 8, 0, 64)
        state = slab_pool(space, "state", 32, 0, 64)
        pages = taken(kv, 80)
        assert state.take(1) is None
        give_back(kv, pages[: 8 * 4])
        assert kv.slabs == 9
        assert len(ids(taken(state, 2))) == 2
        assert state.take(1) is None

    def test_fills_used_slabs_first_so_that_others_empty_out(self) -> None:
        space = SlabSpace(4, 64)
        pool = slab_pool(space, "kv", 8, 0, 64)
        low, high = taken(pool, 8), taken(pool, 8)
        give_back(pool, low[:4])
        give_back(pool, high[:16])
        assert taken(pool, 1) == low[:4]
        assert pool.slabs == 2
        give_back(pool, high[16:])
        assert pool.slabs == 1

    def test_never_straddles_slabs_when_pages_do_not_divide_them(self) -> None:
        space = SlabSpace(7, 100)
        pool = slab_pool(space, "kv", 24, 0, 100)
        pages = ids(taken(pool, pool.available()))
        assert len(pages) == 7 * 3
        assert all(p * 24 // 100 == (p * 24 + 23) // 100 for p in pages)
        assert (max(pages) + 1) * 24 <= 700

    def test_takes_pages_back_only_from_an_owner(self) -> None:
        space = SlabSpace(40, 64)
        kv = slab_pool(space, "kv", 8, 0, 64)
        other = slab_pool(space, "other", 8, 0, 64)
        mine, foreign = taken(kv, 50), taken(other, 8)
        with pytest.raises(IntegrityError, match="owner"):
            kv.owners.remove(foreign)
        refuses_what_has_no_owner(kv, mine)
        assert other.owned == 8


def refuses_what_has_no_owner(pool: FixedPool | SlabPool, pages: bytes) -> None:
    """Free the 50 `pages` of `pool` wrongly in every way, which changes nothing, then rightly."""
    run = ids(pages)
    scattered = run[1::2] + run[::2]
    give_back(pool, packed(*scattered[:3]))
    give_back(pool, packed(*run[-4:-1:2]))
    kept = [page for page in run if page not in (*scattered[:3], *run[-4:-1:2])]
    free, available = pool.free_pages(), pool.available()
    wrong = [
        run,
        scattered,
        run[-4:],  # a part has no owner
        [kept[0], kept[0]],
        [kept[5], kept[2], kept[9], kept[2]],  # twice in one list
        scattered[:1],
        [kept[0], -1],
        [-1],
        [1 << 30],
        [kept[0], 1 << 30],
    ]
    for some in (*[packed(*pages) for pages in wrong], pages[:3], pages[:8] + b"\0"):
        with pytest.raises(IntegrityError, match="owner"):
            pool.owners.remove(some)
        assert pool.owned == len(kept)
    assert (pool.free_pages(), pool.available()) == (free, available)
    give_back(pool, packed(*kept))
    assert pool.owned == 0
    assert sorted(ids(taken(pool, 50))) == sorted(run)
    for twice in ([*run, run[0]], [*reversed(run), *run, *run]):  # the longer more than a pool has
        with pytest.raises(IntegrityError, match="owner"):
            pool.owners.remove(packed(*twice))


class SlabMachine(RuleBasedStateMachine):
    """Three pools on one arena against the bytes that their pages cover."""

    @initialize(
        sizes=st.lists(st.integers(1, 40), min_size=3, max_size=3),
        extra=st.integers(0, 60),
        slabs=st.integers(6, 14),
        reserves=st.lists(st.integers(0, 2), min_size=3, max_size=3),
    )
    def start(self, sizes: list[int], extra: int, slabs: int, reserves: list[int]) -> None:
        self.slab_bytes = 2 * max(sizes) + extra
        self.slabs = slabs
        space = SlabSpace(slabs, self.slab_bytes)
        self.pools = [
            slab_pool(space, f"p{i}", size, reserved, self.slab_bytes)
            for i, (size, reserved) in enumerate(zip(sizes, reserves, strict=True))
        ]
        self.owned: list[list[int]] = [[], [], []]

    @rule(which=st.integers(0, 2), count=st.integers(0, 30))
    def take(self, which: int, count: int) -> None:
        pool = self.pools[which]
        room = pool.available()
        pages = pool.take(count)
        assert (pages is not None) == (count <= room)
        if pages is not None:
            assert len(ids(pages)) == count
            assert pool.available() == room - count
            self.owned[which] += ids(pages)

    @rule(which=st.integers(0, 2), data=st.data())
    def free(self, which: int, data: st.DataObject) -> None:
        if self.owned[which]:
            pages = data.draw(st.lists(st.sampled_from(self.owned[which]), unique=True))
            give_back(self.pools[which], packed(*pages))
            self.owned[which] = [p for p in self.owned[which] if p not in set(pages)]

    @invariant()
    def no_byte_has_two_owners(self) -> None:
        seen = bytearray(self.slabs * self.slab_bytes)
        for pool, owned in zip(self.pools, self.owned, strict=True):
            free = ids(pool.free_pages())
            assert len(free) + len(owned) == pool.slabs * pool.slab_pages
            assert pool.owned == len(owned)
            for page in free + owned:
                here = slice(page * pool.page_bytes, (page + 1) * pool.page_bytes)
                assert here.stop <= len(seen)
                assert not any(seen[here])
                seen[here] = b"\1" * pool.page_bytes

    @invariant()
    def every_reserve_can_be_had(self) -> None:
        for pool in self.pools:
            assert pool.available() + pool.owned >= pool.reserved * pool.slab_pages

    def teardown(self) -> None:
        for pool, owned in zip(self.pools, getattr(self, "owned", []), strict=True):
            give_back(pool, packed(*owned))
            assert pool.slabs == 0


TestSlabMachine = SlabMachine.TestCase
TestSlabMachine.settings = settings(stateful_step_count=30, deadline=None)
