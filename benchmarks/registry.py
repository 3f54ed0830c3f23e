"""The benchmarks by name."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from types import ModuleType

from ..errors import ConfigError
from .bench import Bench

BUILT = (
    "turns",
    "hits",
    "misses",
    "evict",
    "publish",
    "batch",
    "alloc",
    "store",
    "copies",
    "actors",
    "telemetry",
    "memory",
    "multiturn",
    "hosts",
)
NOT_BUILT = {"sessions": "named sessions do not exist yet"}

Measure = Callable[[Bench], Awaitable[None]]


def load(name: str) -> Measure:
    """Import one benchmark; raises `ConfigError` for a name that is none."""
    if name not in BUILT:
        raise ConfigError(f"no benchmark {name!r}: there is {', '.join((*BUILT, *NOT_BUILT))}")
    measure: Measure = _module(name).measure
    return measure


def title(name: str) -> str:
    """Tell in a line what a benchmark measures: the first one of its module."""
    return (_module(name).__doc__ or name).splitlines()[0].replace("`", "").rstrip(".")


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__package__}.{name}")
