from __future__ import annotations

import pytest
from banyankv.errors import ConfigError, IntegrityError
from banyankv.tiers.store.objects import FIXED_BYTES, BadObject, Header, decode, encode, select
from banyankv.tiers.store.protocol import MissReason
from hypothesis import example, given
from hypothesis import strategies as st

HEADER = Header("full", b"F" * 16, b"C" * 32, 256, 288, 16, 1_700_000_000)
BODY = b"abcdef"
GOLDEN = (
    "424e594b0100040010000000"  # magic, version, name, page size
    "46464646464646464646464646464646"  # fingerprint
    "4343434343434343434343434343434343434343434343434343434343434343"  # chain
    "000100002001000000f1536500000000"  # start, end, written
    "0600000000000000"  # body length
    "15ddf1fed0712fc2d0616f1236f4d5a6"  # checksum
    "66756c6c616263646566"  # name, body
)


def reason(data: bytes, wanted: Header = HEADER) -> MissReason:
    with pytest.raises(IntegrityError) as caught:
        select(data, wanted)
    assert isinstance(caught.value, BadObject)
    return caught.value.reason


def test_an_object_is_golden() -> None:
    assert encode(HEADER, BODY).hex() == GOLDEN


def test_a_golden_object_can_be_read() -> None:
    header, body = decode(bytes.fromhex(GOLDEN))
    assert header == HEADER
    assert bytes(body) == BODY


@given(st.data(), st.binary(max_size=200), st.text(max_size=8))
def test_what_is_encoded_is_decoded(data: st.DataObject, body: bytes, name: str) -> None:
    number = st.integers(0, 2**32 - 1)
    header = Header(
        name,
        data.draw(st.binary(min_size=16, max_size=16)),
        data.draw(st.binary(min_size=32, max_size=32)),
        *(data.draw(number) for _ in range(4)),
    )
    found, content = decode(encode(header, body))
    assert found == header
    assert bytes(content) == body


@given(st.integers(0, FIXED_BYTES + 10 - 1), st.integers(1, 255))
@example(0, 1)
@example(FIXED_BYTES, 1)
def test_any_changed_byte_is_found(position: int, flip: int) -> None:
    data = bytearray(encode(HEADER, BODY))
    data[position] ^= flip
    with pytest.raises(BadObject):
        decode(bytes(data))


@given(st.integers(0, FIXED_BYTES + 9))
def test_any_shorter_object_is_found(length: int) -> None:
    assert reason(encode(HEADER, BODY)[:length]) is MissReason.SHORT


def test_more_bytes_than_the_header_says_are_found() -> None:
    assert reason(encode(HEADER, BODY) + b"x") is MissReason.SHORT


def test_each_difference_has_its_reason() -> None:
    good = encode(HEADER, BODY)
    assert reason(b"JUNK" + good[4:]) is MissReason.NO_OBJECT
    assert reason(good[:4] + b"\x02\x00" + good[6:]) is MissReason.VERSION
    assert reason(good[:-1] + b"X") is MissReason.CHECKSUM
    assert reason(good, HEADER._replace(fingerprint=b"G" * 16)) is MissReason.FOREIGN_MODEL
    assert reason(good, HEADER._replace(page_size=8)) is MissReason.FOREIGN_MODEL
    assert reason(good, HEADER._replace(component="swa")) is MissReason.FOREIGN_COMPONENT
    assert reason(good, HEADER._replace(chain=b"D" * 32)) is MissReason.FOREIGN_CHAIN


def test_pages_inside_an_object_can_be_selected() -> None:
    assert bytes(select(encode(HEADER, BODY), HEADER._replace(start=272))) == b"def"
    assert bytes(select(encode(HEADER, BODY), HEADER._replace(end=272))) == b"abc"
    assert bytes(select(encode(HEADER, BODY), HEADER._replace(written=0))) == BODY


@pytest.mark.parametrize(
    ("start", "end"), [(240, 288), (256, 304), (264, 288), (256, 280), (272, 272), (288, 256)]
)
def test_a_range_that_an_object_does_not_cover_is_a_miss(start: int, end: int) -> None:
    wanted = HEADER._replace(start=start, end=end)
    assert reason(encode(HEADER, BODY), wanted) is MissReason.RANGE


def test_a_snapshot_serves_its_own_boundary_only() -> None:
    header = HEADER._replace(component="mamba", start=288)
    data = encode(header, BODY)
    assert bytes(select(data, header)) == BODY
    assert reason(data, header._replace(start=272, end=272)) is MissReason.RANGE
    assert reason(data, header._replace(start=272)) is MissReason.RANGE


def test_a_body_that_is_not_whole_pages_is_not_cut() -> None:
    data = encode(HEADER, b"abcde")
    assert reason(data, HEADER._replace(start=272)) is MissReason.RANGE


def test_fields_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError):
        encode(HEADER._replace(fingerprint=b"short"), BODY)
    with pytest.raises(ConfigError):
        encode(HEADER._replace(end=2**32), BODY)
