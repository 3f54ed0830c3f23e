"""The auditor: has the cache audited at a steady pace, and takes what is found for a crash."""

from __future__ import annotations

from typing import Any

import trio

from ...actors import Coordinator, Message, Ref, handles
from ...errors import ActorStopped, BanyanError, Closed, IntegrityError
from ...telemetry.logs import log_audit_found
from .. import messages as m
from .cache_actors import CacheActors


class NextSlice(Message[None], frozen=True):
    """It is time for the next slice."""


class Auditor(Coordinator):
    """Ask the cache actor for `rate` slices a second; each is an operation of its own.

    What one finds is a crash of the actor concerned: its supervisor decides what comes next.
    """

    def __init__(self, cache: Ref[Any], actors: CacheActors, rate: float) -> None:
        super().__init__()
        self._cache = cache
        parts = (part.ref for part in actors.components)
        audited = (cache, actors.tree, *parts, *actors.tiers.values())
        self._audited = {ref.path: ref for ref in audited}
        self._pause = 1 / rate

    def on_start(self) -> None:
        """Begin."""
        self.start(self._keep_pace)

    async def _keep_pace(self) -> None:
        while True:
            await trio.sleep(self._pause)
            try:
                await self.ref.ask(NextSlice())
            except (ActorStopped, Closed):
                raise
            except BanyanError:
                pass  # it was lost, or the cache has crashed, as its supervisor knows: the next one comes

    @handles(NextSlice)
    async def next_slice(self, msg: NextSlice) -> None:
        """Have a slice done; log what it found, and condemn whose state is wrong."""
        for finding in await self._cache.ask(m.Audit()):
            log_audit_found(finding.actor, finding.law, finding.what)
            error = IntegrityError(f"the audit found: {finding.law}: {finding.what}")
            self._audited[finding.actor].condemn(error)
