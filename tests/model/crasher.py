"""Crashes on purpose: an actor fails at once, or at its n-th message from now on.

before   the message is not looked at
middle   a leaf: at a line of its handler; a coordinator: at an ask of an operation or child task
after    a leaf: its handler is over, who asked hears nothing; a coordinator: in the epilogue
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import trio
from banyankv.actors import Actor, Coordinator, InjectedCrash, Ref
from banyankv.actors.cell import Cell
from banyankv.actors.gate import BUSY
from banyankv.runtime import messages as m

CACHE = "/cache"
_READS = (m.Inspect, m.Stats, m.Peek, m.Explain, m.Settle, m.Audit)
"""What the judge asks for: an operation of these is never crashed on purpose."""

_MOST = 3
_PERIOD = 10.5
"""No more crashes than so many in so many seconds: one more, and the supervisor might give up."""


class Point(NamedTuple):
    """Where a crash is to be: at the `nth` message to `path`, or at once (0), at which `moment`.

    `step` says which line, or which ask, where that is in the middle.
    """

    path: str
    nth: int
    moment: str = "before"
    step: int = 1


class Crasher:
    """Knows which crashes are to come and which have been, and whose operation each of them cut off."""

    def __init__(self) -> None:
        self.fired: list[str] = []
        """The paths of the actors that have crashed so far."""
        self.victims: list[Any] = []
        """Messages that the cache actor had in hand at a crash: their askers hear of it."""
        self.news = trio.Event()
        """Set at the next crash."""
        self._times: list[float] = []
        self._armed: list[Point] = []
        self._asks: dict[str, int] = {}
        """Asks after which a coordinator fails."""
        self._last_words: set[str] = set()
        """Coordinators that fail in their next epilogue."""
        self._in_hand: Any = None
        self._in_epilogue = False
        self._cache: Cell | None = None

    @property
    def armed(self) -> bool:
        """Whether some crash is still to come."""
        return bool(self._armed or self._asks or self._last_words)

    def arm(self, *points: Point) -> None:
        """Have actors fail at messages to come."""
        self._armed += points

    def disarm(self) -> None:
        """Let nothing fail that has not failed yet."""
        self._armed.clear()
        self._asks.clear()
        self._last_words.clear()

    def now(self, ref: Ref[Any]) -> bool:
        """Let an actor fail between two messages; whether it could, and may."""
        if ref.actor is None or ref.crash is not None or not self._may():
            return False
        ref.crashed(self._crash(ref.path))
        return True

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """See what all actors handle and ask, as long as the block lasts."""
        bind, ask = Cell.bind, Ref.ask

        def bound(cell: Cell, actor: Actor, ref: Ref[Any]) -> None:
            bind(cell, actor, ref)
            self._watch(cell, actor)

        async def asked(ref: Ref[Any], msg: Any, **how: Any) -> Any:
            op = ref.system.op
            sender = ref.system.child_of.get() if op is None else op.path
            self._asking(sender)
            answer = await ask(ref, msg, **how)
            self._asking(sender)
            return answer

        with mock.patch.object(Cell, "bind", bound), mock.patch.object(Ref, "ask", asked):
            yield

    # -- where crashes are -----------------------------------------------------------------------------

    def _watch(self, cell: Cell, actor: Actor) -> None:
        if cell.path == CACHE:
            self._cache, self._in_epilogue = cell, False
        wrap = self._operation if isinstance(actor, Coordinator) else self._step
        cell.handlers = {kind: wrap(cell, actor, run) for kind, run in cell.handlers.items()}
        if isinstance(actor, Coordinator):
            actor.epilogue = self._epilogue(cell, actor.epilogue)  # type: ignore[method-assign]

    def _operation(
        self, cell: Cell, actor: Any, begin: Callable[[Any], Any]
    ) -> Callable[[Any], Any]:
        def begun(msg: Any) -> Any:
            if cell is self._cache:
                self._in_hand = msg
            point = self._due(cell.path)
            if point is not None and point.moment == "before":
                raise self._crash(cell.path)
            if point is not None and point.moment == "middle":
                self._asks[cell.path] = point.step
            elif point is not None:
                self._last_words.add(cell.path)
            if cell.path in self._last_words and not self._reading():
                actor.epilogue_due = True
            return begin(msg)

        return begun

    def _epilogue(
        self, cell: Cell, inner: Callable[[], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]]:
        async def epilogue() -> None:
            self._in_epilogue = cell is self._cache
            try:
                await inner()
                if cell.path in self._last_words and self._may() and not self._reading():
                    self._last_words.discard(cell.path)
                    raise self._crash(cell.path)
            finally:
                self._in_epilogue = False

        return epilogue

    def _step(self, cell: Cell, _: Actor, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def handle(msg: Any) -> Any:
            point = self._due(cell.path)
            if point is None:
                return run(msg)
            if point.moment == "before":
                raise self._crash(cell.path)
            if point.moment == "middle":
                with self._failing_at(point.step, cell.path):
                    run(msg)
            else:
                run(msg)
            raise self._crash(cell.path)

        return handle

    @contextmanager
    def _failing_at(self, lines: int, path: str) -> Iterator[None]:
        """Fail at a line of what is called; a handler of fewer lines is over before."""
        left, before = lines, sys.gettrace()

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            if "/components/" not in (name := frame.f_code.co_filename) and "/tiers/" not in name:
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    sys.settrace(before)
                    raise self._crash(path)
            return trace

        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def _asking(self, sender: str) -> None:
        left = self._asks.get(sender)
        if left is None or self._reading():
            return
        if left > 1:
            self._asks[sender] = left - 1
        elif self._may():
            del self._asks[sender]
            raise self._crash(sender)

    def _due(self, path: str) -> Point | None:
        """Count a message to an actor; return the point that it has reached."""
        if not self._armed or self._reading():
            return None
        found: Point | None = None
        for point in [point for point in self._armed if point.path == path]:
            self._armed.remove(point)
            if point.nth > 1 or found is not None or not self._may():
                self._armed.append(point._replace(nth=max(1, point.nth - 1)))
            else:
                found = point
        return found

    # -- what they are -----------------------------------------------------------------------------------

    def _operating(self) -> Any:
        """The message that the cache actor has in hand; None for none, or where that is over."""
        if self._cache is None or not self._cache.gate & BUSY or self._in_epilogue:
            return None
        return self._in_hand

    def _reading(self) -> bool:
        busy = self._cache is not None and self._cache.gate & BUSY
        return bool(busy) and isinstance(self._in_hand, _READS)

    def _may(self) -> bool:
        now = trio.current_time()
        return sum(time > now - _PERIOD for time in self._times) < _MOST

    def _crash(self, path: str) -> InjectedCrash:
        self.fired.append(path)
        self._times.append(trio.current_time())
        victim = self._operating()
        if victim is not None:
            self.victims.append(victim)
        self.news.set()
        return InjectedCrash(f"the history crashes {path}")
