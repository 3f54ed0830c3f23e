"""One round of an audit over the live leases: what each held when the round began."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .inspection import LeaseView, lease_view
from .leases import LeaseRecord

_LEASES, _TOKENS = 16, 1 << 17
"""What one slice looks at, at most: leases, and their tokens, but for one lease that has more."""


class LeaseAudit:
    """One round. Who is about to change a lease says so (`before`): what it was is noted first."""

    def __init__(self, leases: Mapping[int, LeaseRecord]) -> None:
        self._leases = leases
        self._ids = tuple(leases)  # in the order in which they were made
        self._at = 0
        self._cursor = 0
        self._last = self._ids[-1] if self._ids else 0
        self._noted: dict[int, LeaseView] = {}

    @property
    def over(self) -> bool:
        """Whether all have been looked at."""
        return self._at == len(self._ids)

    def before(self, record: LeaseRecord) -> None:
        """Note a lease that is about to change, or to end, unless it has been looked at."""
        id = record.id
        if self._cursor < id <= self._last and id not in self._noted:
            self._noted[id] = lease_view(record)

    def some(self) -> Iterator[LeaseView]:
        """Go on to the next leases."""
        tokens, until = 0, min(self._at + _LEASES, len(self._ids))
        while self._at < until and tokens < _TOKENS:
            id = self._cursor = self._ids[self._at]
            self._at += 1
            view = self._noted.pop(id, None) or lease_view(self._leases[id])
            tokens += view.extent
            yield view
