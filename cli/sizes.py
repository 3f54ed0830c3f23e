"""Sizes as people write them: `500MB`, `8GiB`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cyclopts import Token

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def parse_bytes(text: str) -> int:
    """Read a number of bytes: `500MB`, `8GiB`, `1048576`. Raises `ValueError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is not a size such as 500MB or 8GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def convert_bytes(_: type, tokens: Sequence[Token]) -> int:
    """Convert an option of the command line."""
    return parse_bytes(tokens[0].value)
