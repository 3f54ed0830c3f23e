"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import os

import pytest

_MODES = ("direct", "mailbox")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that ask for `dispatch` in both modes, or in the one that BANYANKV_DISPATCH names."""
    if "dispatch" in metafunc.fixturenames:
        only = os.environ.get("BANYANKV_DISPATCH")
        if only is not None and only not in _MODES:
            raise pytest.UsageError(f"BANYANKV_DISPATCH is one of {_MODES}, not {only!r}")
        metafunc.parametrize("dispatch", [only] if only else _MODES)
