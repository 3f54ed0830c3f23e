"""Print what one step of the page tiers and one batch of the thread copy engine cost, in µs.

Run it as `python benchmarks/alloc_micro.py`; each figure is the best of five runs.
"""

from __future__ import annotations

import timeit
from array import array
from collections.abc import Callable
from functools import partial

import numpy as np
import trio
from banyankv.spec import ModelSpec, PagedSpec, SnapshotSpec, StateTensor, Tier
from banyankv.tiers.arena import HostArena
from banyankv.tiers.copy import ThreadCopyEngine
from banyankv.tiers.l1 import L1Tier
from banyankv.tiers.l2 import L2Tier
from banyankv.tiers.messages import Allocate, Allocated, CopyState, Free, Move, Over
from banyankv.tiers.pools import DevicePools
from banyankv.tiers.tier import PageTier

MODEL = ModelSpec(
    name="micro",
    components=(
        PagedSpec(name="full", head_dim=2),
        PagedSpec(name="swa", rule="swa", window=128, head_dim=2),
        SnapshotSpec(states=(StateTensor("s", (64,)),)),
    ),
)
PAGES = {"full": 16384, "swa": 16384, "mamba": 1024}
WANTS = ((("full", 64),), (("full", 64), ("swa", 64), ("mamba", 1)))
REPEATS = 5


def show(what: str, step: Callable[[], object], number: int = 5000) -> None:
    """Print the cost of one `step`."""
    best = min(timeit.repeat(step, number=number, repeat=REPEATS)) / number
    print(f"{what:<46}{best * 1e6:10.2f}")


def cycle(tier: PageTier, want: tuple[tuple[str, int], ...], op: int) -> Callable[[], None]:
    """Allocate `want` and free it, through the quarantine of `op` unless that is 0."""
    names = [name for name, _ in want]

    def step() -> None:
        answer = tier.allocate(Allocate(want))
        if not isinstance(answer, Allocated):
            raise TypeError(f"the pools are too small: {answer}")
        ops = [op] * len(names)
        tier.free(Free(tuple(zip(names, answer.pages, ops, strict=True))))
        if op:
            tier.over(Over(op))

    return step


async def batches(engine: ThreadCopyEngine, count: int, *, shuffled: bool) -> float:
    """Return the seconds of one batch of `count` pages to L2 and back, best of the runs."""
    ids = np.arange(count, dtype=np.int32)
    host = ids.tobytes()
    device = (np.random.default_rng(0).permutation(ids) if shuffled else ids).tobytes()
    best = float("inf")
    for _ in range(REPEATS * 20):
        started = timeit.default_timer()
        await engine.run((Move("full", device, host),), Tier.L1, Tier.L2)
        await engine.run((Move("full", host, device),), Tier.L2, Tier.L1)
        best = min(best, (timeit.default_timer() - started) / 2)
    return best


def main() -> None:
    """Measure and print."""
    pools = DevicePools(MODEL, PAGES)
    arena = HostArena.for_pages(MODEL, PAGES)
    l1, l2 = L1Tier(pools), L2Tier(arena)
    l2.allocate(Allocate((("full", 1), ("swa", 1), ("mamba", 1))))  # their slabs stay claimed
    for name, tier in (("L1", l1), ("L2", l2)):
        for want in WANTS:
            for op in (0, 7):
                how = "quarantine" if op else "free"
                show(f"{name} allocate, {how}: {len(want)} pools", cycle(tier, want, op))
    one, two = (array("i", [slot]).tobytes() for slot in (1, 2))
    show("L1 copy one state", lambda: l1.copy_state(CopyState("mamba", one, two)))
    engine = ThreadCopyEngine(pools, arena)
    for count in (16, 64, 1024, 8192):
        for shuffled in (False, True):
            seconds = trio.run(partial(batches, engine, count, shuffled=shuffled))
            what = f"copy {count} pages of 128 bytes{', shuffled' if shuffled else ''}"
            print(f"{what:<46}{seconds * 1e6:10.2f}")


if __name__ == "__main__":
    main()
