"""What the command `banyankv` starts: the command line where its packages are installed."""

from __future__ import annotations

from .output import USAGE, say

_NEEDED = ("cyclopts", "rich")


def main() -> int:
    """Run the command line and return its exit code, or say in one line what to install for it."""
    try:
        from .main import main as run
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        say("the command line needs more packages: pip install 'banyankv[cli]'")
        return USAGE
    return run()
