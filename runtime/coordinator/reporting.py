"""Reporting facts of the cache actor, for sampled requests only."""

from __future__ import annotations

import time
from typing import Any

from ...actors import Actor, Fact, Trace
from ...errors import ActorCrashed
from ...spec import TOKEN_BYTES
from ..messages import Acquire, Acquired
from .facts import AcquireDone, RecoveryDone


class Reporter:
    """Hand facts to the system's observer. Nothing is built for a request that is not sampled."""

    __slots__ = ("_actor",)

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def begin(self) -> int:
        """Return when the work begins (ns), or 0 where the request being handled is not sampled."""
        return time.time_ns() if self._actor.trace is not None else 0

    def now(self) -> int:
        """Return the time (ns) for work that may turn out to be sampled."""
        return time.time_ns()

    def done(
        self, kind: type[Fact], started: int, trace: Trace | None = None, **fields: Any
    ) -> None:
        """Report a fact of the message being handled, or of `trace`."""
        observer = self._actor.system.observer
        of = trace or self._actor.trace
        if observer is not None and of is not None:
            observer.fact(kind(started=started, ended=time.time_ns(), trace=of, **fields))

    def recovered(
        self, crash: ActorCrashed, leases: int, forgotten: tuple[int, int], started: int
    ) -> None:
        """Report that the cache has been made anew, whether any request is sampled or not."""
        observer = self._actor.system.observer
        if observer is not None:
            observer.fact(
                RecoveryDone(
                    started=started,
                    ended=time.time_ns(),
                    error=str(crash),
                    actor=crash.path,
                    leases=leases,
                    l1_tokens=forgotten[0],
                    l2_tokens=forgotten[1],
                )
            )

    def acquired(self, msg: Acquire, acquired: Acquired, trace: Trace, started: int) -> None:
        """Report that an acquire was answered."""
        self.done(
            AcquireDone,
            started,
            trace,
            tokens=len(msg.tokens) // TOKEN_BYTES,
            length=acquired.length,
            l1_tokens=acquired.hit.l1,
            l2_tokens=acquired.hit.l2,
            l3_tokens=acquired.hit.l3,
        )
