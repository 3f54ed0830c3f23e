"""Checks of what callers hand in, before anything is asked: an actor must never meet a wrong type."""

from __future__ import annotations

import math

from ..errors import ConfigError
from ..spec import Namespace, Tier


def whole(name: str, value: object, least: int | None = None) -> int:
    """Answer an integer (anything with `__index__` but a bool), at least `least`. Raises ConfigError."""
    number = value if type(value) is int else _index(name, value)
    if least is not None and number < least:
        raise ConfigError(f"{name} must be at least {least}, not {number}")
    return number


def _index(name: str, value: object) -> int:
    index = getattr(type(value), "__index__", None)
    if index is None or isinstance(value, bool):
        raise ConfigError(f"{name} must be a whole number, not {value!r}")
    number: int = index(value)
    return number


def seconds(name: str, value: object) -> float:
    """Answer a duration in seconds, infinity included. Raises ConfigError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ConfigError(f"{name} must be a number of seconds, not {value!r}")
    return float(value)


_DEFAULT_SPACE = Namespace().encode()


def space(namespace: object) -> bytes:
    """Answer a namespace as keys carry it, None as the default one. Raises ConfigError."""
    if namespace is None:
        return _DEFAULT_SPACE
    if not isinstance(namespace, Namespace):
        raise ConfigError(f"namespace must be a Namespace or None, not {namespace!r}")
    try:
        return namespace.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise ConfigError(f"a namespace's fields are text or None: {error}") from error


def tier(value: object) -> Tier:
    """Answer a tier that holds pages. Raises ConfigError."""
    if not isinstance(value, Tier) or value == Tier.L3:
        raise ConfigError(f"tier must be Tier.L1 or Tier.L2, not {value!r}")
    return value


def word(name: str, value: object) -> str:
    """Answer a text. Raises ConfigError."""
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a text, not {value!r}")
    return value
