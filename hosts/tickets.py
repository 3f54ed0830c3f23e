"""Tickets: how a caller in one thread knows of what it has asked the cache's thread for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    runtime_checkable,
)

import trio

from ..errors import ConfigError, DeadlineExceeded, TicketCancelled
from ..runtime.arguments import require_seconds

if TYPE_CHECKING:
    from .bridge import Bridge

T = TypeVar("T")

Verb = Callable[[], Coroutine[Any, Any, Any]]
"""What a call does, in the cache's thread."""


@runtime_checkable
class Held(Protocol):
    """What a call may be of, or may take: a lease, of which one call at a time is under way."""

    turn: threading.Lock
    """Held while a call is under way; only ever tried, so that nobody can wait for it in vain."""

    def give_back(self) -> None:
        """Have it given back, without waiting."""
        ...


class Call:
    """One verb for the cache's thread, and where its outcome goes."""

    __slots__ = (
        "context",
        "coroutine",
        "index",
        "of",
        "scope",
        "ticket",
        "verb",
        "waits_for",
    )

    def __init__(
        self,
        ticket: Ticket[Any],
        verb: Verb,
        index: int = 0,
        of: Held | None = None,
        context: Context | None = None,
    ) -> None:
        self.ticket = ticket
        self.verb = verb
        self.index = index
        self.of = of
        self.context = context
        """The caller's context variables, where the verb begins a trace."""
        self.scope: trio.CancelScope | None = None
        """What cancels it, once it waits; then the next two are set."""
        self.coroutine: Coroutine[Any, Any, Any]
        self.waits_for: Any

    def waits_in(self, scope: trio.CancelScope) -> None:
        """Note that the call must wait, and what ends that."""
        self.scope = scope
        if self.ticket.cancelled:
            scope.cancel()

    def settle(self, outcome: object) -> None:
        """Give what the verb returned, or the error it raised, to the ticket."""
        if self.of is not None:
            self.of.turn.release()
        self.ticket.settle_call(self.index, outcome)


