"""The copy engines: every byte of every page, both ways, and nothing else."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import trio
import trio.testing
from banyankv.actors.faults import Fault, FaultKind, FaultPlan, Faults
from banyankv.errors import ConfigError, IntegrityError, TierUnavailable
from banyankv.spec import DTYPE_BYTES, ModelSpec, Tier
from banyankv.tiers.copy import CopyDone, ThreadCopyEngine
from banyankv.tiers.engines import copy_engine
from banyankv.tiers.fences import NoFences
from banyankv.tiers.messages import Move

MakeRig = Callable[..., Any]
MakeModel = Callable[..., ModelSpec]

SHUFFLED = [5, 3, 38, 0, 17, 16, 2]
RUN = [20, 21, 22, 23, 24, 25, 26]


def packed(pages: list[int]) -> bytes:
    return array("i", pages).tobytes()


def same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def moved(
    source: list[np.ndarray], target: list[np.ndarray], pairs: list[tuple[int, int]]
) -> list[np.ndarray]:
    """What `target` must be after the pages were copied, one by one."""
    wanted = [part.copy() for part in target]
    for part, given in zip(wanted, source, strict=True):
        for start, end in pairs:
            part[end] = given[start]
    return wanted


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize(("sources", "targets"), [(SHUFFLED, RUN), (RUN, SHUFFLED), (RUN, RUN)])
@pytest.mark.parametrize("way", [(Tier.L1, Tier.L2), (Tier.L2, Tier.L1)])
async def test_copies_every_byte_and_no_other(
    make_rig: MakeRig,
    make_model: MakeModel,
    *,
    page_size: int,
    sources: list[int],
    targets: list[int],
    way: tuple[Tier, Tier],
) -> None:
    src, dst = way
    rig = make_rig(make_model(page_size=page_size, layers=3))
    read = {Tier.L1: rig.l1, Tier.L2: rig.l2}
    names = ["full", "latent", "mamba"]
    before = {name: read[src](name) for name in names}
    wanted = {
        name: moved(before[name], read[dst](name), list(zip(sources, targets, strict=True)))
        for name in names
    }
    batch = tuple(
        Move(name, rig.ids(src, name, sources[cut]), rig.ids(dst, name, targets[cut]))
        for cut in (slice(0, 3), slice(3, None))
        for name in names
    )
    await rig.engine.run(batch, src, dst)
    for name in names:
        assert same(read[dst](name), wanted[name]), name
        assert same(read[src](name), before[name]), name


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
async def test_round_trip_keeps_every_dtype(
    make_rig: MakeRig, make_model: MakeModel, dtype: str
) -> None:
    rig = make_rig(make_model(page_size=4, dtype=dtype))
    before = rig.l1("full")
    pages = list(range(40))
    here, there = (rig.ids(tier, "full", pages) for tier in (Tier.L1, Tier.L2))
    back = rig.ids(Tier.L1, "full", pages[::-1])
    await rig.engine.run((Move("full", here, there),), Tier.L1, Tier.L2)
    await rig.engine.run((Move("full", there, back),), Tier.L2, Tier.L1)
    assert same(rig.l1("full"), [part[::-1] for part in before])


async def test_a_page_on_l2_is_its_layers_in_order(
    make_rig: MakeRig, make_model: MakeModel
) -> None:
    rig = make_rig(make_model(layers=3))
    there = rig.ids(Tier.L2, "full", [11, 3])
    first, second = array("i", there)
    await rig.engine.run((Move("full", packed([7]), there[:4]),), Tier.L1, Tier.L2)
    layers = [view[7].cpu().view(torch.uint8).flatten() for view in rig.pools.view("full")]
    page = bytes(rig.arena.page_bytes("full", first))
    assert page == bytes(torch.cat(layers).numpy())
    assert rig.arena.gather("full", there) == page + bytes(rig.arena.page_bytes("full", second))


async def test_an_empty_batch_does_nothing(make_rig: MakeRig) -> None:
    rig = make_rig()
    await rig.engine.run((), Tier.L1, Tier.L2)
    await rig.engine.run((Move("full", b"", b""),), Tier.L2, Tier.L1)


async def test_layers_arrive_in_order(make_rig: MakeRig, make_model: MakeModel) -> None:
    rig = make_rig(make_model(layers=3))
    heard: list[tuple[str, int]] = []
    batch = (Move("full", packed(RUN), packed(RUN)), Move("mamba", packed([1]), packed([2])))
    for src, dst in ((Tier.L2, Tier.L1), (Tier.L1, Tier.L2)):
        await rig.engine.run(
            batch, src, dst, arrived=lambda name, part, event: heard.append((name, part))
        )
    assert [part for name, part in heard if name == "full"] == [0, 1, 2]
    assert [part for name, part in heard if name == "mamba"] == [0, 1, 2]
    assert [part for _, part in heard] == sorted(part for _, part in heard)


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        ((Move("full", packed([40]), packed([0])),), IntegrityError),
        ((Move("full", packed([-1]), packed([0])),), IntegrityError),
        ((Move("full", packed([0]), packed([1 << 20])),), IntegrityError),
        ((Move("full", packed([0, 1]), packed([0])),), IntegrityError),
        ((Move("other", packed([0]), packed([0])),), ConfigError),
    ],
)
async def test_refuses_pages_that_cannot_be(
    make_rig: MakeRig, batch: tuple[Move, ...], error: type[Exception]
) -> None:
    rig = make_rig()
    before = rig.l2("full")
    with pytest.raises(error):
        await rig.engine.run(batch, Tier.L1, Tier.L2)
    assert same(rig.l2("full"), before)


async def test_refuses_a_direction_that_is_not_its_own(make_rig: MakeRig) -> None:
    with pytest.raises(ConfigError, match="between L1 and L2"):
        await make_rig().engine.run((), Tier.L2, Tier.L3)


async def test_an_injected_failure_reaches_the_caller(make_rig: MakeRig) -> None:
    async def fail(*_: object) -> None:
        raise TierUnavailable("injected")

    rig = make_rig(before=fail)
    before = rig.l2("full")
    with pytest.raises(TierUnavailable, match="injected"):
        await rig.engine.run((Move("full", packed([1]), packed([1])),), Tier.L1, Tier.L2)
    assert same(rig.l2("full"), before)


async def test_a_failing_copy_makes_the_tier_unavailable(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()

    async def broken(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(rig.engine, "_copy", broken)
    with pytest.raises(TierUnavailable, match="from L1 to L2: CUDA error"):
        await rig.engine.run((Move("full", packed([1]), packed([1])),), Tier.L1, Tier.L2)


async def test_cancelled_while_stalled_it_has_touched_nothing(make_rig: MakeRig) -> None:
    stalled = trio.Event()

    async def stall(*_: object) -> None:
        stalled.set()
        await trio.sleep_forever()

    rig = make_rig(before=stall)
    before = rig.l2("full")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            rig.engine.run, (Move("full", packed([1]), packed([1])),), Tier.L1, Tier.L2
        )
        await stalled.wait()
        nursery.cancel_scope.cancel()
    assert same(rig.l2("full"), before)


@pytest.mark.parametrize("what", ["fail", "partial", "corrupt"])
async def test_a_planned_failure_fails_once_in_its_direction(make_rig: MakeRig, what: str) -> None:
    fault = Fault(what=FaultKind(what), where="copy", key="L1-L2")
    rig = make_rig(faults=Faults(FaultPlan(faults=(fault,))))
    before = rig.l1("full"), rig.l2("full")
    batch = (Move("full", packed(RUN), rig.ids(Tier.L2, "full", RUN)),)
    back = (Move("full", rig.ids(Tier.L2, "full", [0]), packed([0])),)
    await rig.engine.run(back, Tier.L2, Tier.L1)
    with pytest.raises(TierUnavailable, match="injected"):
        await rig.engine.run(batch, Tier.L1, Tier.L2)
    wrong = {"fail": [], "partial": RUN[:3], "corrupt": RUN}[what]
    after = rig.l2("full")
    changed = [p for p in range(40) if not np.array_equal(after[0][p], before[1][0][p])]
    assert changed == wrong
    right = [p for p in RUN if np.array_equal(after[0][p], before[0][0][p])]
    assert right == (wrong if what == "partial" else [])
    await rig.engine.run(batch, Tier.L1, Tier.L2)
    assert same(rig.l2("full"), moved(before[0], before[1], [(p, p) for p in RUN]))


async def test_planned_delays_and_hangs_pass_under_a_clock(
    autojump_clock: trio.testing.MockClock, make_rig: MakeRig, engine: str
) -> None:
    if engine != "inline":
        pytest.skip("a jumping clock and worker threads do not go together")
    delay = Fault(what=FaultKind.DELAY, where="copy", seconds=5.0)
    hang = Fault(what=FaultKind.HANG, where="copy", nth=2)
    rig = make_rig(faults=Faults(FaultPlan(faults=(delay, hang))))
    batch = (Move("full", packed(RUN), rig.ids(Tier.L2, "full", RUN)),)
    before = rig.l1("full")
    started = trio.current_time()
    await rig.engine.run(batch, Tier.L1, Tier.L2)
    assert trio.current_time() - started == 5.0
    rig.pools.layer("full", 0)[RUN[0]].zero_()
    with trio.move_on_after(60) as scope:
        await rig.engine.run(batch, Tier.L1, Tier.L2)
    assert scope.cancelled_caught
    assert np.array_equal(rig.l2("full")[0][RUN[0]], before[0][RUN[0]])


@pytest.mark.parametrize("engine", ["thread", "simulated"], indirect=True)
async def test_once_begun_it_ends_in_spite_of_cancellation(make_rig: MakeRig) -> None:
    rig = make_rig()
    wanted = moved(rig.l2("full"), rig.l1("full"), [(1, 2)])
    ended = False
    with trio.CancelScope() as scope:
        await rig.engine.run(
            (Move("full", rig.ids(Tier.L2, "full", [1]), packed([2])),),
            Tier.L2,
            Tier.L1,
            arrived=lambda *_: trio.from_thread.run_sync(scope.cancel),
        )
        ended = True
    assert ended
    assert same(rig.l1("full"), wanted)


class Notes:
    """An observer that keeps facts."""

    hops = False

    def __init__(self) -> None:
        self.facts: list[object] = []

    def fact(self, fact: object) -> None:
        self.facts.append(fact)

    def hop(self, hop: object) -> None:
        raise AssertionError("no hops here")


@pytest.mark.parametrize("engine", ["inline"], indirect=True)
async def test_reports_what_moved_and_what_failed(make_rig: MakeRig) -> None:
    rig = make_rig()
    notes = Notes()
    fails = False

    async def before(*_: object) -> None:
        if fails:
            raise TierUnavailable("injected")

    engine = ThreadCopyEngine(rig.pools, rig.arena, observer=notes, before=before)
    batch = (Move("full", packed(RUN), packed(RUN)), Move("mamba", packed([1]), packed([2])))
    await engine.run(batch, Tier.L1, Tier.L2)
    fails = True
    with pytest.raises(TierUnavailable):
        await engine.run(batch, Tier.L2, Tier.L1)
    done, failed = notes.facts
    assert isinstance(done, CopyDone)
    assert isinstance(failed, CopyDone)
    assert (done.source, done.target, done.error) == ("L1", "L2", "")
    assert done.pages == (("full", 7), ("mamba", 1))
    full, _, mamba = (rig.model.page_bytes(c) for c in rig.model.components)
    assert done.bytes == 7 * full + mamba
    assert done.started <= done.ended
    assert (failed.source, failed.target, failed.error) == ("L2", "L1", "TierUnavailable")


@pytest.mark.parametrize("engine", ["inline"], indirect=True)
def test_the_device_of_the_pools_chooses_the_engine(make_rig: MakeRig) -> None:
    rig = make_rig()
    assert isinstance(copy_engine(rig.pools, rig.arena, NoFences()), ThreadCopyEngine)
