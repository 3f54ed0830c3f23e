"""What a model needs cached, and where the bytes may be: plain values, checked when made.

Everything here is frozen and hashable, so that a specification can be a dictionary key, go into a
message and be digested into the model's fingerprint.
"""

from __future__ import annotations

import enum
import hashlib
import math
from typing import Final

import msgspec

from .errors import ConfigError

TOKEN_BYTES: Final = 4
"""Bytes of one token in packed tokens: little-endian uint32."""

PAGE_ID_BYTES: Final = 4
"""Bytes of one page id in a page list: little-endian int32."""

PageList = bytes
"""Page ids, packed little-endian int32."""


class Tier(enum.IntEnum):
    """Where bytes are: L1 on the device, L2 in host memory, L3 in an external store."""

    L1 = 0
    L2 = 1
    L3 = 2


DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
}


def _at_least(least: int, where: str, **values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{where}: {name} must be a whole number, not {value!r}")
        if value < least:
            raise ConfigError(f"{where}: {name} must be at least {least}, not {value}")


def _text(where: str, **values: object) -> None:
    for name, value in values.items():
        try:
            if not isinstance(value, str) or not value.encode():
                raise ConfigError(f"{where}: {name} must be a text, not {value!r}")
        except UnicodeEncodeError as error:
            raise ConfigError(f"{where}: {name} must be valid Unicode: {error}") from error


def _known_dtype(where: str, dtype: object) -> None:
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise ConfigError(f"{where}: dtype {dtype!r} is not one of {', '.join(DTYPE_BYTES)}")


class PagedSpec(msgspec.Struct, frozen=True, kw_only=True, tag="paged", forbid_unknown_fields=True):
    """A component whose payload is one slice of KV for every token.

    `rule` names the component rule (`full`, `swa`, `chunked`, or one passed to `open_cache`);
    `window` is its parameter in tokens: the window W of `swa`, the chunk C of `chunked`, 0 for `full`.
    `tensors` is 2 for keys and values, 1 for a latent that serves as both.
    """

    name: str
    rule: str = "full"
    window: int = 0
    layers: int = 1
    kv_heads: int = 1
    head_dim: int = 1
    tensors: int = 2
    dtype: str = "float16"

    def __post_init__(self) -> None:
        where = f"component {self.name!r}"
        _text(where, name=self.name, rule=self.rule)
        _at_least(0, where, window=self.window)
        _at_least(
            1,
            where,
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            tensors=self.tensors,
        )
        _known_dtype(where, self.dtype)
        if self.rule in ("swa", "chunked") and self.window < 1:
            raise ConfigError(f"{where}: rule {self.rule!r} needs window >= 1 (tokens)")

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes, all layers together."""
        per_layer = self.tensors * self.kv_heads * self.head_dim
        return self.layers * per_layer * DTYPE_BYTES[self.dtype]


class StateTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of a recurrent state, as it is for one sequence (no batch dimension)."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        where = f"state tensor {self.name!r}"
        _text(where, name=self.name)
        _known_dtype(where, self.dtype)
        if not isinstance(self.shape, tuple):
            raise ConfigError(
                f"{where}: shape must be a tuple of whole numbers, not {self.shape!r}"
            )
        for extent in self.shape:
            _at_least(1, where, shape=extent)

    @property
    def nbytes(self) -> int:
        """Bytes of this tensor for one state."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


class SnapshotSpec(
    msgspec.Struct, frozen=True, kw_only=True, tag="snapshot", forbid_unknown_fields=True
):
    """A component whose payload is one recurrent state, taken at exactly one boundary."""

    name: str = "mamba"
    rule: str = "mamba"
    states: tuple[StateTensor, ...]

    def __post_init__(self) -> None:
        where = f"component {self.name!r}"
        _text(where, name=self.name, rule=self.rule)
        tensors = isinstance(self.states, tuple) and self.states
        if not tensors or not all(isinstance(state, StateTensor) for state in self.states):
            raise ConfigError(f"{where}: states must be a tuple of at least one StateTensor")

    @property
    def state_bytes(self) -> int:
        """Bytes of one state, all tensors together."""
        return sum(tensor.nbytes for tensor in self.states)


ComponentSpec = PagedSpec | SnapshotSpec


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model: its name, its page size in tokens and the components that make up its cache.

    The first component must be the FULL one: it is what gives every node of the tree a payload.
    Raises `ConfigError` for anything that could not be served.
    """

    name: str
    page_size: int = 16
    components: tuple[ComponentSpec, ...]

    def __post_init__(self) -> None:
        where = f"model {self.name!r}"
        _text(where, name=self.name)
        _at_least(1, where, page_size=self.page_size)
        if not isinstance(self.components, tuple) or not all(
            isinstance(component, (PagedSpec, SnapshotSpec)) for component in self.components
        ):
            raise ConfigError(f"{where}: components must be a tuple of PagedSpec and SnapshotSpec")
        names = [c.name for c in self.components]
        if len(set(names)) != len(names):
            raise ConfigError(f"{where}: two components share a name: {names}")
        if not self.components or self.components[0].rule != "full":
            raise ConfigError(f"{where}: the first component must have rule 'full'")
        for name in names:
            if not name.isidentifier():
                raise ConfigError(f"{where}: component name {name!r} must be an identifier")

    def page_bytes(self, component: ComponentSpec) -> int:
        """Bytes of one page of `component`: P tokens of a paged one, one state of a snapshot."""
        if isinstance(component, PagedSpec):
            return component.token_bytes * self.page_size
        return component.state_bytes

    def fingerprint(self) -> bytes:
        """Digest everything that the bytes depend on (SHA-256 of the canonical msgpack)."""
        return hashlib.sha256(msgspec.msgpack.encode(self, order="deterministic")).digest()


class Namespace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What separates equal tokens: adapter, salt, tokenizer, and whatever the engine adds.

    `None` and `""` differ, and so do `("a", "bc")` and `("ab", "c")`: fields are length-framed.
    """

    extra_key: str | None = None
    salt: str | None = None

    def encode(self) -> bytes:
        """Frame the fields: 0x00 for None, else 0x01, the length as u64-LE and the UTF-8 bytes."""
        out = bytearray()
        for field in (self.extra_key, self.salt):
            if field is None:
                out += b"\x00"
            else:
                data = field.encode()
                out += b"\x01" + len(data).to_bytes(8, "little") + data
        return bytes(out)
