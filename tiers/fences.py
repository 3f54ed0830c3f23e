"""Fences: numbered points in the engine's stream of device work.

A fence is what a message can carry instead of a device event. 0 is the fence that has always passed,
and the only one where there is no device.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Protocol

from .device import Device, Event, device_for

if TYPE_CHECKING:
    import torch


class Fences(Protocol):
    """Record points of streams and ask whether the device is past them; `last` is the latest one."""

    last: int

    def current(self) -> int:
        """Return the handle of the stream that this thread has set, 0 for the default one; from any thread."""
        ...

    def record(self, stream: int = 0) -> int:
        """Mark the end of what is enqueued on `stream` now; 0 means the thread's current stream."""
        ...

    def follow(self, stream: int = 0) -> None:
        """Have what is enqueued on `stream` from now on done after all that was recorded on others."""
        ...

    def passed(self, fence: int) -> bool:
        """Tell, without waiting, whether the device has done everything recorded up to `fence`."""
        ...

    def wait(self, fence: int) -> None:
        """Block this thread until `fence` has passed: for worker threads only."""
        ...


class NoFences:
    """The fences of a machine without a device: work is done when the call returns."""

    last = 0

    def current(self) -> int:
        """Return 0."""
        return 0

    def record(self, stream: int = 0) -> int:
        """Return 0."""
        return 0

    def follow(self, stream: int = 0) -> None:
        """Do nothing."""

    def passed(self, fence: int) -> bool:
        """Return True."""
        return True

    def wait(self, fence: int) -> None:
        """Return at once."""


class FenceTable:
    """The fences of one device. A fence stands for all that was recorded up to it, on any stream.

    So the latest fence is enough to know that nothing the engine has enqueued so far still touches
    a page. Used from the engine's thread; `wait` and `events` also from worker threads.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._events: dict[int, Event] = {}
        self._latest: dict[int, Event] = {}  # of each stream, by its handle
        self.last = 0

    def __len__(self) -> int:
        """Count the fences that have not been seen to pass."""
        return len(self._events)

    def current(self) -> int:
        """See `Fences`."""
        return self.device.handle_of(self.device.stream_at(0))

    def record(self, stream: int = 0) -> int:
        """See `Fences`. Also forgets the oldest fences that have passed, so the table stays small."""
        for fence, event in list(islice(self._events.items(), 2)):
            if event.query():
                del self._events[fence]
        event, made = self.device.new_event(), self.device.stream_at(stream)
        event.record(made)
        self.last += 1
        self._events[self.last] = self._latest[self.device.handle_of(made)] = event
        return self.last

    def follow(self, stream: int = 0) -> None:
        """See `Fences`. O(streams): the latest event of each stands for those before it."""
        made = self.device.stream_at(stream)
        own = self.device.handle_of(made)
        for handle, event in list(self._latest.items()):
            if handle != own:
                if event.query():
                    del self._latest[handle]
                else:
                    made.wait_event(event)

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

    def events(self, fence: int) -> list[Event]:
        """Return the events that a stream must wait for to be behind `fence`."""
        return [event for number, event in list(self._events.items()) if number <= fence]


def fences_for(device: torch.device) -> Fences:
    """Make the fences of the device that pools are on."""
    made = device_for(device)
    return NoFences() if made is None else FenceTable(made)
