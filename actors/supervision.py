"""Supervision as in OTP: who is started anew when an actor crashes, how often, how soon."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import trio

from ..errors import ActorCrashed, ConfigError
from .actor import Coordinator
from .dead_letters import Reason
from .dispatch import stopped
from .gate import DOWN, STOPPED
from .life import live
from .ref import Ref
from .specs import ChildSpec, Restart, Strategy, SupervisorSpec

if TYPE_CHECKING:
    from .system import ActorSystem


class Supervised:
    """One life after another of what a supervisor starts: whether it is over, was to be, is reported."""

    def __init__(self, restart: Restart) -> None:
        self.restart = restart
        self._over = trio.Event()
        self._over.set()
        self._expected = False
        self._reported = False

    def _begin(self) -> None:
        self._over = trio.Event()
        self._expected = self._reported = False

    async def gone(self) -> None:
        """Wait for the end of a life that has been reported as over: something of it may be at work."""
        if self._reported:
            await self._over.wait()


class ActorNode(Supervised):
    """One supervised actor: its reference, its factory, and the task of its present life."""

    def __init__(self, supervisor: Supervisor, spec: ChildSpec, ref: Ref[Any]) -> None:
        super().__init__(spec.restart)
        self.supervisor = supervisor
        self.spec = spec
        self.ref = ref
        self._scope = trio.CancelScope()

    @property
    def path(self) -> str:
        """The path of the actor."""
        return self.ref.path

    async def start(self) -> BaseException | None:
        """Start a life; return None when the actor is ready, or the crash that kept it from it."""
        if not self._over.is_set():
            return None
        self._begin()
        self._scope = trio.CancelScope()
        cause: BaseException | None = await self.supervisor.nursery.start(
            self._live, name=self.path
        )
        return cause

    @trio.lowlevel.enable_ki_protection
    async def _live(self, task_status: trio.TaskStatus[BaseException | None]) -> None:
        started = False

        def ready() -> None:
            nonlocal started
            started = True
            task_status.started(None)

        def report() -> None:
            if started and not self._expected and not self._reported:
                self._reported = True
                self.supervisor.ended(self, self.ref.crash)

        try:
            with self._scope:
                await live(self.ref, self.spec.factory, ready, report)
        finally:
            self._over.set()
        if not started:
            task_status.started(self.ref.crash)
        report()

    async def stop(self, *, final: bool) -> None:
        """End the life: in order until the stop timeout, then by cancelling it.

        In order: the operation in hand is finished, and where the end is final what is queued is
        handled.
        """
        if not self._over.is_set():
            self._expected = True
            self.ref.gate |= STOPPED if final else DOWN
            self.ref.stopping = True
            self.ref.wake()
            with trio.move_on_after(self.spec.stop_timeout):
                await self._over.wait()
            self._scope.cancel()
            if self.ref.parked is not None:
                self.ref.parked.waits_for.rouse()
            await self._over.wait()
        if final:
            self.close()

    def close(self) -> None:
        """Never start again: what is queued, and what will be sent, is refused."""
        ref = self.ref
        ref.gate |= STOPPED
        ref.close_tokens(lambda: stopped(ref))
        ref.close_letters(lambda: stopped(ref), Reason.STOPPED)


class Supervisor(Supervised):
    """Starts its children in order, watches over them, stops them in reverse order.

    It has a task of its own, in which its children's tasks live: no error of a child ever reaches a
    nursery, so none cancels its siblings.
    """

    nursery: trio.Nursery

    def __init__(
        self, system: ActorSystem, spec: SupervisorSpec, path: str, supervisor: Supervisor | None
    ) -> None:
        super().__init__(spec.restart)
        self.system = system
        self.spec = spec
        self.path = path
        self.supervisor = supervisor
        self.restarts = 0
        self.children: list[ActorNode | Supervisor] = []
        self._recent: deque[float] = deque()
        self._rng = random.Random(f"{system.seed}:{path}")  # noqa: S311 - jitter, not secrets
        self._ended: deque[tuple[ActorNode | Supervisor, BaseException | None]] = deque()
        self._news = trio.Event()
        self._halt = trio.Event()
        self._final = False
        self.running = trio.Event()

    def __repr__(self) -> str:
        return (
            f"<Supervisor {self.path} {self.spec.strategy.value}: {len(self.children)} children, "
            f"{self.restarts} restarts>"
        )

    # -- as a child -------------------------------------------------------------------------------

    async def start(self) -> BaseException | None:
        """Start all children; return None when they are ready, or the crash that kept one from it."""
        if not self._over.is_set():
            return None
        if self.supervisor is None:
            raise ConfigError("the top supervisor is run by its system")
        self.begin()
        cause: BaseException | None = await self.supervisor.nursery.start(self.run, name=self.path)
        return cause

    def begin(self) -> None:
        """Make ready for `run`, which from here on can be told to stop."""
        self._begin()
        self._halt = trio.Event()
        self._news = trio.Event()
        self._final = False
        self._recent.clear()
        self._ended.clear()

    def halt(self, *, final: bool) -> None:
        """Have `run` stop all children in reverse order and return."""
        self._expected = True
        self._final = final
        self._halt.set()
        self._news.set()

    async def stop(self, *, final: bool) -> None:
        """Stop all children in reverse order."""
        if not self._over.is_set():
            self.halt(final=final)
            await self._over.wait()
        if final:
            self.close()

    def close(self) -> None:
        """Never start again, nor any child."""
        for child in self.children:
            child.close()

    # -- its task ---------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def run(
        self,
        task_status: trio.TaskStatus[BaseException | None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Supervise until stopped, or until there were too many restarts.

        Too many are told before the children are stopped: nobody need wait for that to hear it.
        """
        cause: BaseException | None = None
        started = False
        try:
            async with trio.open_nursery() as self.nursery:
                self.running.set()
                cause = await self._start(self.children)
                if cause is None:
                    task_status.started(None)
                    started = True
                    cause = await self._watch()
                    if cause is not None and not self._expected:
                        self._reported = True
                        self._give_up(cause)
                for child in reversed(self.children):
                    await child.stop(final=self._final)
                self.nursery.cancel_scope.cancel()
        finally:
            self._over.set()
        if not started:
            task_status.started(cause)

    def _give_up(self, cause: BaseException) -> None:
        if self.supervisor is None:
            self.system.give_up(cause)
        else:
            if isinstance(cause, ActorCrashed):
                self.supervisor.crashed(self, cause)
            self.supervisor.ended(self, cause)

    async def _watch(self) -> BaseException | None:
        while True:
            await self._news.wait()
            self._news = trio.Event()
            while self._ended:
                child, cause = self._ended.popleft()
                if await self._after(child, cause):
                    return cause
            if self._halt.is_set():
                return None

    def ended(self, child: ActorNode | Supervisor, cause: BaseException | None) -> None:
        """Hear that a child's life is over, without having been asked to end."""
        self._ended.append((child, cause))
        self._news.set()

    def crashed(self, child: ActorNode | Supervisor, cause: ActorCrashed) -> None:
        """Have nobody begin an operation, from this step on, who is to be started anew with a child.

        Those that have begun are to end: what they ask of the child, or of a coordinator, is refused.
        """
        group = self._group(child)
        if len(group) < 2 or child.restart is Restart.TEMPORARY:
            return
        for ref in _refs(group):
            if ref.crash is not None or isinstance(ref.actor, Coordinator):
                ref.gate |= DOWN
                ref.refuse_operations(cause)

    def _go_on(self) -> None:
        """Let operations begin again where nobody is started anew: who crashed was stopped for good."""
        refs = tuple(_refs(self.children))
        if any(ref.crash for ref in refs):
            return
        for ref in refs:
            if ref.refused is not None:
                ref.gate &= ~DOWN
                ref.refused = None
                ref.wake()

    def _group(self, child: ActorNode | Supervisor) -> list[ActorNode | Supervisor]:
        """Return who is started anew with a child, in order."""
        if self.spec.strategy is Strategy.ONE_FOR_ONE or child not in self.children:
            return [child]
        if self.spec.strategy is Strategy.REST_FOR_ONE:
            return self.children[self.children.index(child) :]
        return self.children

    async def _after(self, child: ActorNode | Supervisor, cause: BaseException | None) -> bool:
        """Do what is due after a child's end; return whether it was one restart too many."""
        if self._halt.is_set() or child not in self.children:
            return False
        if child.restart is Restart.TEMPORARY or (
            child.restart is Restart.TRANSIENT and cause is None
        ):
            self.forget(child)
            return False
        now = trio.current_time()
        while self._recent and self._recent[0] <= now - self.spec.period:
            self._recent.popleft()
        self._recent.append(now)
        if len(self._recent) > self.spec.intensity:
            return True
        self.restarts += 1
        delay = self.spec.backoff.delay(len(self._recent) - 1, self._rng)
        if self.spec.strategy is Strategy.ONE_FOR_ONE:
            self.nursery.start_soon(self._restart, [child], delay, name=f"{self.path} restart")
            return False
        group = self._group(child)
        if isinstance(cause, ActorCrashed):
            self.system.crash = self.system.crash or cause
        for other in reversed(group):
            await other.stop(final=False)
        await self._restart(group, delay)
        return False

    @trio.lowlevel.enable_ki_protection
    async def _restart(self, group: list[ActorNode | Supervisor], delay: float) -> None:
        with trio.move_on_after(delay):
            await self._halt.wait()
        if self._halt.is_set():
            return
        # whoever was stopped for good in the meantime stays stopped
        again = [child for child in group if child in self.children]
        for child in again:
            await child.gone()
            if isinstance(child, ActorNode):
                child.ref.restarts += 1
        # one crash may have torn several of them: they are started anew once
        self._ended = deque(entry for entry in self._ended if entry[0] not in again)
        await self._start(again)

    async def _start(self, group: list[ActorNode | Supervisor]) -> BaseException | None:
        for child in tuple(group):
            cause = await child.start()
            if cause is not None:
                self.ended(child, cause)
                return cause
        return None

    # -- its children -----------------------------------------------------------------------------

    async def add(self, child: ActorNode | Supervisor) -> None:
        """Start one more child behind the others. Raises what kept it from being ready."""
        self.children.append(child)
        try:
            cause = await child.start()
        except BaseException:
            self.forget(child)
            raise
        if cause is not None:
            self.forget(child)
            raise cause

    def forget(self, child: ActorNode | Supervisor) -> None:
        """Let a child go that has ended for good."""
        child.close()
        if child in self.children:
            self.children.remove(child)
            self.system.forget(child)
            self._go_on()


def crash_of(cause: BaseException) -> str:
    """Say in one line what a cause is, with the path of the actor where it arose."""
    return str(cause) if isinstance(cause, ActorCrashed) else f"{type(cause).__name__}: {cause}"


def _refs(group: Iterable[ActorNode | Supervisor]) -> Iterator[Ref[Any]]:
    """Yield the references of all actors of a group, at whatever depth."""
    for node in group:
        if isinstance(node, ActorNode):
            yield node.ref
        else:
            yield from _refs(node.children)
