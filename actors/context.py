"""Context managers that open and close whole, whenever a KeyboardInterrupt comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar

import trio

P = ParamSpec("P")
T = TypeVar("T")


class ProtectedContext(AbstractAsyncContextManager[T], Generic[T]):
    """Enters and leaves another one; what these two run is protected from KeyboardInterrupt.

    Python's own frames around a generator are not: an interrupt there would leave it open.
    """

    def __init__(self, inner: AbstractAsyncContextManager[T]) -> None:
        self._inner = inner

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> T:
        return await self._inner.__aenter__()

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, traceback)


def protected_context(
    generator: Callable[P, AsyncGenerator[T, None]],
) -> Callable[P, ProtectedContext[T]]:
    """Make a context manager of an async generator, protected but for the body of its block."""
    manager = asynccontextmanager(generator)

    @wraps(generator)
    def made(*args: P.args, **kwargs: P.kwargs) -> ProtectedContext[T]:
        return ProtectedContext(manager(*args, **kwargs))

    return made
