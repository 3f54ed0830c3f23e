"""LeasedCache: Transformers' cache object over a lease's pages and working state.

What is copied: restoring gathers the lease's pages once, layer by layer, because Transformers wants
each layer's keys and values in one piece; a forward writes each new key and value into its page once,
besides what Transformers does. Recurrent states are not copied: the cache object's states *are* the
lease's slot, which layers update in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

from ..errors import IntegrityError
from ..spec import PagedSpec
from .layout import MAMBA, CacheLayout

if TYPE_CHECKING:
    from ..runtime.lease import Lease
    from ..tiers.pools import DevicePools


class LeasedCache(DynamicCache):
    """A `DynamicCache` that begins with what a lease holds and writes what is new into its pages.

    Valid as long as its lease. `attend(start, end)` says before each forward which tokens it will
    compute; the lease must have been extended to `end` by then.
    """

    def __init__(
        self, model: PreTrainedModel, pools: DevicePools, layout: CacheLayout, lease: Lease
    ) -> None:
        super().__init__(config=model.config)
        self._layout = layout
        self._lease = lease
        self._page = layout.spec.page_size
        self._device = pools.device
        self._where = {kv.layer: kv for kv in layout.kv}
        self._rows: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._paged: dict[str, list[torch.Tensor]] = {}
        self._tensors: dict[str, int] = {}
        for component in layout.spec.components:
            if isinstance(component, PagedSpec):
                # One row a token: with two tensors a page is a run of keys, then a run of values.
                rows = (-1, component.kv_heads, component.head_dim)
                self._paged[component.name] = [
                    part.view(rows) for part in pools.view(component.name)
                ]
                self._tensors[component.name] = component.tensors
        self._slots = pools.view(MAMBA) if layout.states else []
        self._bound = False
        if lease.length:
            self._restore(lease.length)
            self._bind(known=True)

    # -- restoring ------------------------------------------------------------------------------------

    def _restore(self, length: int) -> None:
        """Gather what the layers need of [0, length), one copy a tensor."""
        gathers = {name: self._pages_of(name, length) for name in self._paged}
        for kv in self._layout.kv:
            layer = cast("DynamicLayer", self.layers[kv.layer])
            index, skip = gathers[kv.component]
            keys, values = self._gather(kv.component, kv.part, index, skip)
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            if isinstance(layer, DynamicSlidingWindowLayer):
                layer.cumulative_length = length

    def _pages_of(self, component: str, length: int) -> tuple[torch.Tensor, int]:
        """Answer the pages that hold the component's need of [0, length), and the tokens to skip."""
        first = 0
        spec = next(c for c in self._layout.spec.components if c.name == component)
        if isinstance(spec, PagedSpec) and spec.rule != "full":
            first = max(0, length - (self._layout.window - 1))
        start = self._lease.start(component)
        if start > first:
            raise IntegrityError(
                f"{component}: the lease holds tokens from {start} on, the layers need {first}"
            )
        table = np.asarray(self._lease.pages(component))
        low = (first - start) // self._page
        high = -(-(length - start) // self._page)
        pages = torch.from_numpy(table[low:high].astype(np.int64)).to(self._device)
        return pages, first - start - low * self._page

    def _gather(
        self, component: str, part: int, pages: torch.Tensor, skip: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy pages into one piece: keys and values as [1, heads, tokens, width], `skip` tokens left out."""
        rows = self._paged[component][part]
        runs = rows.view(-1, self._page, *rows.shape[1:])

        def piece(index: torch.Tensor) -> torch.Tensor:
            tokens = runs.index_select(0, index).view(-1, *rows.shape[1:])
            return tokens[skip:].transpose(0, 1).unsqueeze(0)

        if self._tensors[component] == 2:
            return piece(2 * pages), piece(2 * pages + 1)
        both = piece(pages)
        width = self._layout.split[component]
        return both[..., :width], both[..., width:]

    def _bind(self, *, known: bool) -> None:
        """Let the recurrent layers' states be the lease's slot; `known` where it holds a state."""
        for (layer, kind, index), tensor in self._state_views():
            if not known:
                tensor.zero_()
            if kind == "conv":
                layer.lazy_initialization(conv_states=tensor, state_idx=index)
                layer.conv_states[index] = tensor
            else:
                layer.lazy_initialization(recurrent_states=tensor, state_idx=index)
                layer.recurrent_states[index] = tensor
            layer.has_previous_state[index] = known
        self._bound = True

    def _state_views(self) -> Iterator[tuple[tuple[LinearAttentionLayer, str, int], torch.Tensor]]:
        if not self._layout.states:
            return
        slot = self._lease.state(MAMBA)
        for state in self._layout.states:
            layer = cast("LinearAttentionLayer", self.layers[state.layer])
            yield (layer, state.kind, state.index), self._slots[state.part][slot].unsqueeze(0)

    # -- computing ------------------------------------------------------------------------------------

    def attend(self, start: int, end: int) -> None:
        """Prepare for a forward over the tokens [start, end): find the rows of their pages."""
        if not self._bound:
            self._bind(known=False)
        page = self._page
        for name, tensors in self._tensors.items():
            table, first = self._lease.pages(name), self._lease.start(name) // page
            if end - start == 1:
                row = table[start // page - first] * (tensors * page) + start % page
                rows = torch.tensor([row], device=self._device)
            else:
                positions = np.arange(start, end)
                own = np.asarray(table)[positions // page - first].astype(np.int64)
                found = own * (tensors * page) + positions % page
                rows = torch.from_numpy(found).to(self._device)
            self._rows[name] = (rows, rows + page)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new keys and values into their pages, then do what a `DynamicCache` does."""
        self.capture(key_states, value_states, layer_idx)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def capture(self, key_states: torch.Tensor, value_states: torch.Tensor, layer: int) -> None:
        """Write new keys and values [1, heads, tokens, width] of one layer into their pages."""
        kv = self._where[layer]
        pool = self._paged[kv.component][kv.part]
        rows, behind = self._rows[kv.component]
        keys, values = key_states[0].transpose(0, 1), value_states[0].transpose(0, 1)
        if self._tensors[kv.component] == 2:
            pool.index_copy_(0, rows, keys)
            pool.index_copy_(0, behind, values)
        else:
            width = self._layout.split[kv.component]
            pool[..., :width].index_copy_(0, rows, keys)
            pool[..., width:].index_copy_(0, rows, values)

    # -- states ---------------------------------------------------------------------------------------

    def save_state(self) -> list[torch.Tensor]:
        """Copy the working state as it is now."""
        return [tensor.clone() for _, tensor in self._state_views()]

    def load_state(self, saved: list[torch.Tensor]) -> None:
        """Put a saved state back as the working state."""
        for (_, tensor), kept in zip(self._state_views(), saved, strict=True):
            tensor.copy_(kept)
