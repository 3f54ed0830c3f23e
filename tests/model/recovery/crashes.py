"""Crash one delivery of a message: before its handler, in the middle of it, or after it.

`Watcher` stands around every handler of every actor, as the handler tables name them, so that a message
that is new is seen by itself. It counts deliveries, and how many middles each of them has; or it raises
in one of them.

    before   nothing of the handler has run (a fault plan does the same at the message's edge)
    middle   of a leaf's step: at one of the lines that it runs in its actor's room; of an operation: when
             one of the actors that it asks has done what it was asked for
    after    the handler has returned or refused, and its answer is lost
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest import mock

import banyankv
from banyankv.actors import Coordinator, Ref
from banyankv.actors.actor import Actor
from banyankv.actors.cell import Cell
from banyankv.actors.operations import beginner

ROOT = Path(banyankv.__file__).parent
HOOKS = ("abandoned", "orphaned", "epilogue", "prepare")
"""What the kernel calls beside handlers, by the name of the method."""


class Crash(Exception):
    """What a crashed handler raises."""


class Place(NamedTuple):
    """A handler: the path of its actor, and the name of its message or hook."""

    path: str
    message: str


class Aim(NamedTuple):
    """The delivery to crash, counted from 1, and when; `middle` is which of its middles, from 1."""

    place: Place
    number: int
    moment: str
    middle: int = 0


class Watcher:
    """Sees all deliveries of a cache that is opened inside `watching`; crashes those it aims at.

    `middles` has an entry for each delivery: how many it has (0 where `counting` is off), and
    `recovering` the numbers of those within a cache actor's `prepare`. An actor `along` crashes in the
    same moment as the last of the aims.
    """

    def __init__(self, *aims: Aim, counting: bool = False, along: str = "") -> None:
        self.middles: defaultdict[Place, list[int]] = defaultdict(list)
        self.recovering: defaultdict[Place, list[int]] = defaultdict(list)
        self.fired: list[Aim] = []
        self.handlers: dict[Place, None] = {}
        self._aims = {(aim.place, aim.number): aim for aim in aims}
        self._counting = counting
        self._step_now: _Delivery | None = None
        self._operations: dict[str, _Delivery] = {}
        self._rooms: dict[CodeType, str] = {}
        self._preparing = 0
        self._along = along
        self._cells: dict[str, Cell] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Stand around the handlers of all actors that are bound inside."""
        bind = Cell.bind

        def watched(cell: Cell, actor: Actor, ref: Any) -> None:
            for name in HOOKS:
                hook = getattr(actor, name, None)
                if hook is not None:
                    place = Place(cell.path, name)
                    wrap = self._operation if name in ("epilogue", "prepare") else self._step
                    setattr(actor, name, wrap(place, hook))
            bind(cell, actor, ref)
            self._cells[cell.path] = cell
            for kind, name in type(actor).handlers.items():
                place, method = Place(cell.path, kind.__name__), getattr(actor, name)
                self.handlers[place] = None
                if isinstance(actor, Coordinator):
                    cell.handlers[kind] = beginner(cell, actor, self._operation(place, method))
                else:
                    cell.handlers[kind] = self._step(place, method)

        asks = Ref.ask

        async def asked(ref: Ref[Any], *args: Any, **more: Any) -> Any:
            above = ref.system.op
            delivery = None if above is None else self._operations.get(above.path)
            answer = await asks(ref, *args, **more)
            if delivery is not None and self._operations.get(above.path) is delivery:
                self._pass(delivery)
            return answer

        with mock.patch.object(Cell, "bind", watched), mock.patch.object(Ref, "ask", asked):
            try:
                yield
            finally:
                sys.settrace(None)

    def seen(self) -> dict[Place, int]:
        """Count deliveries so far."""
        return {place: len(middles) for place, middles in self.middles.items()}

    # -- around a handler ---------------------------------------------------------------------------

    def _step(self, place: Place, method: Callable[..., Any]) -> Callable[..., Any]:
        def handle(*args: Any) -> Any:
            delivery = self._begin(place)
            outer = self._step_now
            if delivery.wanted and outer is None:
                self._step_now = delivery
                sys.settrace(self._enter)
            try:
                return method(*args)
            finally:
                if self._step_now is delivery:
                    self._step_now = None
                    sys.settrace(None)
                self._end(delivery)

        return handle

    def _operation(self, place: Place, method: Callable[..., Any]) -> Callable[..., Any]:
        async def handle(*args: Any) -> Any:
            prepares = place.message == "prepare"
            self._preparing += prepares
            try:
                delivery = self._begin(place)
                if delivery.wanted:
                    self._operations[place.path] = delivery
                try:
                    return await method(*args)
                finally:
                    self._operations.pop(place.path, None)
                    self._end(delivery)
            finally:
                self._preparing -= prepares

        return handle

    def _begin(self, place: Place) -> _Delivery:
        entries = self.middles[place]
        entries.append(0)
        if self._preparing:
            self.recovering[place].append(len(entries))
        delivery = _Delivery(place, len(entries), self._aims.get((place, len(entries))))
        if delivery.moment == "before":
            self._raise(delivery)
        delivery.wanted = self._counting or delivery.moment == "middle"
        return delivery

    def _pass(self, delivery: _Delivery) -> None:
        """Come to one more middle of a delivery."""
        self.middles[delivery.place][delivery.number - 1] += 1
        delivery.passed += 1
        if delivery.moment == "middle" and delivery.passed == delivery.aim.middle:
            self._raise(delivery)

    def _end(self, delivery: _Delivery) -> None:
        """End a handler that has answered or refused."""
        if delivery.moment == "after":
            self._raise(delivery)

    def _raise(self, delivery: _Delivery) -> None:
        self.fired.append(delivery.aim)
        if self._along and len(self.fired) == len(self._aims):
            self._cells[self._along].condemn(Crash(f"along with {delivery.place.path}"))
        raise Crash(f"{delivery.moment} {delivery.place.message}")

    # -- the lines of a step --------------------------------------------------------------------------

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        room = self._rooms.get(code)
        if room is None:
            room = self._rooms[code] = _room_of(code.co_filename)
        return self._line if room in ("components", "tiers") else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and self._step_now is not None:
            self._pass(self._step_now)
        return self._line


class _Delivery:
    """One delivery while it is handled."""

    __slots__ = ("aim", "moment", "number", "passed", "place", "wanted")

    def __init__(self, place: Place, number: int, aim: Aim | None) -> None:
        self.place = place
        self.number = number
        self.aim = aim
        self.moment = "" if aim is None else aim.moment
        self.passed = 0
        self.wanted = False


def _room_of(filename: str) -> str:
    try:
        return Path(filename).relative_to(ROOT).parts[0]
    except ValueError:
        return ""
