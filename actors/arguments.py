"""What may stand in a specification or plan: numbers of the right kind, within bounds."""

from __future__ import annotations

import math


def is_whole(value: object, least: int) -> bool:
    """Return whether a value is an integer of at least `least`; a boolean is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object, least: float, most: float = math.inf) -> bool:
    """Return whether a value is a finite number from `least` to `most`; neither nan nor a boolean is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and least <= value <= most
