"""The tier actors: pages of several pools, quarantine, cooling and copies of states."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from banyankv.errors import ConfigError, IntegrityError
from banyankv.spec import ModelSpec
from banyankv.tiers.arena import HostArena
from banyankv.tiers.fences import fences_for
from banyankv.tiers.l1 import L1Tier
from banyankv.tiers.l2 import L2Tier
from banyankv.tiers.messages import (
    Allocate,
    Allocated,
    Clone,
    Cloned,
    CopyState,
    Free,
    FreePages,
    Over,
    PoolUsage,
    Short,
    Usage,
)
from banyankv.tiers.pools import DevicePools
from banyankv.tiers.tier import PageTier

from .pages import ManualFences, ids, packed

MakeModel = Callable[..., ModelSpec]
PAGES = {"full": 12, "latent": 8, "mamba": 5}


def allocated(tier: PageTier, *want: tuple[str, int]) -> tuple[bytes, ...]:
    answer = tier.allocate(Allocate(want))
    assert isinstance(answer, Allocated), answer
    return answer.pages


def usage(tier: PageTier, component: str) -> PoolUsage:
    return next(u for u in tier.usage(Usage()) if u.component == component)


@pytest.fixture
def fences() -> ManualFences:
    return ManualFences()


@pytest.fixture
def l1(make_model: MakeModel, fences: ManualFences) -> L1Tier:
    return L1Tier(DevicePools(make_model(), PAGES), fences)


@pytest.fixture(params=["l1", "l2"])
def tier(request: pytest.FixtureRequest, make_model: MakeModel) -> PageTier:
    if request.param == "l1":
        return L1Tier(DevicePools(make_model(), PAGES))
    return L2Tier(HostArena.for_pages(make_model(), PAGES))


class TestAllocate:
    def test_gives_in_the_order_asked(self, tier: PageTier) -> None:
        state, kv = allocated(tier, ("mamba", 1), ("full", 3))
        assert (len(ids(state)), len(ids(kv))) == (1, 3)

    def test_all_or_none(self, l1: L1Tier) -> None:
        before = [l1.free_pages(FreePages(name)) for name in PAGES]
        answer = l1.allocate(Allocate((("full", 5), ("mamba", 6), ("latent", 9))))
        assert answer == Short((("mamba", 6, 5, 0), ("latent", 9, 8, 0)))
        assert [l1.free_pages(FreePages(name)) for name in PAGES] == before

    def test_counts_a_pool_named_twice_once(self, l1: L1Tier) -> None:
        assert l1.allocate(Allocate((("full", 7), ("full", 6)))) == Short((("full", 13, 12, 0),))
        first, second = allocated(l1, ("full", 7), ("full", 5))
        assert sorted(ids(first) + ids(second)) == list(range(12))

    def test_pools_that_each_could_but_not_together(self, make_model: MakeModel) -> None:
        tier = L2Tier(HostArena.for_pages(make_model(), PAGES))
        full, latent = usage(tier, "full").free, usage(tier, "latent").free
        answer = tier.allocate(Allocate((("full", full), ("latent", latent))))
        assert answer == Short((("full", full, full, 0), ("latent", latent, latent, 0)))
        assert usage(tier, "full").free == full

    def test_what_comes_back_with_a_wish_can_be_given_again(self, l1: L1Tier) -> None:
        (pages,) = allocated(l1, ("mamba", 5))
        answer = l1.allocate(Allocate((("mamba", 2),), (("mamba", pages[8:], 0),)))
        assert isinstance(answer, Allocated)
        assert not set(ids(answer.pages[0])) & set(ids(pages[:8]))
        assert usage(l1, "mamba").free == 1

    def test_what_comes_back_with_a_wish_stays_back_when_it_is_not_enough(self, l1: L1Tier) -> None:
        (pages,) = allocated(l1, ("mamba", 5))
        back = (("mamba", pages[:4], 0), ("mamba", pages[4:12], 7))
        assert l1.allocate(Allocate((("mamba", 2),), back)) == Short((("mamba", 2, 1, 2),))
        assert l1.over(Over(7)) == (("mamba", 2),)

    def test_what_comes_back_with_a_wish_waits_for_the_device(
        self, l1: L1Tier, fences: ManualFences
    ) -> None:
        (pages,) = allocated(l1, ("mamba", 5))
        wish = Allocate((("mamba", 1),), (("mamba", pages, 0),), fence=1)
        assert l1.allocate(wish) == Short((("mamba", 1, 0, 5),))
        fences.done = 1
        assert usage(l1, "mamba").free == 5

    @pytest.mark.parametrize("wrong", [("swa", 1), ("full", -1)])
    def test_a_bad_wish_changes_nothing(self, tier: PageTier, wrong: tuple[str, int]) -> None:
        before = tier.usage(Usage())
        with pytest.raises(ConfigError):
            tier.allocate(Allocate((("full", 2), wrong)))
        assert tier.usage(Usage()) == before


class TestFree:
    def test_without_operation_pages_are_free_at_once(self, tier: PageTier) -> None:
        before = tier.usage(Usage())
        (pages,) = allocated(tier, ("full", 5))
        assert usage(tier, "full").free == before[0].free - 5
        tier.free(Free((("full", pages, 0),)))
        assert tier.usage(Usage()) == before

    def test_an_operation_keeps_its_pages_until_it_is_over(self, tier: PageTier) -> None:
        before = tier.usage(Usage())
        kv, state = allocated(tier, ("full", 6), ("mamba", 1))
        tier.free(Free((("full", kv[:8], 7), ("full", kv[8:12], 8), ("mamba", state, 7))))
        tier.free(Free((("full", kv[12:], 7),)))
        assert usage(tier, "full").quarantined == 6
        assert usage(tier, "full").free == before[0].free - 6
        assert sorted(ids(tier.free_pages(FreePages("full"))[1])) == sorted(ids(kv))
        assert dict(tier.over(Over(7))) == {"full": 5, "mamba": 1}
        assert ids(tier.free_pages(FreePages("full"))[1]) == ids(kv[8:12])
        assert tier.over(Over(7)) == ()
        assert tier.over(Over(8)) == (("full", 1),)
        assert tier.usage(Usage()) == before

    def test_refuses_what_has_no_owner_and_changes_nothing(self, tier: PageTier) -> None:
        kv, state = allocated(tier, ("full", 2), ("mamba", 1))
        before = tier.usage(Usage())
        for wrong in (state + state, b"\0\0\0"):
            with pytest.raises(IntegrityError):
                tier.free(Free((("full", kv, 0), ("mamba", wrong, 0))))
        with pytest.raises(ConfigError, match="no pool 'swa'"):
            tier.free(Free((("full", kv, 0), ("swa", state, 0))))
        assert tier.usage(Usage()) == before

    @pytest.mark.parametrize("op", [0, 7])
    def test_refuses_what_was_freed_before(self, tier: PageTier, op: int) -> None:
        kv, other, state = allocated(tier, ("full", 4), ("full", 3), ("mamba", 1))
        tier.free(Free((("full", kv, op),)))
        before = tier.usage(Usage())
        twice = (("full", kv, op), ("mamba", state, 0)), (("full", kv[4:8] + other, 0),)
        for items in (*twice, (("full", other, 9), ("full", other[4:8], 0))):
            with pytest.raises(IntegrityError, match="freed before"):
                tier.free(Free(items))
            with pytest.raises(IntegrityError, match="freed before"):
                tier.allocate(Allocate((("full", 1),), items))
            assert tier.usage(Usage()) == before
        assert dict(tier.over(Over(op))) == ({"full": 4} if op else {})
        assert tier.over(Over(9)) == ()
        with pytest.raises(IntegrityError, match="freed before"):
            tier.free(Free((("full", kv, 0),)))
        tier.free(Free((("full", other, 0), ("mamba", state, 0))))
        assert not any(use.quarantined for use in tier.usage(Usage()))

    def test_refuses_what_is_cooling(self, l1: L1Tier, fences: ManualFences) -> None:
        (pages,) = allocated(l1, ("mamba", 5))
        l1.free(Free((("mamba", pages[:8], 0),), fence=1))
        with pytest.raises(IntegrityError, match="freed before"):
            l1.free(Free((("mamba", pages[:8], 0),), fence=1))
        fences.done = 1
        assert usage(l1, "mamba").free == 2

    def test_a_fenced_page_is_free_when_the_device_has_passed(
        self, l1: L1Tier, fences: ManualFences
    ) -> None:
        (pages,) = allocated(l1, ("mamba", 5))
        l1.free(Free((("mamba", pages[:4], 0),), fence=1))
        l1.free(Free((("mamba", pages[4:12], 0),), fence=2))
        assert usage(l1, "mamba").quarantined == 3
        assert l1.allocate(Allocate((("mamba", 1),))) == Short((("mamba", 1, 0, 3),))
        assert sorted(ids(l1.free_pages(FreePages("mamba"))[1])) == sorted(ids(pages[:12]))
        fences.done = 1
        assert allocated(l1, ("mamba", 1)) == (pages[:4],)
        fences.done = 2
        assert usage(l1, "mamba").free == 2

    def test_quarantine_comes_before_cooling(self, l1: L1Tier, fences: ManualFences) -> None:
        (pages,) = allocated(l1, ("mamba", 2))
        l1.free(Free((("mamba", pages, 3),), fence=1))
        assert l1.over(Over(3)) == ()
        assert usage(l1, "mamba") == PoolUsage("mamba", 5, 3, 2, usage(l1, "mamba").page_bytes)
        fences.done = 1
        assert usage(l1, "mamba").quarantined == 0


class TestCopyState:
    def test_copies_every_byte_of_one_slot(self, make_model: MakeModel) -> None:
        pools = DevicePools(make_model(), PAGES)
        self._check(pools, L1Tier(pools))

    @pytest.mark.cuda
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    def test_copies_on_a_device(self, make_model: MakeModel) -> None:
        pools = DevicePools(make_model(), PAGES, "cuda")
        self._check(pools, L1Tier(pools, fences_for(pools.device)))

    def _check(self, pools: DevicePools, tier: L1Tier) -> None:
        rng = np.random.default_rng(3)
        for raw in pools.raw("mamba"):
            raw.copy_(torch.from_numpy(rng.integers(0, 256, tuple(raw.shape), dtype=np.uint8)))
        wanted = [raw.cpu().clone() for raw in pools.raw("mamba")]
        for sources, targets in (([1], [4]), ([0, 4], [2, 3])):
            tier.copy_state(CopyState("mamba", packed(*sources), packed(*targets)))
            for part in wanted:
                part[targets] = part[sources]
            for raw, part in zip(pools.raw("mamba"), wanted, strict=True):
                assert torch.equal(raw.cpu(), part)

    @pytest.mark.parametrize(
        ("source", "target"),
        [([5], [0]), ([0], [5]), ([-1], [0]), ([0], [-1]), ([0, 1], [2]), ([0, 5], [1, 2])],
    )
    def test_refuses_slots_that_cannot_be(
        self, l1: L1Tier, source: list[int], target: list[int]
    ) -> None:
        with pytest.raises(IntegrityError):
            l1.copy_state(CopyState("mamba", packed(*source), packed(*target)))
        with pytest.raises(ConfigError):
            l1.copy_state(CopyState("swa", packed(0), packed(1)))


class TestClone:
    def test_takes_a_slot_with_every_byte_of_the_state(self, make_model: MakeModel) -> None:
        pools = DevicePools(make_model(), PAGES)
        self._check(pools, L1Tier(pools))

    @pytest.mark.cuda
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    def test_copies_on_a_device(self, make_model: MakeModel) -> None:
        pools = DevicePools(make_model(), PAGES, "cuda")
        self._check(pools, L1Tier(pools, fences_for(pools.device)))

    def _check(self, pools: DevicePools, tier: L1Tier) -> None:
        (source,) = allocated(tier, ("mamba", 1))
        rng = np.random.default_rng(3)
        for raw in pools.raw("mamba"):
            raw.copy_(torch.from_numpy(rng.integers(0, 256, tuple(raw.shape), dtype=np.uint8)))
        cloned = tier.clone(Clone("mamba", source))
        assert isinstance(cloned, Cloned)
        assert usage(tier, "mamba").free == PAGES["mamba"] - 2
        ((start,), (end,)) = ids(source), ids(cloned.slot)
        assert start != end
        for raw in pools.raw("mamba"):
            assert torch.equal(raw[end], raw[start])

    def test_answers_the_fence_behind_the_copy(
        self, l1: L1Tier, fences: ManualFences, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fences, "record", lambda stream: stream + 1)
        (source,) = allocated(l1, ("mamba", 1))
        cloned = l1.clone(Clone("mamba", source, 8))
        assert isinstance(cloned, Cloned)
        assert cloned.fence == 9

    def test_without_a_slot_nothing_is_changed(self, l1: L1Tier, fences: ManualFences) -> None:
        source, others = allocated(l1, ("mamba", 1), ("mamba", 4))
        before = l1.usage(Usage())
        assert l1.clone(Clone("mamba", source)) == Short((("mamba", 1, 0, 0),))
        assert l1.usage(Usage()) == before
        l1.free(Free((("mamba", others[:4], 0),), fence=1))
        fences.done = 1
        assert isinstance(l1.clone(Clone("mamba", source)), Cloned)

    @pytest.mark.parametrize("source", [[5], [-1], [0, 1], []])
    def test_refuses_a_source_that_cannot_be(self, l1: L1Tier, source: list[int]) -> None:
        before = l1.usage(Usage())
        with pytest.raises(IntegrityError):
            l1.clone(Clone("mamba", packed(*source)))
        with pytest.raises(ConfigError):
            l1.clone(Clone("swa", packed(0)))
        assert l1.usage(Usage()) == before
