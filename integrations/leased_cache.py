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

from ..errors import ConfigError, IntegrityError
from .layout import MAMBA, SWA, CacheLayout
from .rows import Rows

if TYPE_CHECKING:
    from ..runtime.lease import Lease
    from ..tiers.pools import DevicePools


class LeasedCache(DynamicCache):
    """A `DynamicCache` that begins with what a lease holds and writes what is new into its pages.

    Valid as long as its lease. `attend(start, end)` says before each forward which tokens it will
    compute, for which the lease must have room, and `attended()` after it.
    """

    def __init__(
        self, model: PreTrainedModel, pools: DevicePools, layout: CacheLayout, lease: Lease
    ) -> None:
        super().__init__(config=model.config)
        self._layout = layout
        self._lease = lease
        self._device = pools.device
        self._where = {kv.layer: kv for kv in layout.kv}
        self._pools = Rows(pools, layout)
        self._rows: dict[str, torch.Tensor] = {}
        self._slots = pools.view(MAMBA) if layout.states else []
        self._bound = self._left = self._torn = False
        if lease.length:
            self._restore(lease.length)
            self._bind(known=True)

    # -- restoring ------------------------------------------------------------------------------------

    def _restore(self, length: int) -> None:
        """Gather what the layers need of [0, length), one copy a tensor."""
        found = {name: self._pages_of(name, length) for name in self._pools.components}
        for kv in self._layout.kv:
            layer = cast("DynamicLayer", self.layers[kv.layer])
            pages, skip = found[kv.component]
            keys, values = (
                tokens[skip:].transpose(0, 1).unsqueeze(0)
                for tokens in self._pools.read_pages(kv, pages)
            )
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            if isinstance(layer, DynamicSlidingWindowLayer):
                layer.cumulative_length = length

    def _pages_of(self, component: str, length: int) -> tuple[torch.Tensor, int]:
        """Return the pages that hold the component's need of [0, length), and the tokens to skip."""
        first = max(0, length - (self._layout.window - 1)) if component == SWA else 0
        start, page = self._lease.start(component), self._pools.page
        if start > first:
            raise IntegrityError(
                f"{component}: the lease holds tokens from {start} on, the layers need {first}"
            )
        low, high = (first - start) // page, -(-(length - start) // page)
        pages = np.asarray(self._lease.pages(component))[low:high].astype(np.int64)
        return torch.from_numpy(pages).to(self._device), first - start - low * page

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
        """Prepare for a forward over the tokens [start, end): find the rows of their pages.

        Raises ConfigError where the forward before did not come to its end (`attended`): layers update
        their states in place, so these are of no place any more.
        """
        if self._torn:
            raise ConfigError("a forward failed half-way: release the sequence and start it again")
        if self._left:
            raise ConfigError(
                "decoded in batches, a sequence cannot be computed by itself any more"
            )
        if not self._bound:
            self._bind(known=False)
        for name in self._pools.components:
            rows = self._pools.of(name, self._lease, start, end)
            self._rows[name] = torch.from_numpy(rows).to(self._device)
        self._torn = True

    def attended(self) -> None:
        """Say that the forward has come to its end."""
        self._torn = False

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
        self._pools.write(
            kv,
            self._rows[kv.component],
            key_states[0].transpose(0, 1),
            value_states[0].transpose(0, 1),
        )

    def leave_pages(self) -> None:
        """Let go of the gathered keys and values: from now on they are read from the pages, in batches."""
        for kv in self._layout.kv:
            layer = cast("DynamicLayer", self.layers[kv.layer])
            layer.keys = layer.values = None
            layer.is_initialized = False
        self._left = True

    # -- states ---------------------------------------------------------------------------------------

    def save_state(self) -> list[torch.Tensor]:
        """Copy the working state as it is now."""
        return [tensor.clone() for _, tensor in self._state_views()]

    def load_state(self, saved: list[torch.Tensor]) -> None:
        """Put a saved state back as the working state."""
        for (_, tensor), kept in zip(self._state_views(), saved, strict=True):
            tensor.copy_(kept)
