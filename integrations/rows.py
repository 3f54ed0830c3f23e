"""Rows: L1's pages of keys and values as one row a token.

two tensors a page      | K0 K1 … K(P-1) | V0 V1 … V(P-1) |     row of token t: page * 2P + t % P,
its value P rows behind
one tensor a page (MLA) | K0,V0  K1,V1 …                  |     row of token t: page * P + t % P
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from ..spec import PagedSpec
from .layout import CacheLayout, KVLayer

if TYPE_CHECKING:
    from ..runtime.lease import Lease
    from ..tiers.pools import DevicePools


class Rows:
    """Find, write and read rows of a layer's part of L1. Tensors are views of the pools."""

    def __init__(self, pools: DevicePools, layout: CacheLayout) -> None:
        self.page = layout.spec.page_size
        self._split = layout.split
        self._specs = {c.name: c for c in layout.spec.components if isinstance(c, PagedSpec)}
        self.components = tuple(self._specs)
        """The paged components."""
        self._parts = {
            name: [part.view(-1, spec.kv_heads, spec.head_dim) for part in pools.view(name)]
            for name, spec in self._specs.items()
        }

    def shape(self, component: str) -> tuple[int, int, int]:
        """Return the heads, and the widths of a key and of a value."""
        spec = self._specs[component]
        keys = self._split.get(component, spec.head_dim)
        return spec.kv_heads, keys, spec.head_dim - keys or keys

    def of(self, component: str, lease: Lease, start: int, end: int) -> npt.NDArray[np.int64]:
        """Return the rows of a lease's tokens [start, end); a value's are `page` rows behind."""
        stride = self._specs[component].tensors * self.page
        table, first = lease.pages(component), lease.start(component) // self.page
        if end - start == 1:
            row = table[start // self.page - first] * stride + start % self.page
            return np.array([row], np.int64)
        places = np.arange(start, end)
        pages = np.asarray(table)[places // self.page - first].astype(np.int64)
        return pages * stride + places % self.page

    def write(
        self, kv: KVLayer, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Write keys and values [tokens, heads, width] into rows: one copy."""
        part = self._parts[kv.component][kv.part]
        width = self._split.get(kv.component)
        if width is None:
            part.index_copy_(0, rows, keys)
            part.index_copy_(0, rows + self.page, values)
        else:
            part[..., :width].index_copy_(0, rows, keys)
            part[..., width:].index_copy_(0, rows, values)

    def read(self, kv: KVLayer, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather keys and values [tokens, heads, width] of rows: one copy."""
        part = self._parts[kv.component][kv.part]
        width = self._split.get(kv.component)
        if width is None:
            return part.index_select(0, rows), part.index_select(0, rows + self.page)
        both = part.index_select(0, rows)
        return both[..., :width], both[..., width:]

    def read_pages(self, kv: KVLayer, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather whole pages, a run of tokens at a time: as `read`, and faster."""
        part = self._parts[kv.component][kv.part]
        runs = part.view(-1, self.page, *part.shape[1:])
        width = self._split.get(kv.component)
        if width is None:
            keys, values = runs.index_select(0, 2 * pages), runs.index_select(0, 2 * pages + 1)
            return keys.view(-1, *part.shape[1:]), values.view(-1, *part.shape[1:])
        both = runs.index_select(0, pages).view(-1, *part.shape[1:])
        return both[..., :width], both[..., width:]
