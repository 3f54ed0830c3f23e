"""Fingerprints: bytes for every page and state that tell whose they are.

The content of a page is a function of the model, the namespace, the component, the layer and *all*
tokens from the start of the prompt to the page's end; of a state likewise. So a page that is served
for any other prefix, component or layer, torn or shifted, differs in what it holds.

    prefix hash   h(i) = mix(seed, sum over k <= i of mix(k, multilinear hash of page k's tokens))
    bytes         eight at a time: word w of a layer = h xor a constant of (component, layer, w)

The sum in place of a chain is what makes the prefix hash one vectorised pass: pages are salted with
their position, so an order cannot hide in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..spec import ComponentSpec, ModelSpec, Namespace, PagedSpec

Hashes = NDArray[np.uint64]
Pages = NDArray[np.int32]
Raw = NDArray[np.uint8]
"""One layer's (or state tensor's) pool as bytes: [pages, bytes of a page]."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SLICE_BYTES = 1 << 18
"""Work on so much at a time: the expected bytes then stay in the processor's cache."""


def _mix(x: Hashes) -> Hashes:
    """Scramble in place (the finaliser of splitmix64: a bijection in which every bit counts)."""
    scratch = np.empty_like(x)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        np.right_shift(x, np.uint64(shift), out=scratch)
        np.bitwise_xor(x, scratch, out=x)
        np.multiply(x, np.uint64(factor), out=x)
    np.right_shift(x, np.uint64(31), out=scratch)
    return np.bitwise_xor(x, scratch, out=x)


def _constants(*what: bytes, count: int) -> Hashes:
    digest = hashlib.sha256(b"\0".join(what)).digest()
    generator = np.random.default_rng(np.frombuffer(digest, np.uint32))
    return generator.integers(0, 2**64, size=count, dtype=np.uint64)


class Fingerprints:
    """What every page and state of one model and namespace must hold.

    Pools are given as `raw`: one uint8 array [pages, bytes] a layer (a state tensor). Nothing is kept
    of what is written or checked.
    """

    def __init__(self, model: ModelSpec, namespace: Namespace) -> None:
        self.page_size = model.page_size
        identity = model.fingerprint()
        self._seed = _constants(identity, namespace.encode(), count=1)[0]
        self._factors = _constants(identity, b"tokens", count=model.page_size) | np.uint64(1)
        self._salts = {
            component.name: [
                _constants(identity, component.name.encode(), b"%d" % layer, count=-(-size // 8))
                for layer, size in enumerate(_layer_bytes(component, model.page_size))
            ]
            for component in model.components
        }

    def prefixes(self, tokens: NDArray[np.uint32]) -> Hashes:
        """Hash the prefix up to and including each page; the last page may be a partial one."""
        size = self.page_size
        count = -(-len(tokens) // size)
        padded = np.zeros(count * size, np.uint64)
        padded[: len(tokens)] = tokens
        hashes = padded.reshape(count, size) @ self._factors
        hashes += np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        hashes = np.add.accumulate(_mix(hashes))
        hashes ^= self._seed
        return _mix(hashes)

    def write(self, component: str, raw: Sequence[Raw], pages: Pages, prefixes: Hashes) -> None:
        """Fill `pages` (each once) with what their prefixes call for, in all layers."""
        for pool, salt in zip(raw, self._salts[component], strict=True):
            width = pool.shape[1]
            step = max(1, _SLICE_BYTES // width)
            for low in range(0, len(pages), step):
                part = slice(low, low + step)
                pool[pages[part]] = _expected(prefixes[part], salt, width)

    def wrong(
        self, component: str, raw: Sequence[Raw], pages: Pages, prefixes: Hashes
    ) -> NDArray[np.intp]:
        """Compare every byte of `pages`; give the indices into `pages` of those that differ."""
        good = np.ones(len(pages), np.bool_)
        for pool, salt in zip(raw, self._salts[component], strict=True):
            width = pool.shape[1]
            step = max(1, _SLICE_BYTES // width)
            for low in range(0, len(pages), step):
                part = slice(low, low + step)
                expected = _expected(prefixes[part], salt, width)
                found = pool.take(pages[part], axis=0)
                if not np.array_equal(found, expected):
                    good[part] &= (found == expected).all(axis=1)
        return np.flatnonzero(~good)


def _expected(prefixes: Hashes, salt: Hashes, width: int) -> Raw:
    words = np.bitwise_xor(prefixes[:, None], salt)
    return words.view(np.uint8)[:, :width]


def _layer_bytes(component: ComponentSpec, page_size: int) -> list[int]:
    if isinstance(component, PagedSpec):
        return [component.token_bytes // component.layers * page_size] * component.layers
    return [tensor.nbytes for tensor in component.states]
