"""What the cache needs of a device that works by itself: streams, events, and page copies in their order.

Work that is enqueued on a stream is done later, in the stream's order; nothing else orders it but an
event that another stream, or a thread, waits for. The CPU is no such device: there work is done when
the call returns.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


class Event(Protocol):
    """A point in a stream, which the device passes when it has done all that was enqueued before."""

    def record(self, stream: Any) -> None:
        """Be the end of what is enqueued on `stream` now; before the first time it has passed."""
        ...

    def query(self) -> bool:
        """Tell, without waiting, whether the device has passed it."""
        ...

    def synchronize(self) -> None:
        """Block this thread until the device has passed it."""
        ...


class Stream(Protocol):
    """A queue of work that the device does in order."""

    def wait_event(self, event: Any) -> None:
        """Have what is enqueued from now on done after what `event` stands for now."""
        ...

    def synchronize(self) -> None:
        """Block this thread until all that is enqueued has been done."""
        ...


class Device(Protocol):
    """Make streams and events, and enqueue copies on a thread's current stream.

    Streams and events are the device's own: those of one mean nothing to another. What a copy was
    given may not change until the device has done it: the call returns before. Safe from any
    thread; the current stream is each thread's own.
    """

    pins: bool
    """Whether the host's memory must be pinned for copies from or to it."""

    def new_stream(self) -> Stream:
        """Make a stream."""
        ...

    def stream_at(self, handle: int) -> Stream:
        """Find the stream with this handle; 0 is the thread's current one."""
        ...

    def handle_of(self, stream: Any) -> int:
        """Return a stream's handle, the same for the same stream; 0 may stand for the default one."""
        ...

    def using(self, stream: Any) -> AbstractContextManager[object]:
        """Make a stream this thread's current one for a block."""
        ...

    def new_event(self) -> Event:
        """Make an event for which a thread waits without using the CPU."""
        ...

    def staging(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Make `size` bytes of the device's memory, and as many of the host's, pinned where it must be."""
        ...

    def ids(self, ids: npt.NDArray[np.int32]) -> torch.Tensor:
        """Bring page ids to the device, for `gather` and `scatter` on the current stream."""
        ...

    def gather(self, target: torch.Tensor, pool: torch.Tensor, ids: torch.Tensor) -> None:
        """Enqueue the copy of the rows `ids` of a pool to the rows of `target`."""
        ...

    def scatter(self, pool: torch.Tensor, ids: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue the copy of the rows of `source` to the rows `ids` of a pool."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy; one of the tensors may be in the host's memory."""
        ...


def _cuda(device: torch.device) -> Device:
    from .cuda_device import CudaDevice

    return CudaDevice(device)


DEVICES: dict[str, Callable[[torch.device], Device]] = {"cuda": _cuda}
"""What makes the device that pools are on, by the type that torch gives it."""


def device_for(device: torch.device) -> Device | None:
    """Return the device that pools are on; None where work is done when the call returns."""
    make = DEVICES.get(device.type)
    return None if make is None else make(device)
