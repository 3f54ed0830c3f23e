"""The format of an L3 object: a header that says what it is, a checksum, and pages of bytes.

Little-endian, in this order::

    magic "BNYK" | version u16 | length of component name u16 | page size u32 (tokens)
    model fingerprint, first 16 bytes | chain hash, 32 bytes | start u32 | end u32 (tokens)
    written u64 (seconds since 1970) | body length u64
    checksum, 16 bytes | component name, UTF-8 | body

The body is the pages of tokens [start, end), page-first, one behind the other; a snapshot has
start == end, its boundary, and its state as the body. The checksum is the head of the SHA-256 of
everything else. A CRC would find a torn write, but would let one corruption in 2**32 through and is
linear: bytes that belong to another object could be made to fit. SHA-256 is the fastest strong hash
that the standard library has on processors with SHA instructions (1.0-1.6 GB/s where it was
measured, against 0.5-0.8 of BLAKE2b), and it lets other threads run meanwhile.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import NamedTuple

from ...errors import ConfigError, IntegrityError
from .protocol import MissReason

MAGIC = b"BNYK"
VERSION = 1
FINGERPRINT_BYTES = 16

_HEAD = struct.Struct("<4sHHI16s32sIIQQ")
_CHECKSUM_BYTES = 16
FIXED_BYTES = _HEAD.size + _CHECKSUM_BYTES
"""Bytes in front of the component's name."""


class BadObject(IntegrityError):
    """An object is not what its key promised; `reason` says in what way."""

    def __init__(self, reason: MissReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Header(NamedTuple):
    """What an object says of itself; 16 bytes of `fingerprint`, `written` in seconds since 1970."""

    component: str
    fingerprint: bytes
    chain: bytes
    start: int
    end: int
    page_size: int
    written: int


def encode(header: Header, body: bytes | memoryview) -> bytes:
    """Make one object. `body` is copied; raises `ConfigError` for fields that do not fit."""
    name = header.component.encode()
    view = memoryview(body).cast("B")
    try:
        head = _HEAD.pack(
            MAGIC,
            VERSION,
            len(name),
            header.page_size,
            _exactly(header.fingerprint, FINGERPRINT_BYTES),
            _exactly(header.chain, 32),
            header.start,
            header.end,
            header.written,
            len(view),
        )
    except struct.error as error:
        raise ConfigError(
            f"object of {header.component!r} does not fit its header: {error}"
        ) from None
    return b"".join((head, _checksum(head, name, view), name, view))


def decode(data: bytes | memoryview) -> tuple[Header, memoryview]:
    """Take one object apart: its header and its body, a view into `data`.

    Everything is checked that can be checked without knowing what was wanted, the checksum too.
    Raises `BadObject`.
    """
    view = memoryview(data).cast("B")
    if len(view) < FIXED_BYTES:
        raise BadObject(MissReason.SHORT, f"{len(view)} bytes are no header ({FIXED_BYTES})")
    head = view[: _HEAD.size]
    magic, version, name_bytes, page_size, fingerprint, chain, start, end, written, length = (
        _HEAD.unpack(head)
    )
    if magic != MAGIC:
        raise BadObject(MissReason.NO_OBJECT, f"magic is {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise BadObject(MissReason.VERSION, f"format version is {version}, not {VERSION}")
    body_at = FIXED_BYTES + name_bytes
    if len(view) != body_at + length:
        raise BadObject(
            MissReason.SHORT, f"object has {len(view)} bytes, its header says {body_at + length}"
        )
    name, body = view[FIXED_BYTES:body_at], view[body_at:]
    if view[_HEAD.size : FIXED_BYTES] != _checksum(head, name, body):
        raise BadObject(MissReason.CHECKSUM, "checksum does not match header and body")
    component = bytes(name).decode(errors="replace")
    return Header(component, fingerprint, chain, start, end, page_size, written), body


def select(data: bytes | memoryview, wanted: Header) -> memoryview:
    """Verify an object against what was wanted of it and give the body of the wanted range.

    The object may cover more tokens than [wanted.start, wanted.end): then the pages of that range
    are cut out of its body. A snapshot's boundary must be the very one. `wanted.written` is not
    compared. The result is a view into `data`. Raises `BadObject`.
    """
    found, body = decode(data)
    if found.fingerprint != wanted.fingerprint or found.page_size != wanted.page_size:
        raise BadObject(MissReason.FOREIGN_MODEL, "object belongs to another model")
    if found.component != wanted.component:
        raise BadObject(
            MissReason.FOREIGN_COMPONENT,
            f"object is of component {found.component!r}, not {wanted.component!r}",
        )
    if found.chain != wanted.chain:
        raise BadObject(MissReason.FOREIGN_CHAIN, "object stands for another prefix")
    if (found.start, found.end) == (wanted.start, wanted.end):
        return body
    size = wanted.page_size
    pages = (found.end - found.start) // size
    first, last = wanted.start - found.start, wanted.end - found.start
    inside = 0 <= first < last <= found.end - found.start
    if not inside or first % size or last % size or len(body) % pages:
        raise BadObject(
            MissReason.RANGE,
            f"object covers tokens [{found.start}, {found.end}), "
            f"wanted were [{wanted.start}, {wanted.end})",
        )
    page_bytes = len(body) // pages
    return body[first // size * page_bytes : last // size * page_bytes]


def _checksum(head: bytes | memoryview, name: bytes | memoryview, body: memoryview) -> bytes:
    digest = sha256(head)
    digest.update(name)
    digest.update(body)
    return digest.digest()[:_CHECKSUM_BYTES]


def _exactly(value: bytes, length: int) -> bytes:
    # struct would cut or pad in silence
    if len(value) != length:
        raise ConfigError(f"an object's header takes {length} bytes here, not {len(value)}")
    return value
