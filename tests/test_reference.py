"""The reference says what the docstrings say."""

import runpy
from pathlib import Path

import banyankv

DOCS = Path(banyankv.__file__).parent / "docs"


def test_the_reference_is_current():
    make_reference = runpy.run_path(str(DOCS / "make_reference.py"))["make_reference"]
    assert make_reference() == (DOCS / "reference.md").read_text(), (
        "run python docs/make_reference.py"
    )
