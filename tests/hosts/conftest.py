"""Each test that asks for `host` runs on every host, one that asks for `new_loop` on each kind of loop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .host import IN_TASKS, Host
from .loops import LOOPS, no_trio_here, run, threads
from .on_threads import Threads

HOSTS = (*IN_TASKS, Threads)


@pytest.fixture(scope="session")
def _first_loops() -> None:
    """Run each kind of loop once: uvloop opens a pipe for signals then, which stays."""
    for new_loop in LOOPS.values():
        run(new_loop, asyncio.sleep(0))


@pytest.fixture(params=HOSTS, ids=[host.name for host in HOSTS])
def host(request: pytest.FixtureRequest, _first_loops: None) -> Iterator[Host]:
    """Give one of the hosts; afterwards prove that no thread, no file and no trio is left of it."""
    running, files = threads(), _files()
    yield request.param()
    if _files() > files:
        gc.collect()  # the pipe of a cache in a thread of its own goes with that cache
    assert _files() <= files  # fewer where a test before this one had left such a pipe
    assert threads() == running
    assert no_trio_here()


def _files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


@pytest.fixture(params=LOOPS)
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """Make a loop of one kind."""
    return LOOPS[request.param]
