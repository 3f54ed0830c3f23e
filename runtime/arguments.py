"""Checks of what callers hand in, before anything is asked: an actor must never meet a wrong type."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection

from ..errors import ConfigError
from ..spec import Namespace, Tier


def require_int(name: str, value: object, least: int | None = None) -> int:
    """Return an integer (anything with `__index__` but a bool), at least `least`. Raises ConfigError."""
    number = value if type(value) is int else _index(name, value)
    if least is not None and number < least:
        raise ConfigError(f"{name} must be at least {least}, not {number}")
    return number


def _index(name: str, value: object) -> int:
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    except Exception as error:  # arrays have an __index__ that refuses, and anybody may write one
        raise ConfigError(f"{name} must be a whole number, not {value!r}") from error
    raise ConfigError(f"{name} must be a whole number, not {value!r}")


def require_seconds(name: str, value: object) -> float:
    """Return a duration in seconds, infinity included. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name} must be a number of seconds, not {value!r}")
    try:
        number = float(value)
    except OverflowError as error:
        raise ConfigError(f"{name} is too large a number of seconds: use infinity") from error
    if math.isnan(number):
        raise ConfigError(f"{name} must be a number of seconds, not {value!r}")
    return number


def require_rate(name: str, value: object) -> float:
    """Return how often a second something is done: finite, not negative. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"{name} must be a number of times a second from 0 on, not {value!r}")
    return float(value)


_DEFAULT_SPACE = Namespace().encode()


def require_namespace(namespace: object) -> bytes:
    """Return a namespace as keys carry it, None as the default one. Raises ConfigError."""
    if namespace is None:
        return _DEFAULT_SPACE
    if not isinstance(namespace, Namespace):
        raise ConfigError(f"namespace must be a Namespace or None, not {namespace!r}")
    try:
        return namespace.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise ConfigError(f"a namespace's fields are text or None: {error}") from error


def require_tier(value: object) -> Tier:
    """Return a tier that holds pages. Raises ConfigError."""
    if not isinstance(value, Tier) or value == Tier.L3:
        raise ConfigError(f"tier must be Tier.L1 or Tier.L2, not {value!r}")
    return value


def require_text(name: str, value: object) -> str:
    """Return a text. Raises ConfigError, also for one that UTF-8 cannot encode."""
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a text, not {value!r}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{name} must be valid Unicode: {error}") from error
    return value


def optional_text(name: str, value: object) -> str | None:
    """Return a text or None. Raises ConfigError."""
    return None if value is None else require_text(name, value)


def optional(name: str, value: object, kind: type) -> None:
    """Refuse what is neither of a kind nor None. Raises ConfigError."""
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{name} must be a {kind.__name__} or None, not {value!r}")


def require_one_of(name: str, value: object, known: Collection[str]) -> str:
    """Return a text that is one of those known. Raises ConfigError."""
    text = require_text(name, value)
    if text not in known:
        raise ConfigError(f"{name} must be one of {', '.join(known)}, not {text!r}")
    return text


def stream_handle(stream: object) -> int:
    """Return a stream's handle (an integer of the device's library), 0 for none. Raises ConfigError."""
    return 0 if stream is None else require_int("stream", stream, 0)
