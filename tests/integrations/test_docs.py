"""The program in docs/embedding.md does what it says."""

import re
import subprocess
import sys
from pathlib import Path

import banyankv
import pytest

pytest.importorskip("transformers", reason="needs the extra transformers")

PAGE = (Path(banyankv.__file__).parent / "docs" / "embedding.md").read_text()


def test_the_program_on_embedding(tmp_path):
    [program] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    said = re.findall(r"^ *print\(.*\)  # (.+)$", program, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == said == ["0", "224"]
