"""One request as telemetry sees it: begun by an acquire, ended by the release."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..telemetry import Outcome, RequestTrace, Telemetry

if TYPE_CHECKING:
    from ..actors import Trace
    from .messages import HitTokens


class RequestTimer:
    """Times one acquire and reports how the whole request went, exactly once."""

    __slots__ = ("_acquire_ns", "_began", "_session", "_telemetry", "_tokens", "_traced", "trace")

    def __init__(self, telemetry: Telemetry, session: str | None, tokens: int) -> None:
        self._telemetry = telemetry
        self._session = session
        self._tokens = tokens
        self._traced: RequestTrace | None = telemetry.begin(session, tokens)
        self.trace: Trace | None = None if self._traced is None else self._traced.trace
        """The trace that its messages carry, None where it is not sampled."""
        self._began = time.perf_counter_ns()
        self._acquire_ns = 0

    def leased(self) -> None:
        """Note that the acquire was answered."""
        self._acquire_ns = time.perf_counter_ns() - self._began

    def failed(self, error: BaseException) -> None:
        """Report a request that got no lease."""
        cancelled = not isinstance(error, Exception)
        self._telemetry.finish(
            self._traced,
            Outcome(
                tokens=self._tokens,
                session=self._session,
                acquire_ns=time.perf_counter_ns() - self._began,
                result="cancelled" if cancelled else "failed",
                error="" if cancelled else f"{type(error).__name__}: {error}",
            ),
        )

    def released(self, hit: HitTokens, extent: int, published: int) -> None:
        """Report a request that is over."""
        telemetry = self._telemetry
        if not telemetry.reads(self._traced):
            telemetry.record(self._acquire_ns)
            return
        telemetry.finish(
            self._traced,
            Outcome(
                tokens=self._tokens,
                session=self._session,
                l1=hit.l1,
                l2=hit.l2,
                l3=hit.l3,
                extent=extent,
                published=published,
                acquire_ns=self._acquire_ns,
            ),
        )
