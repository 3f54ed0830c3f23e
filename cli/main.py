"""The command line: `banyankv VERB`, one file a verb.

Exit codes: 0 all right, 1 something is wrong with the bytes, 2 wrong options or a broken trace,
130 interrupted.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from typing import cast

from cyclopts import App, CycloptsError

from ..errors import BanyanError, ConfigError
from .bench import bench
from .check_store import check_store
from .demo import demo
from .output import INTERRUPTED, USAGE, WRONG, say
from .replay import replay
from .serve import serve
from .verify_layers import verify_layers

app = App(
    name="banyankv",
    help="An embeddable prefix cache for hybrid language models.",
    version=importlib.metadata.version("banyankv"),
)
for _verb in (replay, check_store, bench, demo, serve, verify_layers):
    app.command(_verb)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; `arguments` are the process's by default."""
    try:
        code = app(
            sys.argv[1:] if arguments is None else list(arguments),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    except (BanyanError, CycloptsError, KeyboardInterrupt, BaseExceptionGroup) as error:
        return _failed(error)
    return code if isinstance(code, int) else 0


def _failed(error: BaseException) -> int:
    """Return the exit code of an error that has one, in one line; raise any other."""
    first = _first(error)
    if isinstance(first, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(first, ConfigError | CycloptsError):
        say(str(first))
        return USAGE
    if isinstance(first, BanyanError):
        say(str(first))
        return WRONG
    raise error


def _first(error: BaseException) -> BaseException:
    """Look through the groups that a nursery wraps errors in."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    return _first(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
