"""The mailbox: a bounded queue, with a control lane ahead of it."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from ..errors import MailboxFull
from .envelope import Envelope


class MailboxStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a mailbox has seen. Times are measured only while hops are observed."""

    depth: int
    peak: int
    waiting: int
    waits: int
    refused: int
    waited_ns: int


class Mailbox:
    """The queue of one actor, of at most `bound` messages per lane. Survives the actor's restarts.

    Where a lane is full an ask waits for room; a tell, which never waits, is refused. To put, take
    or withdraw a message costs the same however many are queued.
    """

    __slots__ = ("_control", "_data", "_waiting", "bound", "peak", "refused", "waited_ns", "waits")

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._data: OrderedDict[Envelope, None] = OrderedDict()
        self._control: OrderedDict[Envelope, None] = OrderedDict()
        self._waiting: OrderedDict[Envelope, None] = OrderedDict()
        self.peak = 0
        self.waits = 0
        self.refused = 0
        self.waited_ns = 0

    def __len__(self) -> int:
        return len(self._data) + len(self._control) + len(self._waiting)

    def __repr__(self) -> str:
        return (
            f"<Mailbox {len(self._data)}/{self.bound}, {len(self._control)} control, "
            f"{len(self._waiting)} waiting>"
        )

    def statistics(self) -> MailboxStatistics:
        """Return depth and history."""
        return MailboxStatistics(
            depth=len(self._data) + len(self._control),
            peak=self.peak,
            waiting=len(self._waiting),
            waits=self.waits,
            refused=self.refused,
            waited_ns=self.waited_ns,
        )

    def put(self, envelope: Envelope, *, may_wait: bool, exempt: bool = False) -> None:
        """Queue a message.

        `exempt` is for the kernel's own notices, which are bounded by what they tell of. Raises
        MailboxFull where there is no room and the message may not wait; then nothing has changed.
        """
        lane = self._control if envelope.control else self._data
        if len(lane) >= self.bound and not exempt:
            if may_wait:
                self._waiting[envelope] = None
                self.waits += 1
                return
            self.refused += 1
            raise MailboxFull(
                f"{self.bound} messages are queued; send later or give the mailbox a higher bound"
            )
        lane[envelope] = None
        self.peak = max(self.peak, len(self._data) + len(self._control))

    def put_first(self, envelope: Envelope) -> None:
        """Queue a message ahead of the others of its lane, whatever the bound."""
        lane = self._control if envelope.control else self._data
        lane[envelope] = None
        lane.move_to_end(envelope, last=False)

    def letters(self) -> list[Envelope]:
        """Return what is queued."""
        return [*self._control, *self._data, *self._waiting]

    def head(self) -> Envelope | None:
        """Return the message that `take` would take."""
        return next(iter(self._control or self._data), None)

    def take(self) -> Envelope | None:
        """Take the next message: control first, each lane in order; moves up who waits for room."""
        lane = self._control or self._data
        if not lane:
            return None
        taken, _ = lane.popitem(last=False)
        self._refill()
        return taken

    def _refill(self) -> None:
        while self._waiting:
            envelope = next(iter(self._waiting))
            lane = self._control if envelope.control else self._data
            if len(lane) >= self.bound:
                return
            del self._waiting[envelope]
            lane[envelope] = None

    def withdraw(self, envelope: Envelope) -> None:
        """Take a message back that nobody has begun."""
        for lane in (self._waiting, self._control, self._data):
            if envelope in lane:
                del lane[envelope]
                self._refill()
                return

    def clear(self) -> list[Envelope]:
        """Empty the mailbox for good and return what was in it, in order."""
        left = self.letters()
        self._control.clear()
        self._data.clear()
        self._waiting.clear()
        return left
