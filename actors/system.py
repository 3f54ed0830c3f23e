"""The actor system: opened around the embedder's code, it starts, finds, shows and stops actors."""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import trio

from ..errors import ActorCrashed, ActorStopped, Closed, ConfigError, MailboxFull
from .actor import Actor
from .cell import Cell
from .context import protected_context
from .dead_letters import DeadLetters
from .faults import FaultPlan, Faults
from .introspection import SystemStatistics, TreeNode, system_statistics, system_tree
from .journal import Journal
from .observer import Observer, Trace
from .ref import Ref
from .specs import Backoff, ChildSpec, Restart, Strategy, SupervisorSpec
from .supervision import ActorNode, Supervisor, crash_of
from .watch import Watch

A = TypeVar("A", bound=Actor)


class ActorSystem:
    """All actors of one `open_system` block.

    To be used in the thread of its trio run, but for `tell_from_thread`. Besides what is documented,
    attributes are the kernel's.
    """

    def __init__(
        self,
        name: str,
        *,
        dispatch: str,
        observer: Observer | None,
        journal: Journal | None,
        faults: FaultPlan | None,
        seed: int,
        top: SupervisorSpec,
    ) -> None:
        if dispatch not in ("direct", "mailbox"):
            raise ConfigError(f"dispatch is 'direct' or 'mailbox', not {dispatch!r}")
        self.name = name
        self.dispatch = dispatch
        self.observer = observer
        self.seed = seed
        self.dead_letters = DeadLetters(observer)
        self.journal = journal
        self.faults = Faults(faults)
        self.watch = Watch(self, observer=observer, journal=journal, faults=self.faults)
        # what is running in this stack at this moment: the innermost operation, the innermost handler
        # where it is known, and the trace and deadline of its message
        self.op: Cell | None = None
        self.running: Cell | None = None
        self.trace: Trace | None = None
        self.deadline = math.inf
        # the crash for which a whole group was last started anew, until somebody has looked
        self.crash: ActorCrashed | None = None
        self.child_of: contextvars.ContextVar[str] = contextvars.ContextVar("child_of", default="")
        self.refs: dict[str, Ref[Any]] = {}
        self._nodes: dict[str, ActorNode | Supervisor] = {}
        self.top = Supervisor(self, top, "/", None)
        self._closed = False
        self._cause: BaseException | None = None
        self._token = trio.lowlevel.current_trio_token()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return (
            f"<ActorSystem {self.name!r} {state}, {self.dispatch} dispatch: "
            f"{len(self.refs)} actors, {self.dead_letters!r}>"
        )

    # -- starting ---------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def spawn(
        self,
        actor: A | Callable[[], A],
        *,
        name: str,
        bound: int = 1024,
        restart: Restart | None = None,
        stop_timeout: float = 5.0,
        parent: Ref[Any] | Supervisor | None = None,
    ) -> Ref[A]:
        """Start an actor and return its reference when it is ready.

        `actor` is a factory, called for each life (`restart` is PERMANENT by default), or an instance,
        which lives once (TEMPORARY). Its mailbox holds `bound` messages per lane. `parent` is a
        supervisor, or an actor under whose path the new one shall be and whose supervisor it shares;
        the default is the top. Raises ConfigError for a name that is taken or not plain,
        ActorCrashed when the actor cannot start, Closed.
        """
        if isinstance(actor, Actor):
            instance = actor
            if restart not in (None, Restart.TEMPORARY):
                raise ConfigError(f"{instance!r} can live only once: give a factory to restart it")
            factory: Callable[[], Actor] = lambda: instance  # noqa: E731 - shorter than its name
            restart = Restart.TEMPORARY
        else:
            factory = actor
        spec = ChildSpec(
            factory=factory,
            name=name,
            bound=bound,
            restart=Restart.PERMANENT if restart is None else restart,
            stop_timeout=stop_timeout,
        )
        node = self._make(spec, parent)
        await node.supervisor.add(node)  # type: ignore[union-attr]
        return self.refs[node.path]

    @trio.lowlevel.enable_ki_protection
    async def start_children(
        self, *specs: ChildSpec | SupervisorSpec, parent: Ref[Any] | Supervisor | None = None
    ) -> tuple[Ref[Any] | Supervisor, ...]:
        """Start actors and supervisors in order, each when the one before is ready.

        Returns a reference for each actor and the supervisor for each SupervisorSpec; what is below
        one is found by `find`. Raises as `spawn` does.
        """
        made: list[Ref[Any] | Supervisor] = []
        for spec in specs:
            node = self._make(spec, parent)
            await node.supervisor.add(node)  # type: ignore[union-attr]
            made.append(node.ref if isinstance(node, ActorNode) else node)
        return tuple(made)

    def _make(
        self, spec: ChildSpec | SupervisorSpec, parent: Ref[Any] | Supervisor | None
    ) -> ActorNode | Supervisor:
        if self._closed:
            raise self.closing_error() or Closed("closed")
        if parent is None:
            parent = self.top
        if isinstance(parent, Supervisor):
            supervisor = parent
        else:
            above = self._nodes.get(parent.path)
            if above is None or above.supervisor is None:
                raise ConfigError(f"{parent!r} is no actor of this system any more")
            supervisor = above.supervisor
        if not spec.name or "/" in spec.name or spec.name != spec.name.strip():
            raise ConfigError(f"an actor's name is a plain word, not {spec.name!r}")
        path = f"{parent.path.rstrip('/')}/{spec.name}"
        if path in self._nodes:
            raise ConfigError(f"{path} exists already; names are unique under one parent")
        node: ActorNode | Supervisor
        if isinstance(spec, ChildSpec):
            ref: Ref[Any] = Ref(self, spec.name, path, spec.bound)
            node = ActorNode(supervisor, spec, ref)
            self.refs[path] = ref
            self._nodes[path] = node
        else:
            node = Supervisor(self, spec, path, supervisor)
            self._nodes[path] = node
            try:
                for child in spec.children:
                    node.children.append(self._make(child, node))
            except ConfigError:
                self.forget(node)
                raise
        return node

    def find(self, path: str) -> Ref[Any]:
        """Return the actor at a path. Raises ConfigError where there is none."""
        ref = self.refs.get(path)
        if ref is None:
            raise ConfigError(f"no actor at {path!r}; there are {', '.join(self.refs) or 'none'}")
        return ref

    @trio.lowlevel.enable_ki_protection
    async def stop(self, ref: Ref[Any]) -> None:
        """Stop one actor for good: what is queued is handled first, until its stop timeout.

        Shielded from cancellation, which the timeout bounds.
        """
        node = self._nodes.get(ref.path)
        if isinstance(node, ActorNode) and node.ref is ref:
            with trio.CancelScope(shield=True):
                await node.stop(final=True)
            node.supervisor.forget(node)

    def forget(self, node: ActorNode | Supervisor) -> None:
        """Drop a node, and all below it, that will not run again."""
        if isinstance(node, Supervisor):
            for child in node.children:
                self.forget(child)
        self._nodes.pop(node.path, None)
        self.refs.pop(node.path, None)

    # -- messages from elsewhere ------------------------------------------------------------------

    def tell_from_thread(self, ref: Ref[Any], msg: Any, *, control: bool = False) -> None:
        """Tell from any thread; in order per thread. What goes wrong becomes a dead letter.

        Raises trio.RunFinishedError when the trio run is over.
        """
        self._token.run_sync_soon(self._tell, ref, msg, control)

    def _tell(self, ref: Ref[Any], msg: Any, control: bool) -> None:
        # each refusal of a tell is a dead letter already, and trio would end its run for the error
        with contextlib.suppress(MailboxFull, ActorStopped, Closed):
            ref.tell(msg, control=control)

    # -- closing ----------------------------------------------------------------------------------

    def closing_error(self) -> Closed | None:
        """Make the error that whoever asks a closed system gets; None while it is open."""
        if not self._closed:
            return None
        if self._cause is None:
            return Closed(f"the actor system {self.name!r} is closed")
        spec = self.top.spec
        why = (
            f"after more than {spec.intensity} restarts in {spec.period:g} s"
            if spec.intensity
            else "at the crash of an actor, none of which may be started anew"
        )
        error = Closed(
            f"the actor system {self.name!r} closed {why}: {crash_of(self._cause)}", self._cause
        )
        error.__cause__ = self._cause
        return error

    def give_up(self, cause: BaseException) -> None:
        """Close because of too many restarts: refuse at once whatever waits, before anything is stopped.

        The embedder's code is left alone.
        """
        self._cause = cause
        self._closed = True
        self.top.close()

    @trio.lowlevel.enable_ki_protection
    async def run_top(self) -> None:
        """Run the top supervisor, shielded: a cancelled body still finds its actors while it unwinds."""
        with trio.CancelScope(shield=True):
            await self.top.run()
        self._closed = True
        self.top.close()

    def close(self) -> None:
        """Have all actors stopped in reverse order, for good; what is asked later is refused."""
        self.top.halt(final=True)

    def crashed(self, cell: Cell, crash: ActorCrashed) -> None:
        """Hear of a crash, in the step in which it happens."""
        node = self._nodes.get(cell.path)
        if isinstance(node, ActorNode) and node.ref is cell:
            node.supervisor.crashed(node, crash)

    # -- looking ----------------------------------------------------------------------------------

    def paths(self) -> tuple[str, ...]:
        """Return the paths of all actors and supervisors, in order of their start."""
        return tuple(self._nodes)

    def tree(self) -> TreeNode:
        """Return all actors as a tree of plain structs; `print` it."""
        return system_tree(self)

    def statistics(self) -> SystemStatistics:
        """Return the figures of all actors and dead letters as plain structs."""
        return system_statistics(self)


