"""Tokens as engines have them, packed as keys: little-endian uint32 bytes."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import ConfigError
from ..spec import TOKEN_BYTES

Tokens = bytes | bytearray | memoryview | Sequence[int] | Any
"""Packed uint32 bytes, any buffer of integers (array, numpy, torch on the CPU), or a sequence of ints."""


def pack(tokens: Tokens) -> bytes:
    """Pack token ids; bytes are taken as packed already. Raises ConfigError for what is no tokens.

    A buffer of 4-byte integers is copied as it is; one of 8-byte integers is narrowed. Sequences of
    Python ints cost about 45 ns a token: hand over a buffer where prompts are long.
    """
    if isinstance(tokens, bytes):
        packed = tokens
    elif isinstance(tokens, (bytearray, memoryview)) and memoryview(tokens).itemsize == 1:
        packed = bytes(tokens)
    else:
        packed = _pack_numbers(tokens)
    if len(packed) % TOKEN_BYTES:
        raise ConfigError(f"packed tokens take 4 bytes each; got {len(packed)} bytes")
    return packed


def _pack_numbers(tokens: Any) -> bytes:
    if isinstance(tokens, (list, tuple, range)):
        return _pack_ints(tokens)
    try:
        # a torch tensor shares its memory with the array
        view = memoryview(tokens.cpu().numpy() if hasattr(tokens, "numpy") else tokens)
    except TypeError:
        return _pack_ints(tokens)
    except (RuntimeError, ValueError) as error:  # what a tensor or array of other things answers
        raise ConfigError(f"tokens must be integers from 0 to 2**32 - 1: {error}") from error
    if view.ndim != 1:
        raise ConfigError(f"tokens must have one dimension, not {view.ndim}")
    kind = view.format.lstrip("<=@")
    if kind in ("I", "i", "L", "l") and view.itemsize == TOKEN_BYTES and sys.byteorder == "little":
        return view.tobytes()
    if kind in ("q", "Q", "l", "L", "h", "H", "B", "b", "i", "I"):
        return _pack_ints(view.tolist())
    raise ConfigError(f"tokens must be integers, not a buffer of format {view.format!r}")


def _pack_ints(tokens: Iterable[int]) -> bytes:
    try:
        packed = array("I", tokens)
    except (TypeError, OverflowError, ValueError) as error:
        raise ConfigError(f"tokens must be integers from 0 to 2**32 - 1: {error}") from error
    if sys.byteorder != "little":
        packed.byteswap()
    return packed.tobytes()
