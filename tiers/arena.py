"""L2: one arena of host memory, page-first, cut into equal slabs."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import Closed, ConfigError, IntegrityError, TierUnavailable
from ..spec import ModelSpec, PageList
from .layout import PageLayout, checked_ids, page_layouts
from .pools import Rows

if TYPE_CHECKING:
    import torch

_SLABS = 128  # of an arena sized by pages: fine enough for components to share, few enough to scan


class HostArena:
    """Hold L2: `slabs` slabs of `slab_bytes` each in one anonymous mapping.

    A page of a component is all its parts, one after the other. Page ids are positions on a grid
    over the whole arena: page i of a component starts at byte i * page_bytes, so that copies need no
    map from ids to slabs; ids that would straddle two slabs are never handed out.
    `reserve` is the number of pages that each component can always get, whatever the others
    took (a component that is not named can always get one slab).

    With `pin` the mapping is registered with CUDA: torch's own pinned allocator rounds sizes up to
    powers of two. `close` unregisters it; the memory goes when the last view of it has gone.
    Raises `ConfigError` when a page does not fit a slab, the reserves do not fit the arena, or there is
    no memory for it, and `TierUnavailable` when CUDA does not register it.
    """

    def __init__(
        self,
        model: ModelSpec,
        *,
        slab_bytes: int,
        slabs: int,
        reserve: Mapping[str, int] | None = None,
        pin: bool = False,
    ) -> None:
        self.model = model
        self.layouts = page_layouts(model)
        self.slab_bytes = slab_bytes
        self.slabs = slabs
        if slabs < 1:
            raise ConfigError(f"L2: {slabs} slabs; give the arena at least one")
        self.slab_pages = {
            name: pages_per_slab(slab_bytes, layout.page_bytes)
            for name, layout in self.layouts.items()
        }
        for name, pages in self.slab_pages.items():
            if pages < 1:
                raise ConfigError(f"L2: a slab of {slab_bytes} bytes holds no page of {name!r}")
        reserve = reserve or {}
        for name in reserve.keys() - self.layouts.keys():
            raise ConfigError(f"L2: model {model.name!r} has no component {name!r}")
        self.reserved_slabs = {
            name: -(-reserve.get(name, 1) // pages) for name, pages in self.slab_pages.items()
        }
        if sum(self.reserved_slabs.values()) > slabs:
            raise ConfigError(
                f"L2: the components' reserves need {sum(self.reserved_slabs.values())} slabs of "
                f"{slab_bytes} bytes, the arena has {slabs}; reserve less or give L2 more bytes"
            )
        try:
            self._memory: mmap.mmap | None = mmap.mmap(
                -1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        except (OSError, OverflowError, ValueError) as error:
            raise ConfigError(
                f"L2: this machine has no room for {self.nbytes:,} bytes ({error}); lower the pages "
                f"in l2"
            ) from error
        self._pinned = False
        self._rows = {name: self._map(layout) for name, layout in self.layouts.items()}
        self._pages = {name: self._map_pages(layout) for name, layout in self.layouts.items()}
        if pin:
            self._pin()

    @classmethod
    def for_pages(
        cls,
        model: ModelSpec,
        pages: Mapping[str, int],
        *,
        reserve: Mapping[str, int] | None = None,
        pin: bool = False,
    ) -> HostArena:
        """Make an arena in which every component can have its `pages` at the same time.

        Slabs are a multiple of the largest page, about a hundredth of the arena. Rounding up to
        slabs makes the arena a little larger than the pages; what one component does not use
        the others may. Without `reserve`, half of each component's pages are reserved for it.
        """
        layouts = page_layouts(model)
        for name in pages.keys() ^ layouts.keys():
            raise ConfigError(f"L2: pages must be given for exactly {list(layouts)}, not {name!r}")
        for name, count in pages.items():
            if count < 1:
                raise ConfigError(f"L2: give component {name!r} at least one page")
        largest = max(layout.page_bytes for layout in layouts.values())
        total = sum(pages[name] * layout.page_bytes for name, layout in layouts.items())
        slab_bytes = largest * max(1, total // (_SLABS * largest))
        while min(pages_per_slab(slab_bytes, x.page_bytes) for x in layouts.values()) < 1:
            slab_bytes += largest
        slabs = sum(
            -(-pages[name] // pages_per_slab(slab_bytes, layout.page_bytes))
            for name, layout in layouts.items()
        )
        if reserve is None:
            reserve = {name: -(-count // 2) for name, count in pages.items()}
        return cls(model, slab_bytes=slab_bytes, slabs=slabs, reserve=reserve, pin=pin)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole arena."""
        return self.slabs * self.slab_bytes

    @property
    def pinned(self) -> bool:
        """Whether the arena is registered with CUDA now."""
        return self._pinned

    def close(self) -> None:
        """Unregister the arena and let go of it; idempotent. No copy may be in flight."""
        if self._pinned:
            self._pinned = False
            _check_cuda(int(_cudart().cudaHostUnregister(self._address())), "unregister")
        self._memory = None
        self._rows.clear()
        self._pages.clear()

    # -- views ---------------------------------------------------------------------------------------

    def rows(self, component: str) -> list[Rows]:
        """Return each part of all pages on the grid, one blob a page id, strided; no copy."""
        self._open()
        return list(self._rows[component])

    def raw(self, component: str) -> list[torch.Tensor]:
        """Return the parts as uint8 tensors [grid pages, bytes of the part], strided; no copy."""
        import torch

        self._open()
        bytes_of = torch.from_numpy(self._pages[component].view(np.uint8)).reshape(
            -1, self.layouts[component].page_bytes
        )
        return [
            bytes_of[:, part.offset : part.offset + part.nbytes]
            for part in self.layouts[component].parts
        ]

    def page_bytes(self, component: str, page: int) -> npt.NDArray[np.uint8]:
        """Return one page, all its parts, as a vector of bytes; no copy."""
        self._open()
        return self._pages[component][page : page + 1].view(np.uint8)

    # -- what a store reads and writes, in worker threads ----------------------------------------------

    def gather(self, component: str, pages: PageList) -> memoryview:
        """Copy `pages` out, one after the other in their order."""
        self._open()
        grid = self._pages[component]
        return grid[self._ids(component, pages)].view(np.uint8).data

    def scatter(self, component: str, pages: PageList, body: bytes | memoryview) -> None:
        """Copy `body`, as `gather` gave it, into `pages`; nothing is written when sizes differ."""
        self._open()
        grid = self._pages[component]
        ids = self._ids(component, pages)
        if len(body) != len(ids) * grid.itemsize:
            raise IntegrityError(
                f"L2 {component!r}: {len(body)} bytes for {len(ids)} pages of {grid.itemsize}"
            )
        grid[ids] = np.frombuffer(body, dtype=grid.dtype)

    # -- inside ----------------------------------------------------------------------------------------

    def _open(self) -> mmap.mmap:
        if self._memory is None:
            raise Closed("L2: the arena is closed")
        return self._memory

    def _ids(self, component: str, pages: PageList) -> npt.NDArray[np.int32]:
        return checked_ids(component, pages, len(self._pages[component]))

    def _map(self, layout: PageLayout) -> list[Rows]:
        count = self.nbytes // layout.page_bytes
        return [
            np.ndarray(
                (count,),
                dtype=np.dtype((np.void, part.nbytes)),
                buffer=self._open(),
                offset=part.offset,
                strides=(layout.page_bytes,),
            )
            for part in layout.parts
        ]

    def _map_pages(self, layout: PageLayout) -> Rows:
        count = self.nbytes // layout.page_bytes
        return np.ndarray(
            (count,), dtype=np.dtype((np.void, layout.page_bytes)), buffer=self._open()
        )

    def _address(self) -> int:
        return int(np.frombuffer(self._open(), dtype=np.uint8).ctypes.data)

    def _pin(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("L2: there is no CUDA device to pin the arena for; use pin=False")
        torch.cuda.init()
        _check_cuda(int(_cudart().cudaHostRegister(self._address(), self.nbytes, 0)), "register")
        self._pinned = True


def pages_per_slab(slab_bytes: int, page_bytes: int) -> int:
    """Count the pages that every slab holds, wherever it starts on the page grid."""
    whole, rest = divmod(slab_bytes, page_bytes)
    return whole - 1 if rest else whole


def _cudart() -> Any:
    """Return torch's CUDA runtime, which it does not annotate."""
    import torch

    return torch.cuda.cudart()  # pyright: ignore[reportUnknownVariableType]


def _check_cuda(code: int, verb: str) -> None:
    if code:
        raise TierUnavailable(f"L2: CUDA could not {verb} the arena (error {code})")
