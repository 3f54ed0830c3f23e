"""Models and rigs that the tests of tiers share."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from banyankv.actors.faults import Faults
from banyankv.spec import ModelSpec, PagedSpec, SnapshotSpec, StateTensor, Tier
from banyankv.testing import SimulatedDevice
from banyankv.tiers.arena import HostArena
from banyankv.tiers.copy import Before, CopyEngine, ThreadCopyEngine
from banyankv.tiers.fences import FenceTable, fences_for
from banyankv.tiers.pools import DevicePools
from banyankv.tiers.slabs import SlabPool, SlabSpace
from banyankv.tiers.stream_copy import StreamCopyEngine


def make_model(page_size: int = 16, layers: int = 2, dtype: str = "float16") -> ModelSpec:
    """A model with pages of three sizes; its states have several shapes and dtypes."""
    return ModelSpec(
        name="tiers",
        page_size=page_size,
        components=(
            PagedSpec(name="full", layers=layers, kv_heads=2, head_dim=4, dtype=dtype),
            PagedSpec(name="latent", layers=1, head_dim=3, tensors=1, dtype="uint8"),
            SnapshotSpec(
                states=(
                    StateTensor("conv", (3, 4), "bfloat16"),
                    StateTensor("ssm", (5,), "float32"),
                    StateTensor("step", (), "int8"),
                )
            ),
        ),
    )


class Rig:
    """Pools, an arena and the engine between them, with every byte filled from a seed."""

    def __init__(
        self,
        engine: str,
        model: ModelSpec,
        pages: int = 40,
        before: Before | None = None,
        faults: Faults | None = None,
        seed: int = 0,
    ) -> None:
        counts = dict.fromkeys((c.name for c in model.components), pages)
        self.model = model
        self.pools = DevicePools(model, counts, "cuda" if engine == "cuda" else "cpu")
        self.arena = HostArena.for_pages(model, counts, pin=engine == "cuda")
        self.fences = (
            FenceTable(SimulatedDevice(seed))
            if engine == "simulated"
            else fences_for(self.pools.device)
        )
        self.engine = self._engine(engine, before, faults)
        self._ids = {Tier.L1: {name: list(range(pages)) for name in counts}, Tier.L2: {}}
        space = SlabSpace(self.arena.slabs, self.arena.slab_bytes)
        for name, layout in self.arena.layouts.items():
            pool = SlabPool(space, name, layout.page_bytes, self.arena.slab_pages[name], 0)
            self._ids[Tier.L2][name] = array("i", pool.take(pages) or b"").tolist()
        rng = np.random.default_rng(7)
        for name in counts:
            for raw in (*self.pools.raw(name), *self.arena.raw(name)):
                noise = rng.integers(0, 256, tuple(raw.shape), dtype=np.uint8)
                raw.copy_(torch.from_numpy(noise))

    def _engine(self, engine: str, before: Before | None, faults: Faults | None) -> CopyEngine:
        if isinstance(self.fences, FenceTable):
            return StreamCopyEngine(
                self.pools,
                self.arena,
                self.fences,
                staging_bytes=4096,
                before=before,
                faults=faults,
            )
        inline = 0 if engine == "thread" else 1 << 30
        return ThreadCopyEngine(
            self.pools, self.arena, inline_bytes=inline, before=before, faults=faults
        )

    def ids(self, tier: Tier, component: str, pages: list[int]) -> bytes:
        """Page ids on `tier` of the rig's pages, which are numbered from 0 on both tiers."""
        return array("i", [self._ids[tier][component][page] for page in pages]).tobytes()

    def l1(self, component: str) -> list[np.ndarray]:
        """A copy of the component's bytes on L1, [pages, bytes] a part."""
        return [raw.cpu().numpy().copy() for raw in self.pools.raw(component)]

    def l2(self, component: str) -> list[np.ndarray]:
        """A copy of the component's bytes on L2, [pages, bytes] a part."""
        ids = self._ids[Tier.L2][component]
        return [raw.numpy()[ids] for raw in self.arena.raw(component)]

    def close(self) -> None:
        self.engine.close()
        self.arena.close()


ENGINES = [
    "inline",
    "thread",
    "simulated",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The name of each engine that this machine can run."""
    return str(request.param)


@pytest.fixture
def make_rig(engine: str) -> Iterator[object]:
    """A factory of rigs for `engine`, closed after the test."""
    rigs: list[Rig] = []

    def make(model: ModelSpec | None = None, **options: object) -> Rig:
        rigs.append(Rig(engine, model or make_model(), **options))  # type: ignore[arg-type]
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


@pytest.fixture(name="make_model")
def make_model_fixture() -> object:
    """The model factory."""
    return make_model
