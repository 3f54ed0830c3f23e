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
        """Tell, without waiting, whether the device has done everything recorded up to `fence`."""
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
    """The fences of one CUDA device. A fence stands for all that was recorded up to it, on any stream.

    So the latest fence is enough to know that nothing the engine has enqueued so far still touches
    a page. Used from the engine's thread; `wait` and `events` also from worker threads. Events block
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
        for number, event in list(self._events.items()):
            if number > fence:
                break
            if not event.query():
                return False
            self._events.pop(number, None)
        return True

    def wait(self, fence: int) -> None:
        """See `Fences`."""
        for event in self.events(fence):
            event.synchronize()

    def events(self, fence: int) -> list[torch.cuda.Event]:
        """Return the events that a stream must wait for to be behind `fence`."""
        return [event for number, event in list(self._events.items()) if number <= fence]


def cuda_stream(device: torch.device, handle: int) -> torch.cuda.Stream:
    """Return the stream with this handle, or the thread's current one on `device` for 0."""
    import torch

    if handle:
        return torch.cuda.ExternalStream(handle, device=device)
    return torch.cuda.current_stream(device)


def fences_for(device: torch.device) -> Fences:
    """Choose the fences of `device`."""
    return FenceTable(device) if device.type == "cuda" else NoFences()
