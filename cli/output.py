"""Where a command's results go, and its exit codes."""

from __future__ import annotations

import sys
from pathlib import Path

from ..errors import ConfigError

WRONG, USAGE, INTERRUPTED = 1, 2, 130


def write(path: Path, data: bytes) -> None:
    """Write results to a file; raise `ConfigError` where that fails."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def say(message: str) -> None:
    """Tell a person one line on standard error."""
    sys.stderr.write("banyankv: " + " ".join(message.split()) + "\n")
