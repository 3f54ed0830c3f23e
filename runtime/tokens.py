"""Tokens as engines have them, packed as keys: little-endian uint32 bytes."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError
from ..spec import TOKEN_BYTES

Tokens = bytes | bytearray | Sequence[int] | Any
"""`bytes` and `bytearray` hold packed uint32 ids; anything else holds ids, one an element.

Anything else is a sequence of ints, or a buffer of integers of any width (array, numpy, torch on the
CPU). Every id lies in [0, 2**32).
"""

_UINT32 = ("I", "<I", "L", "<L")

_RANGE = "token ids must be whole numbers from 0 to 2**32 - 1"


def pack(tokens: Tokens) -> bytes:
    """Pack token ids; `bytes` and `bytearray` are taken as packed already.

    Raises ConfigError for what holds no ids, also for a memoryview of single bytes: it could be
    either. Buffers are checked and copied at memory speed; sequences of Python ints cost about 45 ns
    a token, so hand over a buffer where prompts are long.
    """
    if type(tokens) is bytes:
        packed = tokens
    elif isinstance(tokens, (bytes, bytearray)):
        packed = bytes(tokens)
    elif isinstance(tokens, Sequence) and not isinstance(tokens, (memoryview, array)):
        return _pack_sequence(tokens)
    else:
        return _pack_buffer(tokens)
    if len(packed) % TOKEN_BYTES:
        raise ConfigError(f"packed tokens take 4 bytes each; got {len(packed)} bytes")
    return packed


def _pack_sequence(tokens: Sequence[int]) -> bytes:
    try:
        packed = array("I", tokens)
    except (TypeError, OverflowError, ValueError) as error:
        raise ConfigError(f"{_RANGE}: {error}") from error
    if sys.byteorder != "little":
        packed.byteswap()
    return packed.tobytes()


def _pack_buffer(tokens: Any) -> bytes:
    if type(tokens) is memoryview and memoryview(tokens).itemsize == 1:
        raise ConfigError(
            "a memoryview of single bytes may hold packed ids or one id a byte: "
            "cast it to 'I', or hand over bytes(view) or list(view)"
        )
    try:
        # A torch tensor shares its memory with the array.
        view = memoryview(_on_host(tokens) if hasattr(tokens, "numpy") else tokens)
    except (TypeError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"tokens must be bytes, a sequence of ints or a buffer of integers, "
            f"not {type(tokens).__name__}: {error}"
        ) from error
    if view.ndim != 1:
        raise ConfigError(f"tokens must have one dimension, not {view.ndim}")
    if view.format in _UINT32 and view.itemsize == TOKEN_BYTES and sys.byteorder == "little":
        return view.tobytes()
    import numpy as np

    ids = np.asarray(view)
    if ids.dtype.kind not in "iu":
        raise ConfigError(f"{_RANGE}, not elements of type {ids.dtype}")
    if ids.size and not (ids.dtype.kind == "u" and ids.dtype.itemsize <= TOKEN_BYTES):
        least, most = int(ids.min()), int(ids.max())
        if least < 0 or most > 0xFFFFFFFF:
            raise ConfigError(f"{_RANGE}, not {least if least < 0 else most}")
    return ids.astype("<u4", copy=False).tobytes()


def _on_host(tensor: Any) -> Any:
    return tensor.cpu().numpy()
