"""The copy engine of a device with streams: one a direction, layer by layer, through fixed staging."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
import trio

from ..actors.faults import Faults
from ..actors.observer import Observer
from ..errors import ConfigError
from ..spec import Tier
from .arena import HostArena
from .copy import Arrived, BatchRunner, Before
from .copy_faults import Groups, Ids
from .device import Device
from .fences import FenceTable
from .pools import DevicePools

_DIRECT_BYTES = 32 * 1024
"""From this size of a part on, one DMA a page beats gathering pages by the CPU."""


class StreamCopyEngine(BatchRunner):
    """Copy between the pools of a device and the arena, which must be pinned where the device says so.

    Each direction has a stream, a worker thread at a time and two staging slots: while the device
    fills one, the CPU empties the other. On the device the pages of a layer are gathered into (or
    scattered from) a slot, so that the bus sees few, large transfers: small parts go through pinned
    staging memory, large ones between the slot and the arena itself. The worker waits for events
    that block; nothing polls.

    `staging_bytes` is the size of one slot, at least that of the largest part; there are two a
    direction, on the device and on the host. Raises `ConfigError` when the arena is not pinned.
    """

    def __init__(
        self,
        pools: DevicePools,
        arena: HostArena,
        fences: FenceTable,
        *,
        staging_bytes: int = 16 * 1024 * 1024,
        observer: Observer | None = None,
        before: Before | None = None,
        faults: Faults | None = None,
    ) -> None:
        self._device = fences.device
        if self._device.pins and not arena.pinned:
            raise ConfigError("copies need a pinned arena: HostArena(..., pin=True)")
        parts = [part for layout in pools.layouts.values() for part in layout.parts]
        size = max(staging_bytes, *(part.nbytes for part in parts))
        self._fences = fences
        self._l1 = {name: [_words(raw) for raw in pools.raw(name)] for name in pools.layouts}
        self._l2 = {name: arena.raw(name) for name in arena.layouts}
        self._l2_rows = {name: arena.rows(name) for name in arena.layouts}
        self._lanes = {src: _Lane(self._device, size) for src in (Tier.L1, Tier.L2)}
        counts = {
            Tier.L1: dict(pools.capacity),
            Tier.L2: {name: len(rows[0]) for name, rows in self._l2_rows.items()},
        }
        super().__init__(pools.layouts, counts, observer, before, faults)

    async def _copy(
        self, groups: Groups, src: Tier, dst: Tier, fence: int, arrived: Arrived | None
    ) -> None:
        lane = self._lanes[src]
        await trio.to_thread.run_sync(
            self._work, groups, lane, fence, src, arrived, limiter=lane.limiter
        )

    def close(self) -> None:
        """Wait for the streams and let go of the pools, the arena and the staging memory."""
        for lane in self._lanes.values():
            lane.stream.synchronize()
        self._lanes.clear()
        self._l1.clear()
        self._l2.clear()
        self._l2_rows.clear()

    # -- in a worker thread ------------------------------------------------------------------------------

    def _work(
        self, groups: Groups, lane: _Lane, fence: int, src: Tier, arrived: Arrived | None
    ) -> None:
        with self._device.using(lane.stream):
            try:
                for event in self._fences.events(fence):
                    lane.stream.wait_event(event)
                if src is Tier.L1:
                    self._down(groups, lane)
                else:
                    self._up(groups, lane, arrived)
            finally:
                # Also after an error: what was enqueued before it must not move bytes afterwards.
                lane.done.record(lane.stream)
                lane.done.synchronize()
                for slot in lane.slots:
                    slot.discard()

    def _down(self, groups: Groups, lane: _Lane) -> None:
        """L1 to L2: gather on the device, one copy over the bus, scatter by the CPU if small."""
        for name, part, sources, targets in _parts(groups, self._l1):
            device_ids = self._device.ids(sources)
            pool, host = self._l1[name][part], self._l2[name][part]
            nbytes = host.shape[1]
            for first, last in lane.chunks(len(sources), nbytes):
                slot = lane.next_slot()
                slot.finish()
                staged = slot.on_device[: (last - first) * nbytes].view(pool.dtype)
                self._device.gather(staged.view(-1, pool.shape[1]), pool, device_ids[first:last])
                ids = targets[first:last]
                if nbytes >= _DIRECT_BYTES:
                    pages = slot.on_device[: len(ids) * nbytes].view(-1, nbytes)
                    for row, page in enumerate(ids.tolist()):
                        self._device.copy(host[page], pages[row])
                else:
                    size = len(ids) * nbytes
                    self._device.copy(slot.on_host[:size], slot.on_device[:size])
                    slot.scatter_later(self._l2_rows[name][part], ids)
                slot.event.record(lane.stream)
        for slot in lane.slots:
            slot.finish()

    def _up(self, groups: Groups, lane: _Lane, arrived: Arrived | None) -> None:
        """L2 to L1: gather by the CPU if small, one copy over the bus, scatter on the device."""
        for name, part, sources, targets in _parts(groups, self._l1):
            device_ids = self._device.ids(targets)
            pool, host = self._l1[name][part], self._l2[name][part]
            nbytes = host.shape[1]
            for first, last in lane.chunks(len(sources), nbytes):
                slot = lane.next_slot()
                slot.finish()
                ids = sources[first:last]
                size = len(ids) * nbytes
                if nbytes >= _DIRECT_BYTES:
                    pages = slot.on_device[:size].view(-1, nbytes)
                    for row, page in enumerate(ids.tolist()):
                        self._device.copy(pages[row], host[page])
                else:
                    rows = self._l2_rows[name][part]
                    slot.on_host[:size].numpy().view(rows.dtype)[:] = rows[ids]
                    self._device.copy(slot.on_device[:size], slot.on_host[:size])
                staged = slot.on_device[:size].view(pool.dtype).view(-1, pool.shape[1])
                self._device.scatter(pool, device_ids[first:last], staged)
                slot.event.record(lane.stream)
            if arrived is not None:
                event = self._device.new_event()
                event.record(lane.stream)
                arrived(name, part, event)


class _Slot:
    """One staging buffer, on both sides of the bus, and what is still to be done with it."""

    def __init__(self, device: Device, size: int) -> None:
        self.on_device, self.on_host = device.staging(size)
        self.event = device.new_event()
        self._pending: tuple[np.ndarray[tuple[int], np.dtype[np.void]], Ids] | None = None

    def scatter_later(self, rows: np.ndarray[tuple[int], np.dtype[np.void]], ids: Ids) -> None:
        """Have `finish` move the host side into `rows`, once the device has filled it."""
        self._pending = rows, ids

    def finish(self) -> None:
        """Wait until the device is done with the slot, and empty its host side."""
        self.event.synchronize()
        if self._pending is not None:
            rows, ids = self._pending
            self._pending = None
            staged = self.on_host[: len(ids) * rows.itemsize].numpy()
            rows[ids] = staged.view(rows.dtype)

    def discard(self) -> None:
        """Forget what `finish` would do: after an error the target pages are somebody else's soon."""
        self._pending = None


