"""The bridge: from any thread into the thread of a cache's own, and back.

    a caller's thread                       the cache's thread
    calls into the queue,  -- wake, if -->  one task takes calls in turn and steps each verb in place;
    waits on its ticket       it sleeps     the first that must wait it goes on waiting for, and a new
    ticket is ready  <--------------------  task takes the turn: so a call that needs no waiting costs
                                            no task, and one that does keeps nobody

Nothing here takes a lock that another call could hold: a signal's handler, or a finalizer, that runs
in the middle of a call may make a call itself. What threads share are a deque and flags, in an order
that loses nothing: who puts looks at the flag after it, who sleeps looks at the deque after it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from ..errors import Closed, TicketCancelled, WrongHost
from ..runtime.assembly import Assembled
from ..runtime.cache import Cache
from ..runtime.port import FORKED, YIELD_SECONDS, Port
from ..spec import ModelSpec
from ..tiers.fences import Fences, NoFences
from .tickets import Call, Ticket

_WRITE = ctypes.PyDLL(None).write
"""write(2), without letting go of the interpreter's lock as Python's own calls do.

Else the cache's thread has the lock before `submit` has returned, and a step loop waits for it.
"""


class _Now:
    """Awaited, it is over."""

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield


_NOW = _Now()


class _CallsPort(Port):
    """The port of calls: they come one after the other, with a yield before them where one is due."""

    __slots__ = ("begins",)

    def __init__(self, model: ModelSpec, assembled: Assembled) -> None:
        super().__init__(model, assembled)
        self.begins = False
        """Whether a call begins now: it is not to yield, or others that came later would overtake it."""

    def yield_if_due(self) -> Awaitable[None]:
        """See `Port`; not where a call begins."""
        if self.begins:
            self.begins = False
            return _NOW
        return super().yield_if_due()


def _close(ends: tuple[int, int]) -> None:
    for end in ends:
        os.close(end)


class Bridge:
    """The thread of one cache, and the way into it. Safe from any thread."""

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[Cache]]) -> None:
        self._opening = opening
        self._process = os.getpid()
        self._queue: deque[Call] = deque()
        self._awake = False
        """Whether the cache's thread will look at the queue without being told."""
        self._door, self._bell = ends = os.pipe()
        for end in ends:
            os.set_blocking(end, False)
        # Not before: a file that takes the number of a closed one would get what `send` writes.
        weakref.finalize(self, _close, ends).atexit = False
        self._closing = False
        self._over = False
        self._error: BaseException | None = None
        self.fences: Fences = NoFences()
        self._port: _CallsPort
        self._yield_due = 0.0
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery
        self._opened: Ticket[Cache] = Ticket(self)
        # A daemon: who never leaves the block must still be able to end the process.
        self._thread = threading.Thread(target=self._main, name="banyankv", daemon=True)

    # -- opening and closing ----------------------------------------------------------------------

    def open(self) -> Cache:
        """Start the thread, and return when the cache is open. Interrupted, it leaves nothing behind."""
        try:
            self._thread.start()
            return self._opened.result()
        except BaseException:
            self._closing = True
            if self._token is not None:  # else the thread looks before it begins
                with contextlib.suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self._scope.cancel)
            self._join()
            raise

    def close(self) -> BaseException | None:
        """Close the cache and end the thread, to the end even when interrupted; return why it failed.

        Calls that are under way raise Closed. In a forked child it does nothing: the cache is the
        parent's.
        """
        if self.forked:
            return None
        self._closing = True
        self.send([Call(Ticket(self), self._stop)])
        self._join()
        return self._error

    async def _stop(self) -> None:
        self._nursery.cancel_scope.cancel()

    def _join(self) -> None:
        interrupt: BaseException | None = None
        while self._thread.is_alive():
            try:
                self._thread.join()
            except BaseException as error:  # noqa: BLE001 - raised when the thread has ended
                interrupt = error
        if interrupt is not None:
            raise interrupt

    # -- from a caller's thread -------------------------------------------------------------------

    @property
    def forked(self) -> bool:
        """Whether this is another process than the cache's."""
        return os.getpid() != self._process

    @property
    def closed(self) -> bool:
        """Whether nothing can be asked any more, of this process's cache or of the parent's."""
        return self._closing or self._over or self.forked

    def require_process(self) -> None:
        """Raise WrongHost in a forked child."""
        if os.getpid() != self._process:
            raise WrongHost(FORKED)

    def require_open(self) -> None:
        """Raise Closed after the cache has been closed, and WrongHost in a forked child."""
        self.require_process()
        if self._closing or self._over:
            raise self._closed()

    def require_other_thread(self) -> None:
        """Raise WrongHost in the cache's own thread, where waiting would never end."""
        if threading.get_ident() == self._thread.ident:
            raise WrongHost(
                "this is the cache's own thread (a policy, a store or before_copy runs here), which "
                "would wait for itself: submit the call, and look at its ticket from another thread"
            )

    def send(self, calls: list[Call]) -> None:
        """Have calls begun, in their order, by the cache's thread. Never waits; from anywhere."""
        self._queue.extend(calls)
        if self._over:
            self._refuse_rest()
        elif not self._awake:
            self._awake = True
            _WRITE(self._bell, b"!", 1)

    def _refuse_rest(self) -> None:
        while True:
            try:
                call = self._queue.popleft()
            except IndexError:
                return
            call.settle(self._closed())

    def _closed(self) -> Closed:
        cause = self._error.cause if isinstance(self._error, Closed) else self._error
        return Closed("the cache has closed; what it held is forgotten", cause)

    # -- in the cache's thread --------------------------------------------------------------------

    def _main(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as error:  # noqa: BLE001 - for `open` or `close` to raise
            self._error = error
        self._over = True
        self._refuse_rest()
        if not self._opened.poll():
            self._opened.settle_call(0, self._error or self._closed())

    async def _live(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            if self._closing:
                self._scope.cancel()
            async with self._opening() as cache, trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._serve)
                self._opened.settle_call(0, cache.through(self._make_port))

    def _make_port(self, model: ModelSpec, assembled: Assembled) -> Port:
        self._port = _CallsPort(model, assembled)
        self.fences = assembled.fences
        return self._port

    async def _serve(self) -> None:
        """Take calls in turn, until one must wait."""
        queue, now = self._queue, time.monotonic
        with trio.CancelScope() as scope:
            while True:
                if not queue:
                    self._awake = False
                    if not queue:
                        await trio.lowlevel.wait_readable(self._door)
                        os.read(self._door, 64)
                    continue
                if now() > self._yield_due:
                    await trio.lowlevel.checkpoint()
                    self._yield_due = now() + YIELD_SECONDS
                call = queue.popleft()
                if self._begin(call):
                    self._nursery.start_soon(self._serve)
                    await self._wait_for(call, scope)
                    return
                del call  # and with it what it has taken, before this task sleeps

    def _begin(self, call: Call) -> bool:
        """Step a call; return whether it must wait."""
        try:
            if call.ticket.cancelled:
                raise TicketCancelled
            self._port.begins = True
            verb = call.verb()
            call.waits_for = (
                verb.send(None) if call.context is None else call.context.run(verb.send, None)
            )
        except StopIteration as done:
            call.settle(done.value)
            return False
        except Exception as error:  # noqa: BLE001 - it is the caller's
            call.settle(error)
            return False
        call.coroutine = verb
        return True

    @types.coroutine
    def _wait_for(self, call: Call, scope: trio.CancelScope) -> Generator[Any, Any, None]:
        """Go on with a call that must wait, in this task, in which it was begun."""
        call.waits_in(scope)
        try:
            while True:
                call.waits_for = call.coroutine.send((yield call.waits_for))
        except StopIteration as done:
            call.settle(done.value)
        except trio.Cancelled:
            call.settle(TicketCancelled() if call.ticket.cancelled else self._closed())
            raise
        except Exception as error:  # noqa: BLE001 - as above
            call.settle(error)
        except BaseException as error:
            call.settle(error)
            raise