@protected_context
async def open_system(
    name: str,
    *,
    dispatch: str = "direct",
    observer: Observer | None = None,
    journal: Journal | None = None,
    faults: FaultPlan | None = None,
    seed: int = 0,
    strategy: Strategy = Strategy.ONE_FOR_ONE,
    intensity: int = 5,
    period: float = 10.0,
    backoff: Backoff | None = None,
) -> AsyncGenerator[ActorSystem, None]:
    """Open an actor system; leaving the block stops all actors in reverse order of their start.

    `dispatch` is `direct`, or `mailbox` to send every message through its actor's mailbox and task.
    The body is never cancelled by the system. When the top supervisor gives up (more than `intensity`
    restarts within `period` seconds), asks raise Closed, and so does leaving the block, unless the
    body raises an error of its own, which passes unchanged. Stopping is shielded from cancellation;
    each actor's `stop_timeout` bounds it.
    """
    top = SupervisorSpec(
        name=name,
        strategy=strategy,
        intensity=intensity,
        period=period,
        backoff=backoff or Backoff(),
    )
    system = ActorSystem(
        name,
        dispatch=dispatch,
        observer=observer,
        journal=journal,
        faults=faults,
        seed=seed,
        top=top,
    )
    if journal is not None:
        journal.begin()
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            # not by `nursery.start`: whoever cancels or interrupts that would wait for a task that
            # shields itself and that nobody could tell to stop
            system.top.begin()
            nursery.start_soon(system.run_top, name=f"{name} /")
            # the nursery must not see the body's error, or it would wrap it into a group
            try:
                await system.top.running.wait()
                yield system
            except BaseException as error:  # noqa: BLE001 - raised again, outside the nursery
                failure = error
            system.close()
    except BaseExceptionGroup as interrupted:
        # Ctrl-C while the actors were stopping, which they have done to their end
        raise interrupted.exceptions[0] from failure
    if failure is not None:
        raise failure
    closed = system.closing_error()
    if closed is not None and closed.cause is not None:
        raise closed
