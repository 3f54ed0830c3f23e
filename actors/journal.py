"""The journal: every message and answer of a system, in order, as bytes that can be read again.

A file is the magic and a version byte, then frames: a length (4 bytes, big-endian), a kind byte, and
the body. A `R` frame is one record in msgpack; a `B` frame holds a payload of 64 bytes or more, once,
behind its SHA-256 digest, by which records name it (extension type 1).
"""

from __future__ import annotations

import enum
import hashlib
import io
import math
import struct
from collections.abc import Sequence
from typing import Any, BinaryIO, cast

import msgspec
import trio

from ..errors import ConfigError, IntegrityError
from .observer import Trace

MAGIC = b"BKVJ"
VERSION = 1
BLOB_BYTES = 64
"""Payloads of this length or more are stored once, by digest."""

_BLOB = 1
_OPAQUE = 2
_HEAD = struct.Struct(">IB")


class RecordKind(enum.StrEnum):
    """What a record tells."""

    ASK = "ask"
    CALL = "call"
    TELL = "tell"
    CONTROL = "control"
    ANSWERED = "answered"
    REFUSED = "refused"
    CRASHED = "crashed"
    LEFT = "left"


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One message, answer or departure. Times are microseconds since the system was opened.

    `sender` is empty for a message from outside the system. `of` is the `seq` of the message that an
    answer or departure belongs to, 0 for a message. `deadline` is -1 where there is none.
    """

    seq: int
    at: int
    kind: RecordKind
    sender: str
    receiver: str
    type: str
    of: int
    deadline: int
    trace: Trace | None
    body: Any


class Journal:
    """Writes a system's records to a file; where none is given, to memory, to be read by `bytes`."""

    def __init__(self, file: BinaryIO | None = None) -> None:
        self._memory = io.BytesIO()
        self._file = self._memory if file is None else file
        self._known: set[bytes] = set()
        self._encoder = msgspec.msgpack.Encoder()
        self._opened = -math.inf
        self.records = 0
        self._file.write(MAGIC + bytes([VERSION]))

    def __repr__(self) -> str:
        return f"<Journal of {self.records} records>"

    def __bytes__(self) -> bytes:
        if self._file is not self._memory:
            raise ConfigError("this journal is in its file")
        return self._memory.getvalue()

    def begin(self) -> None:
        """Count time from now. Raises ConfigError when the journal is another system's already."""
        if self._opened != -math.inf:
            raise ConfigError("this journal belongs to a system already: give each one its own")
        self._opened = trio.current_time()

    def message(
        self,
        kind: RecordKind,
        sender: str,
        receiver: str,
        msg: Any,
        *,
        trace: Trace | None,
        deadline: float,
    ) -> int:
        """Record a message and return its number. Raises ConfigError when it is not of plain values."""
        try:
            body = self._plain(msgspec.to_builtins(msg, builtin_types=(bytes,)))
        except TypeError as error:
            raise ConfigError(
                f"{type(msg).__qualname__} cannot be journalled: {error}; messages are made of plain "
                f"values"
            ) from error
        limit = -1 if deadline == math.inf else self._micros(deadline)
        name = type_name(type(msg))
        return self._append(kind, sender, receiver, name, of=0, limit=limit, trace=trace, body=body)

    def outcome(
        self, kind: RecordKind, receiver: str, of: int, value: Any, *, sender: str = ""
    ) -> None:
        """Record what became of a message. An answer that is not of plain values leaves its type only."""
        try:
            body = self._plain(msgspec.to_builtins(value, builtin_types=(bytes,)))
        except TypeError:
            body = msgspec.msgpack.Ext(_OPAQUE, type_name(type(value)).encode())
        name = type_name(type(value))
        self._append(kind, sender, receiver, name, of=of, limit=-1, trace=None, body=body)

    def _append(
        self,
        kind: RecordKind,
        sender: str,
        receiver: str,
        name: str,
        *,
        of: int,
        limit: int,
        trace: Trace | None,
        body: Any,
    ) -> int:
        self.records += 1
        at = self._micros(trio.current_time())
        record = Record(self.records, at, kind, sender, receiver, name, of, limit, trace, body)
        self._frame(b"R", self._encoder.encode(record))
        return self.records

    def _micros(self, time: float) -> int:
        return round((time - self._opened) * 1e6)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return self._blob(value) if len(value) >= BLOB_BYTES else value
        if isinstance(value, dict):
            pairs: dict[Any, Any] = value  # pyright: ignore[reportUnknownVariableType] - mypy knows
            return {self._plain(key): self._plain(item) for key, item in pairs.items()}
        if isinstance(value, list | tuple):
            return [self._plain(item) for item in cast("Sequence[Any]", value)]
        return value

    def _blob(self, payload: bytes) -> msgspec.msgpack.Ext:
        digest = hashlib.sha256(payload).digest()
        if digest not in self._known:
            self._known.add(digest)
            self._frame(b"B", digest + payload)
        return msgspec.msgpack.Ext(_BLOB, digest)

    def _frame(self, kind: bytes, body: bytes) -> None:
        self._file.write(_HEAD.pack(len(body), kind[0]) + body)


def type_name(kind: type) -> str:
    """Name a message type, as it is registered by the handlers of its receiver."""
    return f"{kind.__module__}.{kind.__qualname__}"


def read_journal(data: bytes) -> list[Record]:
    """Read a journal's records, payloads put back in their places.

    Raises IntegrityError when it is no journal of this version, cut short, or a payload does not have
    its digest.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise IntegrityError("not a journal: the magic is missing")
    if data[len(MAGIC) : len(MAGIC) + 1] != bytes([VERSION]):
        raise IntegrityError(f"not a journal of version {VERSION}")
    blobs: dict[bytes, bytes] = {}

    def restore(code: int, payload: memoryview) -> Any:
        if code != _BLOB:
            return msgspec.msgpack.Ext(code, bytes(payload))
        digest = bytes(payload)
        if digest not in blobs:
            raise IntegrityError(f"the journal names payload {digest.hex()[:16]} without having it")
        return blobs[digest]

    decoder = msgspec.msgpack.Decoder(Record, ext_hook=restore)
    records: list[Record] = []
    position = len(MAGIC) + 1
    while position < len(data):
        if position + _HEAD.size > len(data):
            raise IntegrityError("the journal is cut short")
        length, kind = _HEAD.unpack_from(data, position)
        position += _HEAD.size
        body = data[position : position + length]
        if len(body) < length:
            raise IntegrityError("the journal is cut short")
        position += length
        if kind == ord("R"):
            records.append(decoder.decode(body))
            continue
        digest, payload = body[:32], body[32:]
        if kind != ord("B") or hashlib.sha256(payload).digest() != digest:
            raise IntegrityError(f"frame {kind} at {position - length} of the journal is damaged")
        blobs[digest] = payload
    return records
