"""Operations of the cache actor: what comes up from below in the middle of one is a crash."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ..actors import handles
from ..errors import BanyanError, ConfigError, NoCapacity, StaleLease

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


class TornOperation(Exception):
    """An actor below refused or failed while an operation was changing things: a bug, or a fault."""


def operation(kind: type) -> Callable[[F], F]:
    """Mark a method as the operation for one message type.

    The cache refuses, before it changes anything, with ConfigError, StaleLease or NoCapacity. Any
    other error out of an operation may have left it half done; it must not pass for a refusal, and
    becomes a crash, which closes the cache.
    """

    def mark(method: F) -> F:
        @functools.wraps(method)
        async def run(self: Any, msg: Any) -> Any:
            try:
                return await method(self, msg)
            except (ConfigError, StaleLease, NoCapacity):
                raise
            except BanyanError as error:
                raise TornOperation(f"{kind.__name__}: {type(error).__name__}: {error}") from error

        return handles(kind)(run)  # type: ignore[return-value]

    return mark
