"""The copy engine on a device that is late: staging, fences, and layers as they arrive."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from banyankv.errors import TierUnavailable
from banyankv.spec import ModelSpec, Tier
from banyankv.testing import SimulatedDevice
from banyankv.tiers import stream_copy
from banyankv.tiers.messages import Move

MakeRig = Callable[..., Any]
MakeModel = Callable[..., ModelSpec]

SEEDS = range(20)
PAGES = list(range(40))

pytestmark = pytest.mark.parametrize("engine", ["simulated"], indirect=True)


def packed(pages: list[int]) -> bytes:
    return array("i", pages).tobytes()


def same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


async def copies_right(rig: Any, src: Tier) -> bool:
    """Copy all pages of one component, as they are on `src`, and compare."""
    read = {Tier.L1: rig.l1, Tier.L2: rig.l2}
    dst = Tier.L2 if src is Tier.L1 else Tier.L1
    before = read[src]("full")
    batch = (Move("full", rig.ids(src, "full", PAGES), rig.ids(dst, "full", PAGES)),)
    await rig.engine.run(batch, src, dst)
    return same(read[dst]("full"), before)


def unwaited(finish: Callable[[Any], None]) -> Callable[[Any], None]:
    def without(slot: Any) -> None:
        event, slot.event = slot.event, mock.Mock()
        finish(slot)
        slot.event = event

    return without


@pytest.mark.parametrize("direct", [1, 1 << 30])
@pytest.mark.parametrize("src", [Tier.L1, Tier.L2])
async def test_staging_is_used_again_only_when_the_device_is_done_with_it(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, src: Tier, direct: int
) -> None:
    monkeypatch.setattr(stream_copy, "_DIRECT_BYTES", direct)
    for seed in SEEDS:
        assert await copies_right(make_rig(seed=seed), src)
    if direct > 1:  # else the device alone uses the staging memory, in its order
        finish = unwaited(stream_copy._Slot.finish)
        monkeypatch.setattr(stream_copy._Slot, "finish", finish)
        assert not all([await copies_right(make_rig(seed=seed), src) for seed in SEEDS])


async def test_a_copy_comes_after_what_its_fence_stands_for(make_rig: MakeRig) -> None:
    wrong = 0
    for seed in SEEDS:
        for fenced in (True, False):
            rig = make_rig(seed=seed)
            stream = rig.fences.device.new_stream()
            row = rig.pools.raw("full")[0][7]
            stream.enqueue(row.zero_)
            fence = rig.fences.record(stream.handle) if fenced else 0
            there = rig.ids(Tier.L2, "full", [7])
            await rig.engine.run((Move("full", packed([7]), there),), Tier.L1, Tier.L2, fence=fence)
            found = bool(rig.l2("full")[0][7].any())
            assert not (fenced and found)
            wrong += found
    assert wrong


async def test_a_layer_is_there_when_its_event_has_passed(
    make_rig: MakeRig, make_model: MakeModel
) -> None:
    """A forward pass makes its stream wait for a layer, and reads it while others still come."""
    early = {True: 0, False: 0}
    for seed in SEEDS:
        for waits in early:
            rig = make_rig(make_model(layers=3), seed=seed)
            stream = rig.fences.device.new_stream()
            seen: list[tuple[int, np.ndarray]] = []

            def arrived(
                name: str,
                part: int,
                event: Any,
                *,
                rig: Any = rig,
                stream: Any = stream,
                seen: Any = seen,
                waits: bool = waits,
            ) -> None:
                if waits:
                    stream.wait_event(event)
                layer = rig.pools.raw("full")[part].numpy()
                stream.enqueue(lambda: seen.append((part, layer.copy())))

            there = rig.ids(Tier.L2, "full", PAGES)
            batch = (Move("full", there, packed(PAGES)),)
            await rig.engine.run(batch, Tier.L2, Tier.L1, arrived=arrived)
            stream.synchronize()
            wanted = rig.l2("full")
            assert [part for part, _ in seen] == [0, 1, 2]
            early[waits] += any(not np.array_equal(layer, wanted[part]) for part, layer in seen)
    assert not early[True]
    assert early[False]


async def test_after_an_error_nothing_moves_any_more(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    scatter = SimulatedDevice.scatter
    for seed in SEEDS:
        rig = make_rig(seed=seed)
        calls = 0

        def breaks(device: SimulatedDevice, *args: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise RuntimeError("CUDA error: out of memory")
            scatter(device, *args)

        monkeypatch.setattr(SimulatedDevice, "scatter", breaks)
        there = rig.ids(Tier.L2, "full", PAGES)
        with pytest.raises(TierUnavailable, match="from L2 to L1: CUDA error"):
            await rig.engine.run((Move("full", there, packed(PAGES)),), Tier.L2, Tier.L1)
        after = rig.l1("full")
        rig.fences.device.synchronize()
        assert same(rig.l1("full"), after)
