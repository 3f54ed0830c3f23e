"""A device without hardware: it does enqueued work late, so that a wait that is missing shows."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..runtime.arguments import require_int
from ..tiers.device import DEVICES
from .late_work import LateWork, SimulatedEvent, SimulatedStream

if TYPE_CHECKING:
    import torch


class SimulatedDevice:
    """Streams and events on the CPU, with the CPU's tensors as the device's memory.

    What is enqueued is done later: some of it, chosen at random among the streams that may go on,
    whenever the device is used, and what is needed when somebody waits for an event or a stream. Some
    seeds make a device that does nothing before it must. Work is done whole, one piece at a time.

    The order depends on the seed and on the order of calls alone: where only one thread uses the device
    it can be repeated. A cache's copies run on worker threads, which call when they will.
    """

    pins = False

    def __init__(self, seed: int) -> None:
        self._work = LateWork(require_int("seed", seed))
        self._streams: WeakValueDictionary[int, SimulatedStream] = WeakValueDictionary()
        self._threads = threading.local()
        self._default = self.new_stream()

    def new_stream(self) -> SimulatedStream:
        """Make a stream. Its `handle` is what the cache's calls take as `stream=`."""
        stream = SimulatedStream(self._work)
        self._streams[stream.handle] = stream
        return stream

    def stream_at(self, handle: int) -> SimulatedStream:
        """Return the stream with this handle, or the thread's current one for 0. Raises ConfigError."""
        if not handle:
            return getattr(self._threads, "current", self._default)
        stream = self._streams.get(handle)
        if stream is None:
            raise ConfigError(
                f"the simulated device has no stream {handle}: keep it while it is used"
            )
        return stream

    def handle_of(self, stream: SimulatedStream) -> int:
        """Return a stream's handle."""
        return stream.handle

    @contextmanager
    def using(self, stream: SimulatedStream) -> Generator[None, None, None]:
        """Make a stream this thread's current one for a block; a task that awaits in it spoils it."""
        before = self.stream_at(0)
        self._threads.current = stream
        try:
            yield
        finally:
            self._threads.current = before

    def new_event(self) -> SimulatedEvent:
        """Make an event, with `record(stream)`, `query()` and `synchronize()`."""
        return SimulatedEvent(self._work)

    def staging(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Make `size` bytes of the device's memory, and as many of the host's."""
        import torch

        return torch.empty(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)

    def ids(self, ids: npt.NDArray[np.int32]) -> torch.Tensor:
        """Return page ids as `gather` and `scatter` want them."""
        import torch

        return torch.tensor(ids, dtype=torch.int64)

    def gather(self, target: torch.Tensor, pool: torch.Tensor, ids: torch.Tensor) -> None:
        """Enqueue on the current stream: the rows `ids` of a pool, to `target`."""
        self.stream_at(0).enqueue(lambda: target.copy_(pool[ids]))

    def scatter(self, pool: torch.Tensor, ids: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue on the current stream: the rows of `source`, to the rows `ids` of a pool."""
        self.stream_at(0).enqueue(lambda: pool.index_copy_(0, ids, source))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue on the current stream: `source` to `target`."""
        self.stream_at(0).enqueue(lambda: target.copy_(source))

    def synchronize(self) -> None:
        """Do everything that is enqueued."""
        self._work.finish()


@contextmanager
def simulated_device(seed: int) -> Generator[SimulatedDevice, None, None]:
    """Have caches that are opened in the block, with the device "cpu", run on a simulated one.

    They copy as on a CUDA device, by the same code. An engine that enqueues its own work on streams of the
    device finds a byte that was read too early, or written too late. All work is done at the end of
    the block.
    """
    device = SimulatedDevice(seed)
    before = DEVICES.get("cpu")
    DEVICES["cpu"] = lambda _: device
    try:
        yield device
        device.synchronize()
    finally:
        if before is None:
            del DEVICES["cpu"]
        else:
            DEVICES["cpu"] = before