class _Lane:
    """One direction: its stream, its slots in turn, and the limit of one worker at a time."""

    def __init__(self, device: Device, size: int) -> None:
        self.stream = device.new_stream()
        self.done = device.new_event()
        # The pools and the slots may still be written by what their maker has enqueued: zeroes, say.
        self.done.record(device.stream_at(0))
        self.stream.wait_event(self.done)
        self.limiter = trio.CapacityLimiter(1)
        self.slots = (_Slot(device, size), _Slot(device, size))
        self._turn = itertools.cycle(self.slots)
        self._size = size

    def next_slot(self) -> _Slot:
        """Return the slot that has been in use for longest."""
        return next(self._turn)

    def chunks(self, pages: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """Cut `pages` into ranges that fit a slot."""
        step = self._size // nbytes
        for first in range(0, pages, step):
            yield first, min(first + step, pages)


def _parts(
    groups: Groups, pools: dict[str, list[torch.Tensor]]
) -> Iterator[tuple[str, int, Ids, Ids]]:
    """Go through the parts of all components, first layers first."""
    busy = {name: ids for name, ids in groups.items() if len(ids[0])}
    for part in range(max((len(pools[name]) for name in busy), default=0)):
        for name, (sources, targets) in busy.items():
            if part < len(pools[name]):
                yield name, part, sources, targets


def _words(raw: torch.Tensor) -> torch.Tensor:
    """View pages of bytes as the widest integers that fit, so that kernels move whole words."""
    for dtype, width in ((torch.int64, 8), (torch.int32, 4), (torch.int16, 2)):
        if raw.shape[1] % width == 0 and raw.storage_offset() % width == 0:
            return raw.view(dtype)
    return raw