class Ticket(Generic[T]):
    """The answer to come of a call that was submitted. Any thread may use it.

    A ticket that is dropped lets its call run on; a lease that nobody took is given back then.
    """

    __slots__ = (
        "__weakref__",
        "_batch",
        "_bridge",
        "_claimed",
        "_firm",
        "_lock",
        "_outcomes",
        "_patience",
        "_waits_for",
        "calls",
        "cancelled",
    )

    def __init__(
        self,
        bridge: Bridge,
        count: int = 1,
        *,
        batch: bool = False,
        firm: bool = False,
        timeout: float | None = None,
    ) -> None:
        self._patience = patience_of("timeout", timeout)
        self._bridge = bridge
        self._batch = batch
        self._firm = firm
        self._outcomes: list[Any] = [None] * count
        self._waits_for = count
        self._claimed = False
        self._lock = threading.Lock()
        self._lock.acquire()
        self.calls: list[Call] = []
        self.cancelled = False

    def __repr__(self) -> str:
        state = "ready" if self._waits_for == 0 else f"{self._waits_for} under way"
        return f"<Ticket [{'cancelled, ' if self.cancelled else ''}{state}]>"

    def poll(self) -> bool:
        """Return whether the answer is there. Never waits."""
        if self._waits_for == 0:
            return True
        self._bridge.require_process()
        return False

    def result(self, timeout: float | None = None) -> T:
        """Return the answer or raise the error, waiting up to `timeout` seconds (None: without end).

        Raises TimeoutError where it is not there by then, and the call goes on; TicketCancelled.
        A batch's answer is a list in the order of its items: each what its call returned, or the
        error that it raised.
        """
        if self._waits_for and not self._wait(patience_of("timeout", timeout)):
            raise TimeoutError("the ticket is not ready yet: ask again later, or cancel it")
        self._claimed = True
        if self.cancelled:
            self._give_back()
        if self._batch:
            return cast("T", self._outcomes)
        outcome = self._outcomes[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return cast("T", outcome)

    def cancel(self) -> None:
        """Give up the call, whatever stage it is in. Never waits.

        What has not begun or waits takes nothing; a lease that was acquired, and that `result` has
        not handed out, is released. Then `result` raises TicketCancelled. What is done and took no
        lease stays done: `result` tells. The ticket is ready when all this is over. A release is not
        cancelled.
        """
        if not self._claimed:
            self._cancel()

    def _cancel(self) -> None:
        if self._firm:
            return
        self.cancelled = True
        if self._waits_for:
            self._bridge.send([Call(Ticket(self._bridge), self._cancel_calls)])
        else:
            self._give_back()

    def _give_back(self) -> None:
        """Give back all leases that the call took. May be done twice: by who cancels, and who answers."""
        for index, outcome in enumerate(self._outcomes):
            taken = cast("list[object]", outcome) if isinstance(outcome, list) else [outcome]
            leases = [each for each in taken if isinstance(each, Held)]
            if leases:
                self._outcomes[index] = TicketCancelled()
            for lease in leases:
                lease.give_back()

    def wait_out(self) -> T:
        """Wait as long as the call's `timeout` says, and give it up then; so does an interrupt.

        Raises DeadlineExceeded when the time is over: then it is as if nothing had been asked.
        """
        try:
            if self._wait(self._patience):
                return self.result()
            self._cancel()
            self._wait(None)
            self._say_late()
            return self.result()
        except BaseException as error:
            if error is not self._outcomes[0]:
                # Ctrl-C, or whatever a signal's handler raises: nothing may be left behind.
                self._claimed = False
                self._cancel()
                self._wait(None)
            raise

    def _say_late(self) -> None:
        for index, outcome in enumerate(self._outcomes):
            if isinstance(outcome, TicketCancelled):
                self._outcomes[index] = DeadlineExceeded(
                    f"there was no answer within the timeout of {self._patience:g} s"
                )

    def _wait(self, seconds: float | None) -> bool:
        """Block this thread until the ticket is ready; return whether it is."""
        if self._waits_for:
            self._bridge.require_other_thread()
            self._bridge.require_process()
            if self._lock.acquire(timeout=-1 if seconds is None else seconds):
                self._lock.release()  # for others that wait
        return self._waits_for == 0

    # -- in the cache's thread --------------------------------------------------------------------

    async def _cancel_calls(self) -> None:
        for call in self.calls:
            if call.scope is not None:
                call.scope.cancel()

    def settle_call(self, index: int, outcome: object) -> None:
        """Take the outcome of one call."""
        self._outcomes[index] = outcome
        self._waits_for -= 1
        if self._waits_for:
            return
        self.calls.clear()
        # Looked at after the ticket is ready: who cancels looks the other way round.
        if self.cancelled:
            self._give_back()
        self._lock.release()


def patience_of(name: str, seconds: float | None) -> float | None:
    """Return how long to wait as locks take it, None for without end. Raises ConfigError."""
    if seconds is None:
        return None
    patience = require_seconds(name, seconds)
    return None if patience > threading.TIMEOUT_MAX else max(patience, 0.0)


P = ParamSpec("P")


class Asker(Protocol):
    """What has verbs that are asked for in the cache's thread."""

    bridge: Bridge


A = TypeVar("A", bound=Asker)


def blocking(begin: Callable[Concatenate[A, P], Ticket[T]]) -> Callable[Concatenate[A, P], T]:
    """Make a verb that waits for its answer of one that answers a ticket; `submit` finds the latter."""

    @wraps(begin)
    def verb(asker: A, *args: P.args, **kwargs: P.kwargs) -> T:
        asker.bridge.require_other_thread()
        return begin(asker, *args, **kwargs).wait_out()

    _BEGIN[verb] = begin
    return cast("Callable[Concatenate[A, P], T]", verb)


_BEGIN: dict[Callable[..., Any], Callable[..., Ticket[Any]]] = {}


def submit(verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Ticket[T]:
    """Begin a blocking verb without waiting for it. Raises ConfigError for what is none."""
    begin = _BEGIN.get(getattr(verb, "__func__", verb))
    asker = getattr(verb, "__self__", None)
    if begin is None or asker is None:
        raise ConfigError(
            f"submit takes a method of a cache or a lease, as in submit(cache.acquire, tokens), "
            f"and what it is called with; not {verb!r}"
        )
    if kwargs.get("timeout") is not None:
        raise ConfigError("a ticket has no timeout: poll it, and cancel it when it takes too long")
    return begin(asker, *args, **kwargs)
