"""The L1 tier: page ids of the device pools, and copies of states within them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..actors import handles
from ..errors import IntegrityError
from .allocator import INT32, FixedPool
from .fences import Fences, cuda_stream
from .layout import checked_ids
from .messages import CopyState, PageList
from .pools import DevicePools
from .tier import PageTier

if TYPE_CHECKING:
    import torch


class L1Tier(PageTier):
    """Give out the pages of `pools`; on a device, `fences` tells when freed ones are at rest."""

    def __init__(self, pools: DevicePools, fences: Fences | None = None) -> None:
        super().__init__(
            (
                FixedPool(name, pools.capacity[name], layout.page_bytes)
                for name, layout in pools.layouts.items()
            ),
            fences,
        )
        self._copy: Callable[[CopyState], None] = (
            _HostStates(pools).copy if pools.device.type == "cpu" else _DeviceStates(pools).copy
        )

    @handles(CopyState)
    def copy_state(self, msg: CopyState) -> int:
        """Copy pages within a pool: done on return on the CPU, enqueued on a device.

        Answers the fence behind the copy: until it has passed, the source must not be overwritten.
        """
        self._pools[msg.component]  # refuses an unknown one
        self._copy(msg)
        return self._fences.record(msg.stream)


class _HostStates:
    """Copies by the CPU: one slot, by far the most frequent case, is one slice a part."""

    def __init__(self, pools: DevicePools) -> None:
        self._rows = {name: pools.rows(name) for name in pools.layouts}
        self._bytes = {
            name: [(raw.numpy().data.cast("B"), raw.shape[1]) for raw in pools.raw(name)]
            for name in pools.layouts
        }
        self._capacity = pools.capacity

    def copy(self, msg: CopyState) -> None:
        component, source, target = msg.component, msg.source, msg.target
        if len(source) != INT32 or len(target) != INT32:
            sources, targets = _paired(msg, self._capacity[component])
            for rows in self._rows[component]:
                rows[targets] = rows[sources]
            return
        start = int.from_bytes(source, "little")
        end = int.from_bytes(target, "little")
        if start >= self._capacity[component] or end >= self._capacity[component]:
            raise _foreign(component, source, target)
        for part, size in self._bytes[component]:
            part[end * size : (end + 1) * size] = part[start * size : (start + 1) * size]


class _DeviceStates:
    """Copies by the device, in the order of the stream that the message names."""

    def __init__(self, pools: DevicePools) -> None:
        self._device: torch.device = pools.device
        self._raw = {name: pools.raw(name) for name in pools.layouts}
        self._capacity = pools.capacity

    def copy(self, msg: CopyState) -> None:
        import torch

        sources, targets = _paired(msg, self._capacity[msg.component])
        with torch.cuda.stream(cuda_stream(self._device, msg.stream)):
            for raw in self._raw[msg.component]:
                for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
                    raw[target].copy_(raw[source], non_blocking=True)


def _paired(
    msg: CopyState, capacity: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], np.ndarray[tuple[int], np.dtype[np.int32]]]:
    sources = checked_ids(msg.component, msg.source, capacity)
    targets = checked_ids(msg.component, msg.target, capacity)
    if len(sources) != len(targets):
        raise _foreign(msg.component, msg.source, msg.target)
    return sources, targets


def _foreign(component: str, source: PageList, target: PageList) -> IntegrityError:
    return IntegrityError(
        f"state copy in {component!r}: pages {source.hex()} to {target.hex()} cannot be paired"
    )
