"""What may stand in a specification or plan: numbers of the right kind, within bounds, and words."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable

from ..errors import ConfigError


def is_whole(value: object, least: int) -> bool:
    """Return whether a value is an integer of at least `least`; a boolean is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object, least: float, most: float = math.inf) -> bool:
    """Return whether a value is a finite number from `least` to `most`; neither nan nor a boolean is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and least <= value <= most


def member(name: str, value: object, known: Iterable[enum.Enum]) -> None:
    """Refuse what is none of these members of an enumeration. Raises ConfigError."""
    if not any(value is each for each in known):
        names = ", ".join(f"{type(each).__name__}.{each.name}" for each in known)
        raise ConfigError(f"{name} is one of {names}, not {value!r}")
