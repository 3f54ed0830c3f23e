from __future__ import annotations

import struct
from collections import OrderedDict

import pytest
from banyankv.tiers.store.recency import ENTRY_BYTES, Pages, Recency, pack_changes
from hypothesis import given
from hypothesis import strategies as st

PAGES = Pages(4096)
KEYS = [bytes([n]) * 32 for n in range(8)]
OPERATION = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(KEYS), st.integers(0, 20000)),
    st.tuples(st.just("use"), st.sampled_from(KEYS), st.just(0)),
    st.tuples(st.just("drop"), st.sampled_from(KEYS), st.just(0)),
    st.tuples(st.just("flush"), st.just(KEYS[0]), st.just(0)),
)


@pytest.mark.parametrize(("length", "pages"), [(4080, 1), (4081, 2), (4096 * 4 - 16, 4)])
def test_large_objects_take_whole_pages(length: int, pages: int) -> None:
    assert PAGES.cost(length) == pages * 4096 + 96


def test_small_objects_share_pages() -> None:
    assert PAGES.cost(100) < 500


@given(st.lists(OPERATION, max_size=40))
def test_order_and_total_are_those_of_a_dictionary_and_records_give_them_back(
    operations: list[tuple[str, bytes, int]],
) -> None:
    recency = Recency(PAGES)
    model: OrderedDict[bytes, int] = OrderedDict()
    records = []
    for what, key, length in operations:
        if what == "use":
            recency.touch([key])
            if key in model:
                model.move_to_end(key)
            continue
        changes: dict[bytes, int | None] = {}
        if what == "put":
            changes = {key: length}
            model.pop(key, None)
            model[key] = length
        elif what == "drop" and key in model:
            changes = {key: None}
            del model[key]
        before = recency.total
        difference = recency.change(changes)
        records.append(recency.take_uses() + pack_changes(changes))
        recency.apply(changes)
        assert recency.total == before + difference
    records.append(recency.take_uses())
    assert recency.total == sum(map(PAGES.cost, model.values()))
    assert recency.snapshot() == b"".join(struct.pack("<32sI", *item) for item in model.items())

    restored = Recency(PAGES)
    restored.replay(records)
    assert restored.snapshot() == recency.snapshot()
    assert restored.total == recency.total


def test_victims_are_the_oldest_that_are_not_spared() -> None:
    recency = Recency(PAGES)
    recency.apply(dict.fromkeys(KEYS[:4], 4080))
    recency.touch([KEYS[0]])
    cost = PAGES.cost(4080)
    assert recency.victims(0, 4 * cost, ()) == []
    assert recency.victims(1, 4 * cost, ()) == [KEYS[1]]
    assert recency.victims(cost + 1, 4 * cost, {KEYS[2]}) == [KEYS[1], KEYS[3]]


def test_many_records_ask_for_a_snapshot() -> None:
    recency = Recency(PAGES)
    assert not recency.wants_snapshot(65536 * ENTRY_BYTES)
    assert recency.wants_snapshot(65537 * ENTRY_BYTES)


def test_a_torn_record_is_an_error() -> None:
    with pytest.raises(struct.error):
        Recency(PAGES).replay([b"x" * (ENTRY_BYTES - 1)])
