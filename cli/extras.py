"""Packages that only some commands need."""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import ConfigError


def require_packages(what: str, extra: str, *names: str) -> None:
    """Find out before the work whether packages are installed; raises `ConfigError` if not."""
    if any(find_spec(name) is None for name in names):
        raise ConfigError(f"{what} needs more packages: pip install 'banyankv[{extra}]'")
