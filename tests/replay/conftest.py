"""Where the public traces are, for the tests that want them."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of traces: beside the checkout, or named by BANYANKV_TRACES."""
    beside = Path(__file__).parents[3] / "shared" / "traces"
    folder = Path(os.environ.get("BANYANKV_TRACES") or beside)
    if not folder.is_dir():
        pytest.skip(
            "no traces: shared/traces is not beside the checkout, nor is BANYANKV_TRACES set"
        )
    return folder
