"""L1's tensors, ours or lent, and L2's arena."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from banyankv.errors import Closed, ConfigError, IntegrityError
from banyankv.spec import ModelSpec
from banyankv.tiers.arena import HostArena
from banyankv.tiers.layout import page_layouts
from banyankv.tiers.pools import DevicePools

from .pages import packed

MakeModel = Callable[..., ModelSpec]
PAGES = {"full": 8, "latent": 8, "mamba": 4}


def test_a_layout_has_no_gaps_and_the_specified_size(make_model: MakeModel) -> None:
    model = make_model(page_size=16, layers=3)
    for component in model.components:
        layout = page_layouts(model)[component.name]
        assert layout.page_bytes == model.page_bytes(component)
        end = 0
        for part in layout.parts:
            assert part.offset == end
            end += part.nbytes
        assert end == layout.page_bytes


class TestDevicePools:
    def test_tensors_are_layer_first(self, make_model: MakeModel) -> None:
        pools = DevicePools(make_model(page_size=16, layers=3), PAGES)
        assert [tuple(layer.shape) for layer in pools.view("full")] == [(8, 2, 16, 2, 4)] * 3
        assert [(tuple(t.shape), t.dtype) for t in pools.view("mamba")] == [
            ((4, 3, 4), torch.bfloat16),
            ((4, 5), torch.float32),
            ((4,), torch.int8),
        ]
        assert pools.capacity == PAGES

    @pytest.mark.parametrize("device", ["", "nowhere", "meta", "cuda:99", None])
    def test_refuses_a_device_that_is_not_there(self, make_model: MakeModel, device: Any) -> None:
        with pytest.raises(ConfigError, match=f"device '{device}' cannot be used: .*; 'cpu'"):
            DevicePools(make_model(), PAGES, device)

    @pytest.mark.parametrize("pages", [10**13, 10**18, 10**30])
    def test_says_what_to_lower_where_there_is_no_room(
        self, make_model: MakeModel, pages: int
    ) -> None:
        with pytest.raises(ConfigError, match=r"no room for [\d,]+ bytes, .*; lower l1\['full'\]"):
            DevicePools(make_model(), {**PAGES, "full": pages})
        with pytest.raises(
            ConfigError, match=r"no room for [\d,]+ bytes .*; lower the pages in l2"
        ):
            HostArena.for_pages(make_model(), {**PAGES, "full": pages})

    def test_bytes_are_views_of_the_tensors(self, make_model: MakeModel) -> None:
        pools = DevicePools(make_model(), PAGES)
        pools.layer("full", 1).zero_()
        pools.page_bytes("full", 5)[1].fill_(255)
        raw = pools.raw("full")[1]
        assert raw[5].min() == 255
        assert raw[4].max() == raw[6].max() == 0
        assert torch.isnan(pools.layer("full", 1)[5]).all()

    def test_uses_the_memory_it_is_lent(self, make_model: MakeModel) -> None:
        lent = [torch.zeros(6, 2, 16, 2, 4, dtype=torch.float16) for _ in range(2)]
        pools = DevicePools(make_model(), {"latent": 8, "mamba": 4}, lent={"full": lent})
        assert pools.capacity["full"] == 6
        pools.raw("full")[0][3].fill_(7)
        assert lent[0][3].view(torch.uint8).eq(7).all()

    @pytest.mark.parametrize(
        ("tensors", "message"),
        [
            ([torch.zeros(6, 2, 16, 2, 4, dtype=torch.float16)], "2 needed, 1 given"),
            ([torch.zeros(6, 2, 16, 2, 5, dtype=torch.float16)] * 2, "layer0: shape must be"),
            ([torch.zeros(6, 2, 16, 2, 4)] * 2, "dtype must be float16, not torch.float32"),
            (
                [torch.zeros(6, 2, 16, 4, 2, dtype=torch.float16).transpose(3, 4)] * 2,
                "must be contiguous",
            ),
            (
                [
                    torch.zeros(6, 2, 16, 2, 4, dtype=torch.float16),
                    torch.zeros(7, 2, 16, 2, 4, dtype=torch.float16),
                ],
                "layer1: shape must be",
            ),
            (
                [torch.zeros(6, 2, 16, 2, 4, dtype=torch.float16, device="meta")] * 2,
                "must be on cpu, not on meta",
            ),
            ([torch.zeros(0, 2, 16, 2, 4, dtype=torch.float16)] * 2, "at least 1"),
        ],
    )
    def test_says_what_is_wrong_with_lent_tensors(
        self, make_model: MakeModel, tensors: list[torch.Tensor], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            DevicePools(make_model(), {"latent": 8, "mamba": 4}, lent={"full": tensors})

    def test_refuses_lent_tensors_that_share_memory(self, make_model: MakeModel) -> None:
        one = torch.zeros(6, 2, 16, 2, 4, dtype=torch.float16)
        with pytest.raises(ConfigError, match="layer1: overlaps layer0"):
            DevicePools(make_model(), {"latent": 8, "mamba": 4}, lent={"full": [one, one]})

    @pytest.mark.parametrize(
        ("pages", "message"),
        [
            ({"full": 8, "latent": 8}, "'mamba' at least one page"),
            ({**PAGES, "full": 0}, "'full' at least one page"),
            ({**PAGES, "swa": 8}, "no component 'swa'"),
        ],
    )
    def test_refuses_pages_that_do_not_fit_the_model(
        self, make_model: MakeModel, pages: dict[str, int], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            DevicePools(make_model(), pages)

    @pytest.mark.cuda
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    def test_pools_elsewhere_have_no_rows(self, make_model: MakeModel) -> None:
        with pytest.raises(ConfigError, match="no rows for the CPU"):
            DevicePools(make_model(), PAGES, "cuda").rows("full")


class TestHostArena:
    @pytest.mark.parametrize("page_size", [1, 3, 16, 64])
    def test_has_room_for_all_pages_at_once(self, make_model: MakeModel, page_size: int) -> None:
        model = make_model(page_size=page_size)
        pages = {"full": 1000, "latent": 3000, "mamba": 17}
        arena = HostArena.for_pages(model, pages)
        slabs = sum(-(-count // arena.slab_pages[name]) for name, count in pages.items())
        assert slabs <= arena.slabs
        assert sum(arena.reserved_slabs.values()) <= arena.slabs
        assert (
            arena.nbytes
            <= 1.1 * sum(pages[c.name] * model.page_bytes(c) for c in model.components)
            + 4 * arena.slab_bytes
        )

    def test_scatter_and_gather_keep_the_order(self, make_model: MakeModel) -> None:
        arena = HostArena.for_pages(make_model(), PAGES)
        size = arena.layouts["full"].page_bytes
        body = bytes(range(256)) * (2 * size // 256)
        arena.scatter("full", packed(5, 2), body)
        assert arena.gather("full", packed(5, 2)) == body
        assert bytes(arena.page_bytes("full", 2)) == body[size:]
        assert arena.gather("full", packed(2, 5)) == body[size:] + body[:size]
        assert arena.gather("full", b"") == b""
        with pytest.raises(IntegrityError, match="bytes for 1 pages"):
            arena.scatter("full", packed(1), body)
        with pytest.raises(IntegrityError, match="page ids -1"):
            arena.gather("full", packed(-1))

    def test_views_share_the_memory(self, make_model: MakeModel) -> None:
        arena = HostArena.for_pages(make_model(layers=2), PAGES)
        for index, part in enumerate(arena.raw("full")):
            part[3].fill_(index + 1)
        page = arena.page_bytes("full", 3)
        half = len(page) // 2
        assert bytes(page) == b"\1" * half + b"\2" * half
        assert [bytes(rows[3]) for rows in arena.rows("full")] == [b"\1" * half, b"\2" * half]

    def test_closed_it_gives_nothing(self, make_model: MakeModel) -> None:
        arena = HostArena.for_pages(make_model(), PAGES)
        kept = arena.page_bytes("full", 0)
        arena.close()
        arena.close()
        with pytest.raises(Closed):
            arena.gather("full", packed(0))
        kept[:] = 1  # the memory stays while somebody looks at it

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"slab_bytes": 16, "slabs": 4}, "holds no page of 'full'"),
            ({"slab_bytes": 4096, "slabs": 0}, "at least one"),
            ({"slab_bytes": 4096, "slabs": 3, "reserve": {"full": 9}}, "reserve less"),
            ({"slab_bytes": 4096, "slabs": 3, "reserve": {"swa": 1}}, "no component 'swa'"),
        ],
    )
    def test_says_what_is_wrong_with_its_size(
        self, make_model: MakeModel, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            HostArena(make_model(), **options)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device to pin for")
    def test_does_not_pretend_to_pin(self, make_model: MakeModel) -> None:
        with pytest.raises(ConfigError, match="no CUDA device"):
            HostArena.for_pages(make_model(), PAGES, pin=True)

    @pytest.mark.cuda
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    def test_is_pinned_until_closed(self, make_model: MakeModel) -> None:
        arena = HostArena.for_pages(make_model(), PAGES, pin=True)
        part = arena.raw("full")[0]
        assert arena.pinned
        assert part.is_pinned()
        arena.close()
        assert not arena.pinned
        assert not part.is_pinned()


def test_importing_the_tiers_does_not_import_torch() -> None:
    modules = ["l1", "l2", "copy", "engines", "arena", "pools", "messages", "fences"]
    program = "\n".join(f"import banyankv.tiers.{name}" for name in modules)
    program += "\nimport sys\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
