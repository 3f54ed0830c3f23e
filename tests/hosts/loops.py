"""Event loops of each kind, and what of trio is left in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import trio
import uvloop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], main: Any) -> Any:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


def no_trio_here() -> bool:
    """Whether trio has gone from this thread."""
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        return True
    return False


def threads() -> list[str]:
    """Name the threads that are not trio's own idle ones."""
    return sorted(t.name for t in threading.enumerate() if not t.name.startswith("Trio thread"))
