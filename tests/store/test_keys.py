from __future__ import annotations

import struct

import pytest
from banyankv.errors import ConfigError
from banyankv.spec import Namespace
from banyankv.tiers.store.keys import KeyMaker, chain, chunk_tokens, seed
from hypothesis import given
from hypothesis import strategies as st

# computed by hand with hashlib from the format's description
SEED_PLAIN = "356c1e90402c92f3f88c07d0585dc9c9dbd9eb6fa651cd652aec79768579d5b8"
SEED_TENANT = "98efa5bb24d350a1e49a8039f5cac76562744c755b571bd488fe48673fcbecd0"
CHAIN_0 = "e19422ab87fe7f4255a4fee4b9e9953f4c6a0289d43aebe02540b527483bbba6"
CHAIN_1 = "d758da0d4dc6337dc5a3ca30db1382410c64fd21088dfca947e0f55741abe8bc"
KEY = "4cca594e02c81313125977112bac098be2e9e0d3a017b8561dc3199a58503cd3"
TOKENS = struct.pack("<8I", 1, 2, 3, 4, 5, 6, 7, 0xFFFFFFFF)


@pytest.mark.parametrize(
    ("page_size", "tokens"), [(1, 256), (16, 256), (64, 256), (48, 288), (256, 256), (300, 300)]
)
def test_a_chunk_is_whole_pages(page_size: int, tokens: int) -> None:
    assert chunk_tokens(page_size) == tokens


def test_a_page_size_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="page_size"):
        chunk_tokens(0)


def test_seeds_are_golden() -> None:
    assert seed(Namespace()).hex() == SEED_PLAIN
    assert seed(Namespace(extra_key="lora", salt="tenant")).hex() == SEED_TENANT


def test_a_chain_is_golden() -> None:
    assert [h.hex() for h in chain(seed(Namespace()), TOKENS, 4)] == [CHAIN_0, CHAIN_1]


def test_a_key_is_golden() -> None:
    keys = KeyMaker(b"\x11" * 32, "page-first/1", "0/1")
    for _ in range(2):  # it keeps what the keys of a component have in common
        assert keys.key("full", bytes.fromhex(CHAIN_1)).hex() == KEY


def test_a_key_depends_on_every_field_and_on_where_fields_end() -> None:
    variants = {
        KeyMaker(b"f" * 32, "ab", "c").key("full", b"h" * 32),
        KeyMaker(b"f" * 32, "ab", "c").key("full", b"H" * 32),
        KeyMaker(b"F" * 32, "ab", "c").key("full", b"h" * 32),
        KeyMaker(b"f" * 32, "ab", "c").key("swa", b"h" * 32),
        KeyMaker(b"f" * 32, "a", "bc").key("full", b"h" * 32),
        KeyMaker(b"f" * 32, "b", "c").key("fulla", b"h" * 32),
        KeyMaker(b"f" * 32, "ab", "").key("full", b"h" * 32),
    }
    assert len(variants) == 7


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(1, 9), st.integers(0, 5))
def test_a_chain_can_be_computed_in_parts(tokens: list[int], chunk: int, first: int) -> None:
    packed = struct.pack(f"<{len(tokens)}I", *tokens)
    whole = chain(seed(Namespace()), packed, chunk)
    assert len(whole) == len(tokens) // chunk
    cut = min(first, len(whole))
    head = chain(seed(Namespace()), packed[: cut * chunk * 4], chunk)
    previous = head[-1] if head else seed(Namespace())
    assert head + chain(previous, memoryview(packed)[cut * chunk * 4 :], chunk) == whole


def test_equal_chunks_behind_different_beginnings_differ() -> None:
    one, two = chain(seed(Namespace()), struct.pack("<2I", 5, 5), 1)
    other = chain(seed(Namespace(salt="")), struct.pack("<I", 5), 1)[0]
    assert len({one, two, other}) == 3


def test_torn_tokens_and_foreign_beginnings_are_refused() -> None:
    with pytest.raises(ConfigError, match="4 bytes"):
        chain(seed(Namespace()), b"12345", 1)
    with pytest.raises(ConfigError, match="goes on from"):
        chain(b"short", TOKENS, 1)
    with pytest.raises(ConfigError, match="chunk"):
        chain(seed(Namespace()), TOKENS, 0)
