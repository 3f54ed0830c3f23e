"""What every folder of tests shares: the dispatch mode, and how many random histories are tried."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The laws of the component suite are in the package; here they say what did not agree, as tests do.
pytest.register_assert_rewrite("banyankv.testing.rules")

_MODES = ("direct", "mailbox")

_FOLLOWERS = (
    "model",
    "integrations/test_conversations.py",
    "integrations/test_engine.py",
    "integrations/test_serving.py",
)
"""Tests that run a whole cache in the mode that BANYANKV_DISPATCH names, without asking for it."""

# Tests that set no number of their own try so many examples, so that one variable says how long the
# search for a bad history goes on: BANYANKV_HISTORIES=20000 .venv/bin/pytest tests/model
settings.register_profile("budget", max_examples=int(os.environ.get("BANYANKV_HISTORIES", "30")))
settings.load_profile("budget")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that ask for `dispatch` in both modes, or in the one that BANYANKV_DISPATCH names."""
    if "dispatch" in metafunc.fixturenames:
        only = os.environ.get("BANYANKV_DISPATCH")
        if only is not None and only not in _MODES:
            raise pytest.UsageError(f"BANYANKV_DISPATCH is one of {_MODES}, not {only!r}")
        metafunc.parametrize("dispatch", [only] if only else _MODES)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With BANYANKV_DISPATCH=mailbox leave out what dispatch cannot change: it has run before."""
    if os.environ.get("BANYANKV_DISPATCH") != "mailbox":
        return
    here = Path(__file__).parent
    followers = [here / name for name in _FOLLOWERS]
    if gone := [str(path) for path in followers if not path.exists()]:
        raise pytest.UsageError(f"tests/conftest.py names {', '.join(gone)}, which is not there")
    kept, left_out = [], []
    for item in items:
        asks = "dispatch" in getattr(item, "fixturenames", ())
        follows = any(item.path.is_relative_to(path) for path in followers)
        (kept if asks or follows else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)
