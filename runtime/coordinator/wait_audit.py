"""One round of an audit over what waits: each has something that will let it go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import msgspec

from ...components.audit_messages import Faults
from .capacity_queue import CapacityQueue
from .due import Due
from .transfers import Transfers

_FLIGHTS = 256
"""Requests that one slice looks at."""


class Flying(Protocol):
    """A request that waits."""

    def is_awaited(self) -> bool:
        """Say whether something will let it go on."""
        ...


class Background(msgspec.Struct):
    """Whether the cache actor has told itself to start what is due, and how often it has heard that."""

    woken: bool = False
    heard: int = 0


class Waits(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What waits in a cache, and for what."""

    flights: Mapping[Any, Flying]
    transfers: Transfers
    queue: CapacityQueue
    due: Due
    background: Background


class WaitAudit:
    """One round. What is to come by a message is looked at twice, in its first and its last slice.

    Every message that was sent before the first has been heard at the last, so that what was to come
    then and has not come is lost.
    """

    def __init__(self, waits: Waits, working: frozenset[int]) -> None:
        self._waits = waits
        self._idle = self._idle_transfers(working)
        self._woken, self._heard = waits.background.woken, waits.background.heard

    def _idle_transfers(self, working: frozenset[int]) -> set[int]:
        """Return the transfers in flight on which nobody works."""
        running = self._waits.transfers.running
        return {id for id, transfer in running.items() if id not in working and transfer.at_work}

    def requests(self) -> Iterator[Faults]:
        """Look at the requests that wait, some at a time, as they are then."""
        flights = self._waits.flights
        tokens = tuple(flights)
        for first in range(0, len(tokens), _FLIGHTS):
            there = (flights.get(token) for token in tokens[first : first + _FLIGHTS])
            yield tuple(
                ("W1", f"a request waits and nothing lets it go on: {type(flight).__name__}")
                for flight in there
                if flight is not None and not flight.is_awaited()
            )

    def end(self, working: frozenset[int]) -> Faults:
        """Look for what was to come at the beginning of the round, and has not."""
        waits, faults = self._waits, list[tuple[str, str]]()
        for transfer in sorted(self._idle & self._idle_transfers(working)):
            faults.append(("W2", f"nobody works on transfer {transfer}"))
        background = waits.background
        if self._woken and background.woken and background.heard == self._heard:
            faults.append(("W3", "backups and saves are due, and the word to start them is lost"))
        if not waits.queue.is_watched():
            faults.append(("W4", "the deadlines of who waits for room are watched by nobody"))
        if waits.due.postponed and not waits.transfers.running:
            faults.append(("W5", "backups wait for the end of a transfer, and there is none"))
        return tuple(faults)
