"""Every error that banyankv raises.

One base class, so that an embedder can catch all of them. A handler *refuses* by one of the errors that
its actor's class names in `refusals`: the error is its answer, and its state is whole. Any other exception
out of a handler is a crash of that actor and reaches its asker boxed as `ActorCrashed`.
"""

from __future__ import annotations


class BanyanError(Exception):
    """Base class of all errors that banyankv raises on purpose."""


# -- what a cache answers ---------------------------------------------------------------------------


class ConfigError(BanyanError):
    """A specification, option or argument cannot be used; the message says what to change."""


class Closed(BanyanError):
    """The cache (or actor system) is closed; `cause` is the error that closed it, if one did."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class NoCapacity(BanyanError):
    """A pool cannot give the pages that were asked for, now or within the deadline.

    `pool` names the component; the others count its pages. `needed` are asked for, `free` are free,
    `evictable` could be evicted, `pending` come free by themselves when copies end, `locked` are
    held by live leases, so that eviction may not take them.
    """

    def __init__(
        self,
        pool: str,
        needed: int,
        free: int,
        locked: int,
        *,
        evictable: int = 0,
        pending: int = 0,
    ) -> None:
        advice = "release or shorten requests, or give the pool more pages"
        if needed <= free + evictable + pending:
            advice = "the room is coming: wait for it with a longer deadline"
        super().__init__(
            f"pool {pool!r}: {needed} pages needed, {free} free, {evictable} evictable, "
            f"{pending} being copied, {locked} held by live leases; {advice}"
        )
        self.pool = pool
        self.needed = needed
        self.free = free
        self.locked = locked
        self.evictable = evictable
        self.pending = pending


class DeadlineExceeded(BanyanError):
    """The deadline passed before the answer was there; what had been taken was given back."""


class StaleLease(BanyanError):
    """The lease was released (or belongs to another cache) and cannot be used any more."""

    def __init__(self, lease: int) -> None:
        super().__init__(f"lease {lease} was released; acquire again")


class TierUnavailable(BanyanError):
    """A tier or store failed or its breaker is open; the cache serves on without it."""


class IntegrityError(BanyanError):
    """Bytes do not match their checksum, header or fingerprint, or an invariant is broken."""


class WrongHost(BanyanError):
    """The cache was called from where it cannot answer: the message says where it lives.

    From another thread or event loop, from outside a running one, or in a process that was forked.
    Nothing has changed.
    """


class LeaseInUse(BanyanError):
    """A call of this lease is under way, and a lease takes one at a time; nothing has changed."""

    def __init__(self) -> None:
        super().__init__(
            "a call of this lease is under way, perhaps in another thread: wait until its ticket is "
            "ready, or cancel it; release() ends it"
        )


class TicketCancelled(BanyanError):
    """The ticket was cancelled, and what its call had taken was given back."""

    def __init__(self) -> None:
        super().__init__("this ticket was cancelled; submit the call again if it is still wanted")


# -- what the actor kernel answers ------------------------------------------------------------------


class WouldWait(BanyanError):
    """The call cannot be answered in the caller's stack now; `ask` would wait."""


class Reentry(BanyanError):
    """An actor was called while it is handling a message of the same call chain.

    The message names the cycle, e.g. `/cache -> /cache/tree -> /cache`.
    """


class MailboxFull(BanyanError):
    """The mailbox is at its bound, and the message was told: only an ask may wait for room in it."""


class ActorStopped(BanyanError):
    """The actor has stopped for good, or was never started."""


class ActorCrashed(BanyanError):
    """A handler raised an unexpected error: the actor's path, the error and its traceback.

    `path` is the path of the actor that crashed first, `cause_type` the qualified name of the
    original exception and `traceback` its formatted traceback; `__cause__` is the exception itself
    where it was raised in this process.
    """

    def __init__(self, path: str, cause_type: str, message: str, traceback: str) -> None:
        super().__init__(f"{path} crashed: {cause_type}: {message}")
        self.path = path
        self.cause_type = cause_type
        self.traceback = traceback
