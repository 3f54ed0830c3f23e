"""Replay: deliver again what came from outside, when it came, and see the same journal grow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from ..errors import BanyanError, ConfigError, IntegrityError
from . import dispatch
from .journal import Journal, Kind, Record, read_journal, type_name
from .ref import Ref
from .reply import ReplyToken

if TYPE_CHECKING:
    from .system import ActorSystem

_MESSAGES = (Kind.ASK, Kind.CALL, Kind.TELL, Kind.CONTROL)


async def replay(journal: bytes, system: ActorSystem, *, patience: float = 3600.0) -> None:
    """Deliver a journal's external messages to a system that keeps a journal of its own.

    The system must have been given the same actors, seed, faults and dispatch; child tasks run again.
    Under a MockClock and the seeded scheduler its journal is then equal to the first, byte for byte,
    if no message came from outside at the very instant at which actors were at work for another, and
    the timers of child tasks are whole microseconds, which are what the journal's times are.
    Raises IntegrityError when the journal does not grow as the first did within `patience` seconds
    (of the trio clock).
    """
    if system.journal is None:
        raise ConfigError("replay needs a system with a journal: open_system(journal=Journal())")
    player = _Player(system, system.journal)
    await player.play(read_journal(journal), patience)


class _Player:
    def __init__(self, system: ActorSystem, journal: Journal) -> None:
        self._system = system
        self._journal = journal
        self._open: dict[int, ReplyToken] = {}

    async def play(self, records: Sequence[Record], patience: float) -> None:
        with trio.move_on_after(patience) as scope:
            for record in records:
                external = record.sender == "" and (
                    record.kind in _MESSAGES
                    or (record.kind is Kind.LEFT and record.of in self._open)
                )
                if not external:
                    continue
                # what went before must have happened again, or the orders would differ
                while self._journal.records < record.seq - 1:
                    await self._journal.grown()
                await trio.sleep_until(self._time(record.at))
                self._deliver(record)
            while self._journal.records < len(records):
                await self._journal.grown()
        if scope.cancelled_caught or self._journal.records != len(records):
            raise IntegrityError(
                f"the replay has {self._journal.records} records where the journal has "
                f"{len(records)}: the system is not the one that was recorded"
            )

    def _time(self, micros: int) -> float:
        return self._journal.opened + micros / 1e6

    def _deliver(self, record: Record) -> None:
        if record.kind is Kind.LEFT:
            self._open.pop(record.of).leave()
            return
        ref = self._system.find(record.receiver)
        msg = _message(ref, record)
        deadline = math.inf if record.deadline < 0 else self._time(record.deadline)
        try:
            if record.kind is Kind.ASK:
                answer = dispatch.begin(ref, msg, deadline, record.trace)
                if type(answer) is ReplyToken:
                    self._open[record.seq] = answer
            elif record.kind is Kind.CALL:
                ref.call(msg, record.trace)
            else:
                ref.tell(msg, control=record.kind is Kind.CONTROL, trace=record.trace)
        except BanyanError:
            # it was raised at the first asker too: the journal has it, and is compared
            return


def _message(ref: Ref[Any], record: Record) -> Any:
    for kind in ref.kinds:
        if type_name(kind) == record.type:
            msg: Any = msgspec.convert(record.body, kind, builtin_types=(bytes,))
            return msg
    raise ConfigError(f"{ref.path} handles no {record.type}, which the journal has for it")
