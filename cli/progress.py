"""The progress bar of a replay, on standard error where that is a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..replay.toy_engine import Tally

_REDRAW_SECONDS = 0.1


@contextmanager
def show_progress(total: int) -> Generator[Callable[[Tally], None] | None, None, None]:
    """Show a bar of `total` requests while the block runs; give what is to be called after each.

    Gives None, and shows nothing, where standard error is no terminal. Draws in the caller's stack,
    ten times a second at most: a thread of its own would take time from what is measured.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("hit rate {task.fields[rate]:.3f}"),
        TimeRemainingColumn(),
    )
    drawn = 0.0
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("replay", total=total, rate=0.0)

        def on_turn(tally: Tally) -> None:
            nonlocal drawn
            now = time.monotonic()
            if now - drawn < _REDRAW_SECONDS:
                return
            drawn = now
            rate = tally.hit_tokens.total / tally.tokens
            progress.update(task, completed=tally.requests, rate=rate, refresh=True)

        yield on_turn
