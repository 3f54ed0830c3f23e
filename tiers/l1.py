"""The L1 tier: page ids of the device pools, and copies of states within them."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

import numpy as np

from ..actors import handles
from ..errors import IntegrityError
from ..spec import PAGE_ID_BYTES, PageList
from .allocator import FixedPool
from .fences import Fences, FenceTable
from .layout import checked_ids
from .messages import Clone, Cloned, CopyState, Restore, Short
from .pools import DevicePools
from .tier import PageTier

_Copy = Callable[[str, PageList, PageList, int], None]
"""Copy pages of a component, from a list to a list of as many, in the order of a stream."""

_PAIR = Struct("<II")
"""The ids of a copy of one page: read as unsigned, so that one below zero is too high."""


class L1Tier(PageTier):
    """Give out the pages of `pools`; on a device, `fences` tells when freed ones are at rest."""

    def __init__(self, pools: DevicePools, fences: Fences | None = None) -> None:
        self._fixed = {
            name: FixedPool(name, pools.capacity[name], layout.page_bytes)
            for name, layout in pools.layouts.items()
        }
        super().__init__(self._fixed.values(), fences)
        states = (
            _DeviceStates(pools, fences) if isinstance(fences, FenceTable) else _HostStates(pools)
        )
        self._copy: _Copy = states.copy
        self._clone: _Copy = states.clone

    @handles(Restore)
    def restore(self, msg: Restore) -> None:
        """Begin with owners that had their pages before; what nobody has may still be in use."""
        for component, pages in msg.items:
            pool = self._fixed[component]
            pool.give(pages)
            rest = b"" if self._fences.passed(msg.fence) else pool.take(pool.available())
            if rest:
                pool.owners.remove(rest)
                self._cool(pool, rest, msg.fence)

    @handles(CopyState)
    def copy_state(self, msg: CopyState) -> int:
        """Copy pages within a pool: done on return on the CPU, enqueued on a device.

        Returns the fence behind the copy: until it has passed, the source must not be overwritten.
        """
        self._pools[msg.component]  # refuses an unknown one
        self._copy(msg.component, msg.source, msg.target, msg.stream)
        return self._fences.record(msg.stream)

    @handles(Clone)
    def clone(self, msg: Clone) -> Cloned | Short:
        """Take a slot and copy a state to it, as `allocate` and `copy_state` do; both or neither."""
        if self._cooling:
            self._free_cooled()
        component = msg.component
        pool = self._pools[component]
        slot = pool.take(1)
        if slot is None:
            return self._short(((component, 1),))
        try:
            self._clone(component, msg.source, slot, msg.stream)
        except IntegrityError:
            pool.owners.remove(slot)
            pool.put(slot)
            raise
        if self._audit is not None:
            self._audit.changed(component, slot)
        return Cloned(slot, self._fences.record(msg.stream))


class _HostStates:
    """Copies by the CPU, done on return: it has no streams."""

    def __init__(self, pools: DevicePools) -> None:
        self._rows = {name: pools.rows(name) for name in pools.layouts}
        self._bytes = {
            name: [(raw.numpy().data.cast("B"), raw.shape[1]) for raw in pools.raw(name)]
            for name in pools.layouts
        }
        self._capacity = pools.capacity

    def copy(self, component: str, source: PageList, target: PageList, stream: int) -> None:
        """Copy any number of pages."""
        sources, targets = _paired(component, source, target, self._capacity[component])
        for rows in self._rows[component]:
            rows[targets] = rows[sources]

    def clone(self, component: str, source: PageList, target: PageList, stream: int) -> None:
        """Copy one page, by far the most frequent case, to a page of the pool: one slice a part."""
        if len(source) != PAGE_ID_BYTES:
            raise _foreign(component, source, target)
        start, end = _PAIR.unpack(source + target)
        if start >= self._capacity[component]:
            raise _foreign(component, source, target)
        for part, size in self._bytes[component]:
            part[end * size : (end + 1) * size] = part[start * size : (start + 1) * size]


class _DeviceStates:
    """Copies by the device, on the stream that the message names, behind what others have enqueued."""

    def __init__(self, pools: DevicePools, fences: FenceTable) -> None:
        self._device = fences.device
        self._fences = fences
        self._raw = {name: pools.raw(name) for name in pools.layouts}
        self._capacity = pools.capacity

    def copy(self, component: str, source: PageList, target: PageList, stream: int) -> None:
        """Enqueue the copy."""
        sources, targets = _paired(component, source, target, self._capacity[component])
        self._fences.follow(stream)
        with self._device.using(self._device.stream_at(stream)):
            for raw in self._raw[component]:
                for start, end in zip(sources.tolist(), targets.tolist(), strict=True):
                    self._device.copy(raw[end], raw[start])

    clone = copy


def _paired(
    component: str, source: PageList, target: PageList, capacity: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], np.ndarray[tuple[int], np.dtype[np.int32]]]:
    sources = checked_ids(component, source, capacity)
    targets = checked_ids(component, target, capacity)
    if len(sources) != len(targets):
        raise _foreign(component, source, target)
    return sources, targets


def _foreign(component: str, source: PageList, target: PageList) -> IntegrityError:
    return IntegrityError(
        f"state copy in {component!r}: pages {source.hex()} to {target.hex()} cannot be paired"
    )
