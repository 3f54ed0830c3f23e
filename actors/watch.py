"""The watch: the slow way of every message while a journal, a fault plan or hops are wanted.

It does what `dispatch` does and, around it, records, times, and lets go wrong what the plan says.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import trio

from ..errors import ActorCrashed, BanyanError, WouldWait
from . import dispatch
from .cell import Cell
from .dead_letters import Reason
from .envelope import Envelope
from .faults import FaultAction, FaultKind, Faults, InjectedCrash, InjectedFault
from .journal import Journal, RecordKind
from .observer import Hop, Observer
from .reply import Phase, ReplyToken

if TYPE_CHECKING:
    from .observer import Trace
    from .system import ActorSystem


class Watch:
    """Sees every message of a system at its edge, and every answer."""

    def __init__(
        self,
        system: ActorSystem,
        *,
        observer: Observer | None,
        journal: Journal | None,
        faults: Faults,
    ) -> None:
        self._system = system
        self._hops = observer if observer is not None and observer.hops else None
        self._journal = journal
        self._faults = faults

    @property
    def wanted(self) -> bool:
        """Whether there is anything to watch for."""
        return bool(self._hops or self._journal is not None or self._faults.plan.faults)

    def sender(self) -> str:
        """Name the actor whose handler or child task is running; empty outside the system."""
        running = self._system.running
        return running.path if running is not None else self._system.child_of.get()

    # -- the edge ---------------------------------------------------------------------------------

    def begin(
        self, cell: Cell, msg: Any, *, given: float, deadline: float, trace: Trace | None
    ) -> Any:
        """Ask, as `dispatch.begin` does."""
        sender = self.sender()
        seq = self._sent(RecordKind.ASK, sender, cell, msg, trace=trace, deadline=given)
        try:
            action = self._faults.at_edge(sender, cell.path, type(msg).__name__)
            lost = self._lost(cell, msg, action, trace, deadline)
            if lost is not None:
                answer: Any = lost
            elif (action is None or action.what is not FaultKind.DELAY) and dispatch.can_run(cell):
                answer = self._handle(
                    cell, msg, trace=trace, deadline=deadline, sender=sender, action=action
                )
            else:
                envelope = dispatch.question(cell, msg, given, deadline, trace)
                self._mark(envelope, sender, seq, action)
                cell.enqueue(envelope, may_wait=True)
                answer = envelope.reply
            self._repeat(cell, msg, action, trace, sender)
        except BaseException as error:
            self._outcome(seq, cell, None, error)
            raise
        return self._follow(seq, cell, answer)

    def call(self, cell: Cell, msg: Any, trace: Trace | None) -> Any:
        """Call, as `dispatch.call` does on an actor that is free."""
        sender = self.sender()
        deadline = self._system.deadline
        seq = self._sent(RecordKind.CALL, sender, cell, msg, trace=trace, deadline=math.inf)
        try:
            action = self._faults.at_edge(sender, cell.path, type(msg).__name__)
            if action is not None and action.what is FaultKind.DELAY:
                raise WouldWait(f"{cell.path} cannot answer now: the fault plan delays it")
            self._lost(cell, msg, action, trace, math.inf)
            answer = self._handle(
                cell, msg, trace=trace, deadline=deadline, sender=sender, action=action
            )
            self._repeat(cell, msg, action, trace, sender)
        except BaseException as error:
            self._outcome(seq, cell, None, error)
            raise
        return self._follow(seq, cell, answer)

    def post(self, cell: Cell, envelope: Envelope, *, needed: bool) -> None:
        """Tell, as `dispatch.post` does."""
        msg = envelope.msg
        sender = self.sender()
        kind = RecordKind.CONTROL if envelope.control else RecordKind.TELL
        seq = self._sent(kind, sender, cell, msg, trace=envelope.trace, deadline=math.inf)
        action = self._faults.at_edge(sender, cell.path, type(msg).__name__)
        if action is not None and action.what is FaultKind.FAIL:
            raise InjectedFault(f"the fault plan fails {type(msg).__name__} to {cell.path}")
        if action is not None and action.what is FaultKind.DROP:
            letters = self._system.dead_letters
            letters.add(Reason.INJECTED_DROP, cell.path, msg, envelope.trace)
            if needed:
                name = type(msg).__name__
                raise InjectedFault(f"the fault plan drops {name} to {cell.path}: it is waited for")
            return
        self._mark(envelope, sender, seq, action)
        cell.enqueue(envelope, may_wait=False)
        self._repeat(cell, msg, action, envelope.trace, sender)

    def _mark(self, envelope: Envelope, sender: str, seq: int, action: FaultAction | None) -> None:
        envelope.sender = sender
        envelope.reply.seq = seq
        envelope.queued = time.perf_counter_ns()
        if action is not None:
            envelope.fault = action
            if action.what is FaultKind.DELAY:
                envelope.due = trio.current_time() + action.seconds

    def _lost(
        self,
        cell: Cell,
        msg: Any,
        action: FaultAction | None,
        trace: Trace | None,
        deadline: float,
    ) -> ReplyToken | None:
        """Fail or lose a question; return the token that nobody will ever answer."""
        if action is None or action.what not in (FaultKind.FAIL, FaultKind.DROP):
            return None
        name = type(msg).__name__
        if action.what is FaultKind.FAIL:
            raise InjectedFault(f"the fault plan fails {name} to {cell.path}")
        self._system.dead_letters.add(Reason.INJECTED_DROP, cell.path, msg, trace)
        if deadline == math.inf:
            # waiting without end would be the plan's fault, not the system's
            raise InjectedFault(f"the fault plan drops {name} to {cell.path}; it had no deadline")
        token = ReplyToken(cell, msg, trace, deadline)
        token.phase = Phase.QUEUED
        return token

    def _repeat(
        self, cell: Cell, msg: Any, action: FaultAction | None, trace: Trace | None, sender: str
    ) -> None:
        """Queue the second copy of a message that is delivered twice; nobody waits for its answer."""
        if action is None or action.what is not FaultKind.DUPLICATE:
            return
        reply = ReplyToken(cell, msg, trace, math.inf, asked=False)
        envelope = Envelope(msg, reply, trace=trace, deadline=math.inf, sender=sender)
        envelope.queued = time.perf_counter_ns()
        cell.enqueue(envelope, may_wait=False, exempt=True)

    # -- the mailbox ------------------------------------------------------------------------------

    def is_due(self, cell: Cell) -> bool:
        """Say whether the next queued message may be handled already; what is behind it waits with it."""
        head = cell.mailbox.head()
        return head is None or head.due == -math.inf or head.due <= trio.current_time()

    def when_due(self, cell: Cell) -> float:
        """Return the trio time at which the next queued message may be handled."""
        head = cell.mailbox.head()
        return -math.inf if head is None else head.due

    def may_call(self, cell: Cell) -> bool:
        """Say whether a call would be handled now, as far as the plan says."""
        return self.is_due(cell) and not self._faults.may_delay(cell.path)

    def run(self, cell: Cell, envelope: Envelope) -> Any:
        """Handle a queued message, as `dispatch.run` does."""
        waited = time.perf_counter_ns() - envelope.queued if envelope.queued else 0
        cell.mailbox.waited_ns += waited
        return self._handle(
            cell,
            envelope.msg,
            trace=envelope.trace,
            deadline=envelope.deadline,
            sender=envelope.sender,
            action=envelope.fault,
            envelope=envelope,
            waited=waited,
        )

    def _handle(
        self,
        cell: Cell,
        msg: Any,
        *,
        trace: Trace | None,
        deadline: float,
        sender: str,
        action: FaultAction | None,
        envelope: Envelope | None = None,
        waited: int = 0,
    ) -> Any:
        asker = self._system.op if envelope is None else envelope.asker
        reply = None if envelope is None else envelope.reply
        outcome = "crashed"
        begun = time.perf_counter_ns()
        try:
            if action is not None and action.what is FaultKind.CRASH:
                self._crash(cell, msg)
            answer = dispatch.run(cell, msg, trace, deadline, asker=asker, reply=reply)
            outcome = "deferred" if type(answer) is ReplyToken else "ok"
        except BanyanError as error:
            if not isinstance(error, ActorCrashed):
                outcome = "refused"
            raise
        finally:
            took = time.perf_counter_ns() - begun
            cell.handle_ns += took
            if self._hops is not None:
                via = "direct" if envelope is None else "mailbox"
                name = type(msg).__name__
                self._hops.hop(Hop(sender, cell.path, name, via, waited, took, outcome))
        return answer

    def _crash(self, cell: Cell, msg: Any) -> None:
        crash = InjectedCrash(f"the fault plan crashes {cell.path} at {type(msg).__name__}")
        raise cell.failed(crash) from crash

    # -- the journal ------------------------------------------------------------------------------

    def _sent(
        self,
        kind: RecordKind,
        sender: str,
        cell: Cell,
        msg: Any,
        *,
        trace: Trace | None,
        deadline: float,
    ) -> int:
        if self._journal is None:
            return 0
        return self._journal.message(kind, sender, cell.path, msg, trace=trace, deadline=deadline)

    def _follow(self, seq: int, cell: Cell, answer: Any) -> Any:
        if type(answer) is not ReplyToken:
            self._outcome(seq, cell, answer, None)
        elif seq and answer.seq == 0:
            answer.seq = seq
            if answer.phase is Phase.ANSWERED:
                self.answered(answer)
        return answer

    def answered(self, reply: ReplyToken) -> None:
        """Record the answer that a token was given."""
        value, error = reply.given()
        self._outcome(reply.seq, reply.cell, value, error)

    def left(self, reply: ReplyToken) -> None:
        """Record that an asker left."""
        if self._journal is not None:
            sender = self.sender()
            self._journal.outcome(RecordKind.LEFT, reply.cell.path, reply.seq, None, sender=sender)

    def _outcome(self, seq: int, cell: Cell, value: Any, error: BaseException | None) -> None:
        if self._journal is None or not seq:
            return
        if error is None:
            self._journal.outcome(RecordKind.ANSWERED, cell.path, seq, value, sender=cell.path)
            return
        kind = RecordKind.CRASHED if isinstance(error, ActorCrashed) else RecordKind.REFUSED
        name = type(error).__name__
        self._journal.outcome(kind, cell.path, seq, f"{name}: {error}", sender=cell.path)
