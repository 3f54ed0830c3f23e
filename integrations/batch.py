"""BatchedCache: one decode step for many sequences, their keys and values read from L1's pages.

    sequence a   . . . 0 1 2 3 4 [5]      lengths differ, ends meet:
    sequence b   0 1 2 3 4 5 6 7 [8]      what is missing in front repeats a row and is masked
                 ---- past ----- new

Rows are gathered from the pools for each layer and step, as Transformers would otherwise copy each
sequence's cache to append one token. Recurrent states are gathered from their slots before the step
and written back after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

from .layout import MAMBA, SWA, CacheLayout
from .rows import Rows

if TYPE_CHECKING:
    from ..runtime.lease import Lease
    from ..tiers.pools import DevicePools


class BatchedCache(DynamicCache):
    """The caches of several leases side by side, for one forward of one token each.

    `positions` are the places of the new tokens, for which the leases have room. Call `write_back`
    after the forward. Writing and reading, a lease is touched only in rows that it owns or locks.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        pools: DevicePools,
        layout: CacheLayout,
        leases: list[Lease],
        positions: list[int],
    ) -> None:
        super().__init__(config=model.config)
        self._layout = layout
        self._where = {kv.layer: kv for kv in layout.kv}
        self._rows = Rows(pools, layout)
        self._past = max(positions)
        self._lengths = positions
        self._batch = len(leases)
        device = pools.device
        self._new: dict[str, torch.Tensor] = {}
        self._all: dict[str, torch.Tensor] = {}
        for component in self._rows.components:
            width = self._past
            if component == SWA:
                width = min(width, layout.window - 1)
            gathered = np.empty((self._batch, width + 1), np.int64)
            for line, lease, position in zip(gathered, leases, positions, strict=True):
                start = max(0, position - width)
                rows = self._rows.of(component, lease, start, position + 1)
                line[-len(rows) :] = rows
                line[: -len(rows)] = rows[0]
            self._all[component] = torch.from_numpy(gathered.reshape(-1)).to(device)
            self._new[component] = torch.from_numpy(gathered[:, -1].copy()).to(device)
        self._slots = torch.empty(0, dtype=torch.long, device=device)
        self._states = pools.view(MAMBA) if layout.states else []
        self._prepare()
        if layout.states:
            slots = [cast("int", lease.state(MAMBA)) for lease in leases]
            self._slots = torch.tensor(slots, device=device)
            self._gather_states()

    def attention_mask(self, device: torch.device) -> torch.Tensor | None:
        """Return what is padding, [batch, past + 1]; None where nothing is."""
        lengths = torch.tensor(self._lengths, device=device).unsqueeze(1)
        if bool((lengths == self._past).all()):
            return None
        places = torch.arange(self._past + 1, device=device)
        return (places >= self._past - lengths).long()

    def _prepare(self) -> None:
        """Let the layers say that they have seen `past` tokens: masks are made from it."""
        for kv in self._layout.kv:
            layer = cast("DynamicLayer", self.layers[kv.layer])
            heads, keys, _ = self._rows.shape(kv.component)
            # Of these only the shape is ever looked at.
            layer.keys = layer.values = torch.empty(1, device=self._slots.device).expand(
                self._batch, heads, self._past, keys
            )
            layer.is_initialized = True
            if isinstance(layer, DynamicSlidingWindowLayer):
                layer.cumulative_length = self._past

    def _gather_states(self) -> None:
        for state in self._layout.states:
            layer = cast("LinearAttentionLayer", self.layers[state.layer])
            tensor = self._states[state.part].index_select(0, self._slots)
            if state.kind == "conv":
                layer.lazy_initialization(conv_states=tensor, state_idx=state.index)
                layer.conv_states[state.index] = tensor
            else:
                layer.lazy_initialization(recurrent_states=tensor, state_idx=state.index)
                layer.recurrent_states[state.index] = tensor
            layer.has_previous_state[state.index] = True

    def write_back(self) -> None:
        """Write the sequences' new states into their slots."""
        for state in self._layout.states:
            layer = cast("LinearAttentionLayer", self.layers[state.layer])
            held = layer.conv_states if state.kind == "conv" else layer.recurrent_states
            tensor = held[state.index]
            if tensor is not None:
                self._states[state.part].index_copy_(0, self._slots, tensor)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values into their pages; return all that the layer attends to."""
        kv = self._where[layer_idx]
        self._rows.write(kv, self._new[kv.component], key_states[:, :, 0], value_states[:, :, 0])
        return cast(
            "tuple[torch.Tensor, torch.Tensor]",
            tuple(
                found.view(self._batch, -1, *found.shape[1:]).transpose(1, 2)
                for found in self._rows.read(kv, self._all[kv.component])
            ),
        )
