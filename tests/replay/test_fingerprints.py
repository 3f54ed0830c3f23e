"""Fingerprints: a function of everything before, and every byte of it counts."""

import numpy as np
import pytest
from banyankv.replay.fingerprints import Fingerprints
from banyankv.spec import ModelSpec, Namespace, PagedSpec, SnapshotSpec, StateTensor
from hypothesis import given
from hypothesis import strategies as st

TINY = ModelSpec(
    name="tiny",
    page_size=4,
    components=(
        PagedSpec(name="full", layers=2, head_dim=3, dtype="uint8"),
        PagedSpec(name="swa", rule="swa", window=8, layers=2, head_dim=3, dtype="uint8"),
        SnapshotSpec(states=(StateTensor("conv", (5,), "int8"), StateTensor("ssm", (3,)))),
    ),
)
RAW = {"full": (24, 24), "swa": (24, 24), "mamba": (5, 12)}


def pools(component, pages=16):
    return [np.zeros((pages, width), np.uint8) for width in RAW[component]]


def content(fingerprints, component, tokens):
    """All bytes that the pages of `tokens` must hold, one row a page."""
    prefixes = fingerprints.prefixes(np.asarray(tokens, np.uint32))
    raw = pools(component, len(prefixes))
    fingerprints.write(component, raw, np.arange(len(prefixes), dtype=np.int32), prefixes)
    return np.concatenate(raw, axis=1)


@pytest.mark.parametrize("component", RAW)
def test_what_was_written_is_right_and_any_flipped_bit_is_not(component):
    fingerprints = Fingerprints(TINY, Namespace())
    prefixes = fingerprints.prefixes(np.arange(20, dtype=np.uint32))
    pages = np.array([7, 2, 11, 3, 5], np.int32)
    raw = pools(component)
    fingerprints.write(component, raw, pages, prefixes)
    assert fingerprints.wrong(component, raw, pages, prefixes).tolist() == []
    for pool in raw:
        for index, page in enumerate(pages):
            for byte in range(pool.shape[1]):
                pool[page, byte] ^= 1
                assert fingerprints.wrong(component, raw, pages, prefixes).tolist() == [index]
                pool[page, byte] ^= 1
    untouched = [p for p in range(16) if p not in pages]
    assert not any(pool[untouched].any() for pool in raw)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=24),
    st.lists(st.integers(0, 2), min_size=1, max_size=24),
)
def test_pages_are_equal_exactly_where_prefixes_are(left, right):
    fingerprints = Fingerprints(TINY, Namespace())
    a = fingerprints.prefixes(np.array(left, np.uint32))
    b = fingerprints.prefixes(np.array(right, np.uint32))
    for page in range(min(len(left), len(right)) // 4):
        end = (page + 1) * 4
        assert (a[page] == b[page]) == (left[:end] == right[:end])


def test_a_prefix_hash_does_not_depend_on_what_follows():
    fingerprints = Fingerprints(TINY, Namespace())
    tokens = np.random.default_rng(1).integers(0, 2**32, 4096, np.uint32)
    whole = fingerprints.prefixes(tokens)
    assert len(set(whole.tolist())) == 1024
    assert (fingerprints.prefixes(tokens[:400]) == whole[:100]).all()
    tokens[399] += np.uint32(1)
    changed = fingerprints.prefixes(tokens)
    assert (changed[:99] == whole[:99]).all()
    assert (changed[99:] != whole[99:]).all()


def test_swapped_tokens_and_swapped_pages_are_told_apart():
    fingerprints = Fingerprints(TINY, Namespace())
    last = {
        int(fingerprints.prefixes(np.array(tokens, np.uint32))[-1])
        for tokens in ([1, 2, 3, 4, 5, 6, 7, 8], [2, 1, 3, 4, 5, 6, 7, 8], [5, 6, 7, 8, 1, 2, 3, 4])
    }
    assert len(last) == 3


def test_model_namespace_component_and_layer_all_count():
    tokens = np.arange(64)
    other = ModelSpec(name="other", page_size=4, components=TINY.components)
    here = Fingerprints(TINY, Namespace())
    rows = {
        "base": content(here, "full", tokens),
        "component": content(here, "swa", tokens),
        "namespace": content(Fingerprints(TINY, Namespace(salt="")), "full", tokens),
        "model": content(Fingerprints(other, Namespace()), "full", tokens),
    }
    layers = np.concatenate([np.split(r, 2, axis=1) for r in rows.values()]).reshape(-1, 16, 24)
    distinct = {layer[page].tobytes() for layer in layers for page in range(16)}
    assert len(distinct) == len(rows) * 2 * 16


def test_long_prompts_are_checked_in_slices_with_the_same_answer():
    wide = ModelSpec(name="wide", page_size=1, components=(PagedSpec(name="full", head_dim=4096),))
    fingerprints = Fingerprints(wide, Namespace())
    prefixes = fingerprints.prefixes(np.arange(100, dtype=np.uint32))
    raw = [np.zeros((100, 16384), np.uint8)]
    pages = np.random.default_rng(2).permutation(100).astype(np.int32)
    fingerprints.write("full", raw, pages, prefixes)
    assert not len(fingerprints.wrong("full", raw, pages, prefixes))
    raw[0][pages[[3, 98]], 16383] ^= 255
    assert fingerprints.wrong("full", raw, pages, prefixes).tolist() == [3, 98]


def test_prefix_hashes_are_pinned():
    # A store outlives a version: what a prefix hashes to must stay what it is.
    hashes = Fingerprints(TINY, Namespace()).prefixes(np.arange(8, dtype=np.uint32))
    assert hashes.tolist() == [9671703931808630114, 2826669796862977330]
