"""Hop totals: how often and how long each actor handled each kind of message."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from ..actors.observer import Hop


class HopTotal(msgspec.Struct):
    """What one actor did with one kind of message; times in nanoseconds."""

    count: int = 0
    refused: int = 0
    crashed: int = 0
    waited_ns: int = 0
    handled_ns: int = 0


class HopTotals:
    """Adds hops up by (receiver, message). One addition a hop, nothing kept of the hop itself."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], HopTotal] = {}

    def add(self, hop: Hop) -> None:
        """Count one hop."""
        key = (hop.receiver, hop.message)
        total = self._totals.get(key)
        if total is None:
            total = self._totals[key] = HopTotal()
        total.count += 1
        total.refused += hop.outcome == "refused"
        total.crashed += hop.outcome == "crashed"
        total.waited_ns += hop.waited_ns
        total.handled_ns += hop.handled_ns

    def view(self) -> Mapping[tuple[str, str], HopTotal]:
        """Look at the totals by (receiver path, message name), live and read-only."""
        return MappingProxyType(self._totals)
