"""The gate of an actor: one integer that says whether a step may run now, and if not, why.

Zero means free: started, nothing queued, nothing running, direct dispatch, nobody watching. So the hot
path tests one integer, and everything else is decided off it.
"""

from __future__ import annotations

BUSY = 1
"""A step or operation is running."""
QUEUED = 2
"""The mailbox holds something that must run first."""
DEFERRED = 4
"""The handler that is running keeps its reply for later."""
PARKED = 8
"""The operation that is running waits for an answer; the actor's own task will finish it."""
DOWN = 16
"""Not started yet, crashed or being restarted: messages wait in the mailbox."""
STOPPED = 32
"""Stopped for good: messages are refused."""
FORCED = 64
"""Mailbox dispatch: every message goes through the mailbox and the actor's own task."""
WATCHED = 128
"""A journal, a fault plan or an observer of hops wants to see every message."""

BLOCKED = BUSY | DOWN | STOPPED | FORCED
"""Any of these keeps a message from running in its sender's stack."""

_NAMES = {
    BUSY: "busy",
    QUEUED: "queued",
    PARKED: "parked",
    DOWN: "down",
    STOPPED: "stopped",
}


def describe(gate: int) -> str:
    """Name what keeps a gate shut, for people; `free` where nothing does."""
    return "+".join(name for bit, name in _NAMES.items() if gate & bit) or "free"
