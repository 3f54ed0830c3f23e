"""`alloc`: pages taken and given back on L1 and L2, at once or by way of an operation's quarantine."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from ..errors import BanyanError
from ..spec import ModelSpec, PagedSpec, SnapshotSpec, StateTensor
from ..tiers.arena import HostArena
from ..tiers.l1 import L1Tier
from ..tiers.l2 import L2Tier
from ..tiers.messages import Allocate, Allocated, Free, Over
from ..tiers.pools import DevicePools
from ..tiers.tier import PageTier
from .bench import Bench
from .pace import Contender, Figures, plain_us
from .results import Case

MODEL = ModelSpec(
    name="alloc",
    components=(
        PagedSpec(name="full", head_dim=2),
        PagedSpec(name="swa", rule="swa", window=128, head_dim=2),
        SnapshotSpec(states=(StateTensor("state", (64,)),)),
    ),
)
CAPACITY = {"full": 16_384, "swa": 16_384, "mamba": 1024}
WANTS: tuple[tuple[tuple[str, int], ...], ...] = (
    (("full", 64),),
    (("full", 2000),),
    (("full", 64), ("swa", 64), ("mamba", 1)),
)
_OPERATION = 7
_TIMES = 2000


async def measure(bench: Bench) -> None:
    """Measure each tier, want and way back."""
    times = bench.scale(_TIMES, 10)
    l2 = L2Tier(HostArena.for_pages(MODEL, CAPACITY))
    # Slabs once claimed stay claimed: what is measured is not the first page of a slab.
    l2.allocate(Allocate(tuple((name, 1) for name in CAPACITY)))
    tiers: dict[str, PageTier] = {"L1": L1Tier(DevicePools(MODEL, CAPACITY)), "L2": l2}
    for name, tier in tiers.items():
        for want in WANTS:
            samples = await bench.interleave(
                {
                    "at once": _contender(times, _cycle(tier, want, 0)),
                    "by quarantine": _contender(times, _cycle(tier, want, _OPERATION)),
                    "floor": _contender(times, _floor(want)),
                }
            )
            for way in ("at once", "by quarantine"):
                pages = " + ".join(f"{count} {component}" for component, count in want)
                case: Case = {"tier": name, "pages": pages, "back": way}
                bench.compare(case, samples, way, "floor")


def _contender(times: int, step: Callable[[], None]) -> Contender:
    async def run() -> Figures:
        return {"µs": plain_us(times, step)}

    return run


def _cycle(tier: PageTier, want: tuple[tuple[str, int], ...], op: int) -> Callable[[], None]:
    names = [name for name, _ in want]
    ops = [op] * len(names)

    def step() -> None:
        answer = tier.allocate(Allocate(want))
        if not isinstance(answer, Allocated):
            raise BanyanError(f"the pools are too small: {answer}")
        tier.free(Free(tuple(zip(names, answer.pages, ops, strict=True))))
        if op:
            tier.over(Over(op))

    return step


def _floor(want: tuple[tuple[str, int], ...]) -> Callable[[], None]:
    """Copy the ids off a stack of ids, and back."""
    free = array("i", range(max(CAPACITY.values())))
    counts = [count for _, count in want]

    def step() -> None:
        for count in counts:
            ids = free[-count:].tobytes()
            del free[-count:]
            free.frombytes(ids)

    return step
