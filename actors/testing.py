"""What makes runs repeatable: trio's scheduler with a seed of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import trio


@contextmanager
def seeded_scheduler(seed: int) -> Iterator[None]:
    """Have trio runs inside the block order their tasks by this seed.

    trio shuffles each batch of runnable tasks on purpose. Its switch for Hypothesis makes the order
    depend on one private generator; this seeds it and puts everything back. Not for several threads.
    """
    core = trio._core._run  # type: ignore[attr-defined]  # noqa: SLF001 - the one place that does
    allowed, state = core._ALLOW_DETERMINISTIC_SCHEDULING, core._r.getstate()  # noqa: SLF001
    core._ALLOW_DETERMINISTIC_SCHEDULING = True  # noqa: SLF001
    core._r.setstate(random.Random(seed).getstate())  # noqa: S311, SLF001
    try:
        yield
    finally:
        core._ALLOW_DETERMINISTIC_SCHEDULING = allowed  # noqa: SLF001
        core._r.setstate(state)  # noqa: SLF001
