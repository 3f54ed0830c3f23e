"""Fences: numbered points in the engine's stream of device work.

A fence is what a message can carry instead of a device event. 0 is the fence that has always passed,
and the only one where there is no device.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Fences(Protocol):
    """Record points of streams and ask whether the device is past them."""

    def record(self, stream: int = 0) -> int:
        """Mark the end of what is enqueued on `stream` now; 0 means the thread's current stream."""
        ...

    def passed(self, fence: int) -> bool:
        """Tell, without waiting, whether the device has done everything before `fence`."""
        ...

    def wait(self, fence: int) -> None:
        """Block this thread until `fence` has passed: for worker threads only."""
        ...


class NoFences:
    """The fences of a machine without a device: work is done when the call returns."""

    def record(self, stream: int = 0) -> int:
        """Return 0."""
        return 0

    def passed(self, fence: int) -> bool:
        """Return True."""
        return True

    def wait(self, fence: int) -> None:
        """Return at once."""


class FenceTable:
    """The fences of one CUDA device, events by number; a forgotten fence has passed.

    Used from the engine's thread; `wait` and `event` also from worker threads. Events block
    instead of spinning, so that a waiting thread costs no CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: dict[int, torch.cuda.Event] = {}
        self._last = 0

    def __len__(self) -> int:
        """Count the fences that have not been seen to pass."""
        return len(self._events)

    def record(self, stream: int = 0) -> int:
        """See `Fences`. Also forgets the oldest fences that have passed, so the table stays small."""
        import torch

        for fence, event in list(islice(self._events.items(), 2)):
            if event.query():
                del self._events[fence]
        event = torch.cuda.Event(blocking=True)
        event.record(cuda_stream(self._device, stream))
        self._last += 1
        self._events[self._last] = event
        return self._last

    def passed(self, fence: int) -> bool:
        """See `Fences`."""
        event = self._events.get(fence)
        if event is None:
            return True
        if not event.query():
            return False
        self._events.pop(fence, None)
        return True

    def wait(self, fence: int) -> None:
        """See `Fences`."""
        event = self._events.get(fence)
        if event is not None:
            event.synchronize()

    def event(self, fence: int) -> torch.cuda.Event | None:
        """Return the event of `fence` for a stream to wait for; None when it has passed."""
        return self._events.get(fence)


def cuda_stream(device: torch.device, handle: int) -> torch.cuda.Stream:
    """Return the stream with this handle, or the thread's current one on `device` for 0."""
    import torch

    if handle:
        return torch.cuda.ExternalStream(handle, device=device)
    return torch.cuda.current_stream(device)


def fences_for(device: torch.device) -> Fences:
    """Choose the fences of `device`."""
    return FenceTable(device) if device.type == "cuda" else NoFences()
