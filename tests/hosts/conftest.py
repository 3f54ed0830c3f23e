"""Each test that asks for `host` runs on every host, one that asks for `new_loop` on each kind of loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from .host import IN_TASKS, Host
from .loops import LOOPS
from .on_threads import Threads

HOSTS = (*IN_TASKS, Threads)


@pytest.fixture(params=HOSTS, ids=[host.name for host in HOSTS])
def host(request: pytest.FixtureRequest) -> Host:
    """Return one of the hosts."""
    return request.param()


@pytest.fixture(params=LOOPS)
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """Make a loop of one kind."""
    return LOOPS[request.param]
