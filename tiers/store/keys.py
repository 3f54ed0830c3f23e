"""Names of L3 objects: a hash chain over chunks of tokens, and the key made from it.

A chain hash stands for a whole prefix, in one namespace: equal tokens of two namespaces, or behind
two different beginnings, never share one. The key adds everything else that the bytes depend on.
"""

from __future__ import annotations

from hashlib import sha256

from ...errors import ConfigError
from ...spec import TOKEN_BYTES, Namespace

CHAIN_BYTES = 32
"""Length of a chain hash."""

KEY_BYTES = 32
"""Length of an object key, whatever goes into it."""

_CHUNK_TOKENS = 256
_NAMESPACE_DOMAIN = b"banyankv-namespace-v1"
_OBJECT_DOMAIN = b"banyankv-object-v1"


def chunk_tokens(page_size: int) -> int:
    """Count the tokens of a chunk: 256, rounded up to a multiple of the page size.

    Raises `ConfigError` for a page size below 1.
    """
    if page_size < 1:
        raise ConfigError(f"page_size must be at least 1 token, not {page_size}")
    return -(-_CHUNK_TOKENS // page_size) * page_size


def seed(namespace: Namespace) -> bytes:
    """Start a namespace's chains: what stands before a first chunk."""
    return encoded_seed(namespace.encode())


def encoded_seed(namespace: bytes) -> bytes:
    """Start the chains of a namespace that is encoded already."""
    return sha256(_NAMESPACE_DOMAIN + namespace).digest()


def chain(previous: bytes, tokens: bytes | memoryview, chunk: int) -> list[bytes]:
    """Hash each whole chunk of `tokens` (packed uint32-LE) together with all that is before it.

    `previous` is the namespace's `seed`, or the chain hash of the chunk before `tokens`. One hash a
    chunk of `chunk` tokens, in order; what is left over behind the last whole chunk has none.
    Raises `ConfigError` for a `previous` that is no chain hash and for torn tokens.
    """
    if len(previous) != CHAIN_BYTES:
        raise ConfigError(f"a chain goes on from {CHAIN_BYTES} bytes, not from {len(previous)}")
    if chunk < 1:
        raise ConfigError(f"a chunk must hold at least 1 token, not {chunk}")
    view = memoryview(tokens).cast("B")
    if len(view) % TOKEN_BYTES:
        raise ConfigError(f"packed tokens take 4 bytes each; {len(view)} bytes were given")
    width = chunk * TOKEN_BYTES
    hashes: list[bytes] = []
    for offset in range(0, len(view) - width + 1, width):
        digest = sha256(previous)
        digest.update(view[offset : offset + width])
        previous = digest.digest()
        hashes.append(previous)
    return hashes


class KeyMaker:
    """Object keys of one model, layout and shard.

    `layout` names how a body's bytes are arranged and `shard` which part of the model they are (of
    a tensor-parallel rank, say): bytes of two layouts or shards are different objects.
    """

    def __init__(self, fingerprint: bytes, layout: str, shard: str) -> None:
        self._fingerprint = fingerprint
        self._rest = _framed(layout.encode()) + _framed(shard.encode())
        self._tails: dict[str, bytes] = {}

    def key(self, component: str, chain_hash: bytes) -> bytes:
        """Name the object of `component` for the prefix `chain_hash`: 32 bytes."""
        tail = self._tails.get(component)
        if tail is None:
            name = _framed(component.encode())
            tail = self._tails[component] = _framed(self._fingerprint) + name + self._rest
        return sha256(_OBJECT_DOMAIN + _framed(chain_hash) + tail).digest()


def _framed(field: bytes) -> bytes:
    """Put the length (u32-LE) before a field, so that no two lists of fields look alike."""
    return len(field).to_bytes(4, "little") + field
