"""A page table beside a plain list: whatever is done to it, both tell the same ids."""

from __future__ import annotations

from array import array

from banyankv.runtime.pagetable import GrowingTable
from hypothesis import given
from hypothesis import strategies as st

PAGE = 16
ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=9)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ids),
        st.tuples(st.just("front"), st.integers(0, 12)),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.just("patch"), st.integers(-4, 12), ids),
    ),
    max_size=30,
)


def packed(numbers: list[int]) -> bytes:
    return array("i", numbers).tobytes()


@given(st.integers(0, 5), ids, steps)
def test_a_table_tells_what_a_list_would(start, first, done):
    table, plain = GrowingTable(start * PAGE, packed(first)), list(first)
    for name, *what in done:
        if name == "append":
            table.append(packed(what[0]))
            plain += what[0]
        elif name == "front":
            table.begin_at(what[0] * PAGE, PAGE)
            plain = plain[max(0, what[0] - start) :]
            start = max(start, what[0])
        elif name == "end":
            table.drop_end(what[0])
            plain = plain[: max(0, len(plain) - what[0])]
        else:
            at, new = what
            table.patch((start + at) * PAGE, packed(new), PAGE)
            for place, number in enumerate(new, at):
                if 0 <= place < len(plain):
                    plain[place] = number
        assert table.view().tolist() == plain
        assert len(table) == len(plain)


def test_a_view_outlives_the_move_of_its_table():
    table = GrowingTable(0, packed([1, 2]))
    view = table.view()
    table.append(packed([3]))
    assert view.tolist() == [1, 2]
    assert table.view().tolist() == [1, 2, 3]


def test_a_view_sees_a_patch_in_place():
    table = GrowingTable(0, packed([1, 2]))
    table.append(packed([3]))
    view = table.view()
    table.append(packed([4]))
    table.patch(2 * PAGE, packed([7, 8]), PAGE)
    assert view.tolist() == [1, 2, 7]
    assert table.view().tolist() == [1, 2, 7, 8]
