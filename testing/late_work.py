"""Work that is done late: the streams and events of a simulated device, and who decides what is next."""

from __future__ import annotations

import itertools
import random
import threading
from collections import deque
from collections.abc import Callable

Work = Callable[[], object]

_HASTES = (0.0, 0.1, 0.5, 0.9)
"""How often the device does something by itself: of the seeds, some make one that never does."""


class _Mark:
    """What one recording of an event stands for: a place in a stream."""

    __slots__ = ("passed", "stream")

    def __init__(self, stream: SimulatedStream) -> None:
        self.stream = stream
        self.passed = False

    def be_passed(self) -> None:
        self.passed = True


class SimulatedStream:
    """A stream of a simulated device: work in order. `handle` is what `stream=` of the cache's calls takes."""

    def __init__(self, scheduler: LateWork) -> None:
        self.handle = next(scheduler.handles)
        self.steps: deque[tuple[_Mark | None, Work | None]] = deque()
        self._scheduler = scheduler

    def enqueue(self, work: Work) -> None:
        """Have `work` done later, in the order of the stream. It must not raise, nor use the device."""
        self._scheduler.add(self, None, work)

    def wait_event(self, event: SimulatedEvent) -> None:
        """Have what is enqueued from now on done after what the event stands for now."""
        if event.mark is not None:
            self._scheduler.add(self, event.mark, None)

    def synchronize(self) -> None:
        """Have the device do all that is enqueued here, and what that waits for."""
        event = SimulatedEvent(self._scheduler)
        event.record(self)
        event.synchronize()


class SimulatedEvent:
    """An event of a simulated device."""

    def __init__(self, scheduler: LateWork) -> None:
        self.mark: _Mark | None = None
        self._scheduler = scheduler

    def record(self, stream: SimulatedStream) -> None:
        """Be the end of what is enqueued on a stream now; before the first time it has passed."""
        self.mark = _Mark(stream)
        self._scheduler.add(stream, None, self.mark.be_passed)

    def query(self) -> bool:
        """Tell whether the device has passed it."""
        self._scheduler.meanwhile()
        return self.mark is None or self.mark.passed

    def synchronize(self) -> None:
        """Have the device do what it needs to pass it."""
        if self.mark is not None:
            self._scheduler.reach(self.mark)


class LateWork:
    """Decide, by a seed, what is done when; safe from any thread."""

    def __init__(self, seed: int) -> None:
        self.handles = itertools.count(1)
        self._random = random.Random(seed)  # noqa: S311 - an order, not a secret
        self._haste = self._random.choice(_HASTES)
        self._lock = threading.Lock()
        self._busy: list[SimulatedStream] = []

    def add(self, stream: SimulatedStream, after: _Mark | None, work: Work | None) -> None:
        """Put a step at the end of a stream: to wait, or to work."""
        with self._lock:
            if not stream.steps:
                self._busy.append(stream)
            stream.steps.append((after, work))
        self.meanwhile()

    def meanwhile(self) -> None:
        """Do some work, or none: as a device does while a program goes on."""
        with self._lock:
            while self._busy and self._random.random() < self._haste:
                self._step(self._any())

    def reach(self, mark: _Mark) -> None:
        """Do what a mark needs, and perhaps more, until it is passed."""
        while True:
            with self._lock:
                if mark.passed:
                    return
                hasty = self._random.random() < self._haste
                self._step(self._any() if hasty else self._needed_by(mark))

    def finish(self) -> None:
        """Do everything."""
        with self._lock:
            while self._busy:
                self._step(self._any())

    def _any(self) -> SimulatedStream:
        return self._random.choice([s for s in self._busy if self._waits_for(s) is None])

    def _needed_by(self, mark: _Mark) -> SimulatedStream:
        stream = mark.stream
        while (other := self._waits_for(stream)) is not None:
            stream = other.stream
        return stream

    @staticmethod
    def _waits_for(stream: SimulatedStream) -> _Mark | None:
        """Return what keeps a stream from its next step. No circle: marks are older than who waits."""
        after = stream.steps[0][0]
        return None if after is None or after.passed else after

    def _step(self, stream: SimulatedStream) -> None:
        _, work = stream.steps.popleft()
        if not stream.steps:
            self._busy.remove(stream)
        if work is not None:
            work()
