"""Dead letters: every message and answer that nobody got, with a reason from a closed list."""

from __future__ import annotations

import enum
import time
from collections import deque
from typing import Any

import msgspec

from .observer import Fact, Observer, Trace


class Reason(enum.StrEnum):
    """Why a message or answer reached nobody."""

    STOPPED = "stopped"
    MAILBOX_FULL = "mailbox_full"
    DEADLINE = "deadline"
    CRASHED = "crashed"
    REFUSED = "refused"
    """A told message was refused by its handler: there was nobody to raise the refusal at."""
    NO_HANDLER = "no_handler"
    NO_REPLY = "no_reply"
    ASKER_GONE = "asker_gone"
    INJECTED_DROP = "injected_drop"


class DeadLetter(Fact, frozen=True, kw_only=True):
    """One lost message, as the observer hears of it; `error` tells more where there is more."""

    reason: Reason
    receiver: str
    message: str


class DeadLetterStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages were lost, by reason."""

    total: int
    by_reason: tuple[tuple[str, int], ...]


class DeadLetters:
    """Counts all dead letters and keeps the last few."""

    def __init__(self, observer: Observer | None, keep: int = 256) -> None:
        self._observer = observer
        self._counts = dict.fromkeys(Reason, 0)
        self.last: deque[DeadLetter] = deque(maxlen=keep)

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {reason.value}" for reason, n in self._counts.items() if n)
        return f"<DeadLetters {counts or 'none'}>"

    def __getitem__(self, reason: Reason) -> int:
        return self._counts[reason]

    def add(
        self, reason: Reason, receiver: str, msg: Any, trace: Trace | None = None, error: str = ""
    ) -> None:
        """Count and keep one."""
        now = time.time_ns()
        letter = DeadLetter(
            started=now,
            ended=now,
            trace=trace,
            error=error,
            reason=reason,
            receiver=receiver,
            message=type(msg).__name__,
        )
        self._counts[reason] += 1
        self.last.append(letter)
        if self._observer is not None:
            self._observer.fact(letter)

    def statistics(self) -> DeadLetterStatistics:
        """Tell the counts."""
        return DeadLetterStatistics(
            total=sum(self._counts.values()),
            by_reason=tuple((reason.value, n) for reason, n in self._counts.items() if n),
        )
