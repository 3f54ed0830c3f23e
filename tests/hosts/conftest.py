"""Each test that asks for `host` runs on every host."""

from __future__ import annotations

import pytest

from .host import HOSTS, Host


@pytest.fixture(params=HOSTS, ids=[host.name for host in HOSTS])
def host(request: pytest.FixtureRequest) -> Host:
    """Return one of the hosts."""
    return request.param()
