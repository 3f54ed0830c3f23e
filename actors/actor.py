"""Actors: classes whose methods handle messages, one at a time.

A *leaf* handles a message by a plain method: one step, run to completion. A *coordinator* handles one
by an `async def`: an operation that awaits nothing but `ask`s of actors below it. What takes long is
awaited in neither, but in a child task that tells the actor what came of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, overload

import msgspec

from ..errors import ActorStopped, BanyanError, ConfigError
from .message import Message

if TYPE_CHECKING:
    from .observer import Trace
    from .ref import Ref
    from .reply import ReplyToken
    from .system import ActorSystem

Answer = TypeVar("Answer")
ActorT = TypeVar("ActorT")
MessageT = TypeVar("MessageT")


class Handles(Protocol[Answer]):
    """What `handles` returns: takes methods that return the message's answer, or None if they defer."""

    @overload
    def __call__(
        self, method: Callable[[ActorT, MessageT], Coroutine[Any, Any, Answer]], /
    ) -> Callable[[ActorT, MessageT], Coroutine[Any, Any, Answer]]: ...

    @overload
    def __call__(
        self, method: Callable[[ActorT, MessageT], Coroutine[Any, Any, Answer | None]], /
    ) -> Callable[[ActorT, MessageT], Coroutine[Any, Any, Answer | None]]: ...

    @overload
    def __call__(
        self, method: Callable[[ActorT, MessageT], Answer], /
    ) -> Callable[[ActorT, MessageT], Answer]: ...

    @overload
    def __call__(
        self, method: Callable[[ActorT, MessageT], Answer | None], /
    ) -> Callable[[ActorT, MessageT], Answer | None]: ...


_MARK = "__handles__"


def handles(kind: type[Message[Answer]]) -> Handles[Answer]:
    """Mark a method as the handler of one message type."""
    if not (isinstance(kind, type) and issubclass(kind, Message)):
        raise ConfigError(f"@handles wants a type of messages, derived from Message, not {kind!r}")

    def mark(method: Any) -> Any:
        setattr(method, _MARK, kind)
        return method

    return mark


class Down(msgspec.Struct, frozen=True):
    """A monitored actor stopped, crashed or was restarted: its path and the reason, empty if orderly."""

    path: str
    cause: str = ""


class Actor:
    """Base of Leaf and Coordinator: what a handler may use, and the hooks it may override.

    A factory makes the instance, once for each (re)start, so state begins in `__init__`. Everything
    here but `path` needs the actor to be started.
    """

    handlers: ClassVar[dict[type[Any], str]] = {}
    """Message type -> name of the method that handles it."""

    refusals: ClassVar[tuple[type[BanyanError], ...]] = (BanyanError,)
    """Errors by which a handler says no, its actor's state being whole; any other one is a crash."""

    hands_over: ClassVar[bool] = False
    """Whether who waits for a deferred reply when a life ends is heard again by the next one."""

    life: Ref[Any] | None = None
    """The reference as the kernel gives it; use `ref`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.handlers = dict(cls.handlers)
        own: dict[type[Any], str] = {}
        for name, method in vars(cls).items():
            kind = getattr(method, _MARK, None)
            if kind is None:
                continue
            if kind in own:
                raise ConfigError(
                    f"{cls.__qualname__} handles {kind.__qualname__} twice: {own[kind]} and {name}"
                )
            cls._check_handler(method)
            own[kind] = name
        cls.handlers.update(own)

    @classmethod
    def _check_handler(cls, method: Any) -> None:
        raise ConfigError(
            f"{method.__qualname__}: derive from Leaf or Coordinator to handle messages"
        )

    # -- what handlers use ------------------------------------------------------------------------

    @property
    def ref(self) -> Ref[Any]:
        """The actor's own reference; outlives a restart."""
        if self.life is None:
            raise ActorStopped(f"{type(self).__qualname__} has not been started by a system")
        return self.life

    @property
    def system(self) -> ActorSystem:
        """The system that runs the actor."""
        return self.ref.system

    @property
    def path(self) -> str:
        """Where the actor is in its system, such as `/cache/tree`."""
        return self.ref.path

    @property
    def trace(self) -> Trace | None:
        """The trace of the message being handled, None where its request is not sampled."""
        return (self.life or self.ref).system.trace  # every operation asks: one property, not two

    @property
    def deadline(self) -> float:
        """The deadline (trio time) of the message being handled, infinite where it has none."""
        return self.ref.system.deadline

    def defer(self) -> ReplyToken:
        """Keep the reply of the message being handled; what the handler returns is then ignored.

        The token must be answered exactly once, by a later step or operation of this actor (or this
        one). When the life ends the kernel refuses what is still open, or has the next life hear the
        message again where the actor `hands_over`. Raises RuntimeError outside a
        handler or when called twice in one.
        """
        return self.ref.defer()

    def start(self, fn: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run an async function as a child task of the actor; it ends with the actor's life.

        It must not touch the actor's state but report back by `self.ref.ask`. An error out of it is
        a crash of the actor. It inherits neither trace nor deadline.
        """
        self.ref.start_child(fn, args)

    def monitor(self, ref: Ref[Any]) -> None:
        """Have `on_down` called, as a step of this actor, whenever the other stops or crashes."""
        self.ref.monitor(ref)

    def stop(self) -> None:
        """End this life in order after the message in hand; a permanent actor is then started anew."""
        self.ref.stopping = True
        self.ref.wake()

    # -- hooks ------------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Run as the first step of each life; the actor is ready when it returns."""

    def on_stop(self, cause: BaseException | None) -> None:
        """Run as the last step of each life; `cause` is the crash that ended it, if one did.

        Child tasks are over by then.
        """

    def on_down(self, down: Down) -> None:
        """Hear, as a step, that a monitored actor stopped or crashed."""

    def orphaned(self, msg: Any, result: Any) -> None:
        """Take back what an answer holds that reached nobody; run within a step of the actor."""

    def abandoned(self, token: ReplyToken) -> None:
        """Hear, as a step, that the asker of a deferred reply left; an answer is no longer needed."""


class Leaf(Actor):
    """An actor whose handlers are plain methods: each message is one step, with no await in it."""

    @classmethod
    def _check_handler(cls, method: Any) -> None:
        if inspect.iscoroutinefunction(method):
            raise ConfigError(
                f"{method.__qualname__} is an async def: a leaf's handler is a plain method; "
                f"derive from Coordinator for operations"
            )


class Coordinator(Actor):
    """An actor whose handlers are `async def`: each message is one operation, one at a time."""

    async def prepare(self) -> None:
        """Run as the first operation of each life; the actor is ready when it is over."""

    async def prepare_for(self, notice: Any) -> None:
        """Prepare, as the handler of the kernel's notice."""
        await self.prepare()

    epilogue_due = False
    """Whether `epilogue` has something to do."""

    async def epilogue(self) -> None:
        """Run as the last part of every operation that returned or refused, while `epilogue_due`.

        An error out of it is a crash, but not the asker's: the operation itself is whole.
        """

    @classmethod
    def _check_handler(cls, method: Any) -> None:
        if not inspect.iscoroutinefunction(method):
            raise ConfigError(
                f"{method.__qualname__} is a plain method: a coordinator's handler is an "
                f"async def; derive from Leaf for steps"
            )
