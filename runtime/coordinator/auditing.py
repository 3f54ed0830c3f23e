"""Auditing: `check()` in slices, while requests run. What a slice does is in `audit_round`."""

from __future__ import annotations

from .. import messages as m
from .audit_round import Round
from .cache_actors import CacheActors
from .counters import AuditCounts
from .lease_book import LiveLeases
from .prefetching import Prefetching
from .wait_audit import Waits


class Auditing:
    """Audit a cache, round after round; used inside the cache actor's operations only."""

    def __init__(
        self,
        actors: CacheActors,
        leases: LiveLeases,
        prefetching: Prefetching,
        waits: Waits,
        counts: AuditCounts,
    ) -> None:
        self._actors = actors
        self._leases = leases
        self._prefetching = prefetching
        self._waits = waits
        self._counts = counts
        self._round: Round | None = None
        leases.audit = None  # of a life that is over

    async def slice(self, cache: str) -> tuple[m.Finding, ...]:
        """Do a slice, the first of a new round where the last is over; return what is wrong.

        `cache` is the path of the actor that answers for leases and for who waits.
        """
        counts, audit = self._counts, self._round
        if audit is None:
            counts.begun += 1
            audit = self._round = Round(
                counts.begun,
                self._actors,
                live=self._leases,
                prefetching=self._prefetching,
                waits=self._waits,
                cache=cache,
            )
        step = next(audit.steps, None)
        if step is None:
            counts.rounds += 1
            self._round = None
            return ()
        await step
        counts.slices += 1
        found, audit.findings = tuple(audit.findings), []
        counts.findings += len(found)
        return found
