"""What makes runs repeatable: trio's scheduler with a seed of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SWITCH = "_ALLOW_DETERMINISTIC_SCHEDULING"
_RANDOM = "_r"


@contextmanager
def seeded_scheduler(seed: int) -> Iterator[None]:
    """Have trio runs inside the block order their tasks by this seed.

    trio shuffles each batch of runnable tasks on purpose. Its switch for Hypothesis makes the order
    depend on one private generator; this seeds it and puts everything back. Not for several threads.
    """
    # the switch is private and typed Final: the one place that knows of it goes by name
    core: Any = sys.modules["trio._core._run"]
    allowed, state = getattr(core, _SWITCH), getattr(core, _RANDOM).getstate()
    setattr(core, _SWITCH, True)
    getattr(core, _RANDOM).seed(seed)
    try:
        yield
    finally:
        setattr(core, _SWITCH, allowed)
        getattr(core, _RANDOM).setstate(state)
