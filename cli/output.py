"""Where a command's results go, and its exit codes."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import msgspec

from ..errors import ConfigError

WRONG, USAGE, INTERRUPTED = 1, 2, 130


def write_json(path: Path | None, results: object) -> None:
    """Write results to a file as JSON, where one was asked for; raise `ConfigError` where that fails."""
    if path is None:
        return
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    except OSError as error:
        raise _unwritable(path, error) from None


def require_writable(*paths: Path | None) -> None:
    """Find out before a long run whether files can be written; raises `ConfigError` if not."""
    for path in paths:
        if path is None:
            continue
        try:
            made = not os.path.lexists(path)
            with path.open("ab"):
                pass
            if made:
                path.unlink()
        except (OSError, ValueError) as error:
            raise _unwritable(path, error) from None


def require_folder(path: Path) -> None:
    """Make a folder for results before a long run; raises `ConfigError` where it cannot be used."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError | ValueError) -> ConfigError:
    return ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}")


def say(message: str) -> None:
    """Tell a person one line on standard error."""
    sys.stderr.write("banyankv: " + " ".join(message.split()) + "\n")
