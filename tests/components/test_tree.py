"""The forest of prefixes against a plain set of them, and what it is held to by example."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest
from banyankv.components import messages as m
from banyankv.components import views as v
from banyankv.components.tree import UnifiedTreeCore
from banyankv.errors import IntegrityError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

SPACES = (b"", b"a", b"b")


def pack(tokens: Iterable[int]) -> bytes:
    return struct.pack(f"<{len(tokens := list(tokens))}I", *tokens)


def insert(
    tree: UnifiedTreeCore, tokens: Iterable[int], space: bytes = b"", **more: object
) -> m.Grown:
    return tree.insert(m.Insert(space, pack(tokens), **{"parent": m.ROOT, **more}))  # type: ignore[arg-type]


def walk(tree: UnifiedTreeCore, tokens: Iterable[int], space: bytes = b"") -> m.Walked:
    return tree.walk(m.Walk(space, pack(tokens)))


# -- by example ----------------------------------------------------------------------------------------


def test_a_walk_ends_inside_an_edge_at_the_page_before_the_difference() -> None:
    tree = UnifiedTreeCore(4)
    insert(tree, range(16))
    assert walk(tree, range(16)) == m.Walked((1,), (16,), partial=False)
    assert walk(tree, [*range(10), 99, 99]) == m.Walked((1,), (8,), partial=True)
    assert walk(tree, range(12)) == m.Walked((1,), (12,), partial=True)
    assert walk(tree, [*range(20)]) == m.Walked((1,), (16,), partial=False)
    assert walk(tree, [0, 1, 2, 99]) == m.Walked((), (), partial=False)


@pytest.mark.parametrize("page", [1, 16, 64])
def test_what_is_no_whole_page_does_not_count(page: int) -> None:
    tree = UnifiedTreeCore(page)
    insert(tree, range(4 * page))
    assert walk(tree, range(3 * page - 1)).ends == ((2 * page,) if page > 1 else (2,))
    assert walk(tree, range(page - 1)) == m.Walked((), (), partial=False)


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("differ", [0, 1, 500, 511])
def test_long_common_prefixes_part_at_the_right_page(page: int, differ: int) -> None:
    tree = UnifiedTreeCore(page)
    tokens = [7] * (512 * page)
    insert(tree, tokens)
    for token in {differ * page, differ * page + page - 1}:
        other = [*tokens[:token], 8, *tokens[token + 1 :]]
        assert walk(tree, other).ends == ((differ * page,) if differ else ())


def test_equal_tokens_of_two_namespaces_never_meet() -> None:
    tree = UnifiedTreeCore(1)
    first, second = (insert(tree, range(4), space) for space in SPACES[:2])
    assert first.path != second.path
    assert walk(tree, range(4), SPACES[0]).path == first.path
    assert walk(tree, range(4), SPACES[1]).path == second.path
    assert walk(tree, range(4), SPACES[2]).path == ()


def test_an_insert_is_cut_where_it_is_told() -> None:
    tree = UnifiedTreeCore(2)
    grown = insert(tree, range(12), cuts=(4, 6))
    assert grown == m.Grown((1, 2, 3), (4, 6, 12))
    more = tree.insert(m.Insert(b"", pack(range(50, 58)), 2, (10, 12)))
    assert more == m.Grown((4, 5, 6), (10, 12, 14))
    assert walk(tree, [*range(6), *range(50, 58)]).path == (1, 2, 4, 5, 6)
    assert tree.ancestry(m.Ancestry(5)) == m.Walked((1, 2, 4, 5), (4, 6, 10, 12), partial=False)


@pytest.mark.parametrize("children", [[], [50], [50, 60], [50, 60, 70]])
def test_an_insert_that_meets_something_is_a_walk(children: list[int]) -> None:
    tree = UnifiedTreeCore(2)
    insert(tree, range(8), cuts=(4,))
    for token in children:
        tree.insert(m.Insert(b"", pack([token] * 4), 1))
    count = tree.count(m.Count())
    for key, below in (
        (pack(range(8)), m.Walked((1, 2), (4, 8), partial=False)),
        (pack(range(12)), m.Walked((1, 2), (4, 8), partial=False)),
        (pack([0, 1, 9, 9]), m.Walked((1,), (2,), partial=True)),
    ):
        assert tree.insert(m.Insert(b"", key, m.ROOT, (2,))) == below
    for number, token in enumerate(children):
        met = tree.insert(m.Insert(b"", pack([token] * 6), 1))
        assert met == m.Walked((3 + number,), (8,), partial=False)
    assert tree.count(m.Count()) == count
    assert tree.insert(m.Insert(b"", pack([0, 9, 2, 3]), 1)) == m.Grown((count + 1,), (8,))


def test_children_come_and_go_by_ones() -> None:
    tree = UnifiedTreeCore(1)
    insert(tree, [7, 7])
    for token in (1, 2, 3):
        tree.insert(m.Insert(b"", pack([token, token]), 1))
    below = {1: 2, 2: 3, 3: 4}
    assert tree.split(m.Split(3, 3)) == 5  # one of three is replaced by its upper half
    for token in (1, 3):
        tree.remove(m.Remove((below.pop(token),)))
        for other, node in below.items():
            assert walk(tree, [7, 7, other, other]).path[-1] == node
        assert walk(tree, [7, 7, token]).path == (1,)
    assert tree.subtree(m.Subtree(1)) == (5, 3)
    assert tree.split(m.Split(1, 1)) == 6  # an only child is replaced
    assert walk(tree, [7, 7, 2, 2]).path == (6, 1, 5, 3)
    tree.remove(m.Remove((3, 5, 1, 6)))
    assert repr(tree) == "<UnifiedTreeCore [0 nodes in 0 namespaces]>"


def test_a_walk_may_count_less_than_its_key() -> None:
    tree = UnifiedTreeCore(2)
    insert(tree, range(8), cuts=(4,))
    key = pack(range(9))
    for size, path, ends, partial in (
        (None, (1, 2), (4, 8), False),
        (6 * 4, (1, 2), (4, 6), True),
        (4 * 4, (1,), (4,), False),
        (0, (), (), False),
    ):
        assert tree.walk(m.Walk(b"", key, m.ROOT, size)) == m.Walked(path, ends, partial)


def test_a_walk_may_begin_below_a_node() -> None:
    tree = UnifiedTreeCore(1)
    insert(tree, range(9), cuts=(3,))
    below = tree.walk(m.Walk(b"", pack([3, 4, 77]), 1))
    assert below == m.Walked((2,), (5,), partial=True)


def test_a_split_keeps_the_id_below() -> None:
    tree = UnifiedTreeCore(2)
    insert(tree, range(8))
    tree.insert(m.Insert(b"", pack([90, 91]), 1))
    assert tree.split(m.Split(1, 4)) == 3
    assert tree.ancestry(m.Ancestry(2)) == m.Walked((3, 1, 2), (4, 8, 10), partial=False)


@pytest.mark.parametrize("at", [0, 8, 10])
def test_a_split_outside_its_node_is_refused(at: int) -> None:
    tree = UnifiedTreeCore(2)
    insert(tree, range(8))
    with pytest.raises(IntegrityError, match="cannot be split"):
        tree.split(m.Split(1, at))
    assert tree.count(m.Count()) == 1


def test_a_node_with_children_is_not_removed() -> None:
    tree = UnifiedTreeCore(1)
    insert(tree, range(4), cuts=(2,))
    with pytest.raises(IntegrityError, match="has children"):
        tree.remove(m.Remove((1,)))
    tree.remove(m.Remove((2, 1)))
    assert tree.count(m.Count()) == 0


def test_a_namespace_that_is_left_empty_leaves_nothing_behind() -> None:
    tree = UnifiedTreeCore(1)
    for n in range(100):
        grown = insert(tree, [n, n + 1], str(n).encode())
        tree.remove(m.Remove(grown.path))
    insert(tree, [1], b"stays")
    assert repr(tree) == "<UnifiedTreeCore [1 nodes in 1 namespaces]>"


def test_a_subtree_names_parents_first_and_nothing_else() -> None:
    tree = UnifiedTreeCore(1)
    insert(tree, range(6), cuts=(2, 4))
    tree.insert(m.Insert(b"", pack([50, 51]), 2))
    insert(tree, [99])
    below = tree.subtree(m.Subtree(1))
    assert sorted(below) == [2, 3, 4]
    assert below.index(2) == 0
    assert tree.subtree(m.Subtree(5)) == ()
    assert tree.subtree(m.Subtree(77)) == ()


def test_chunk_sharers_are_those_below_on_every_branch_into_which_the_chunk_reaches() -> None:
    tree = UnifiedTreeCore(1)
    insert(tree, range(12), cuts=(2, 4, 6, 10))  # nodes 1 to 5
    tree.insert(m.Insert(b"", pack([50, 51]), 1))
    insert(tree, [99])
    assert set(tree.chunk_sharers(m.ChunkSharers((1,), 5))) == {2, 3, 6}
    assert set(tree.chunk_sharers(m.ChunkSharers((1, 3), 5))) == {2, 3, 4, 6}
    assert tree.chunk_sharers(m.ChunkSharers((4, 7, 77), 5)) == ()


def test_chains_are_found_again_from_the_last_one_known() -> None:
    tree = UnifiedTreeCore(1)
    insert(tree, range(10), b"space", cuts=(6,))
    assert tree.span(m.Span(2)) == m.Spanned(b"space", 0, b"", pack(range(10)), 10)
    tree.chained(m.Chained(2, 4, b"four"))  # ends in the node above
    assert tree.span(m.Span(2)) == m.Spanned(b"space", 4, b"four", pack(range(4, 10)), 10)
    tree.chained(m.Chained(2, 8, b"eight"))
    upper = tree.split(m.Split(2, 8))
    assert tree.span(m.Span(2)) == m.Spanned(b"space", 8, b"eight", pack([8, 9]), 10)
    # its own chain is no start: what ends in the node is what is to be hashed
    assert tree.span(m.Span(upper)) == m.Spanned(b"space", 4, b"four", pack(range(4, 8)), 8)
    above = tree.split(m.Split(upper, 7))
    assert tree.span(m.Span(above)) == m.Spanned(b"space", 4, b"four", pack([4, 5, 6]), 7)
    tree.remove(m.Remove((2,)))
    assert tree.span(m.Span(2)) is None
    tree.chained(m.Chained(2, 10, b"late"))  # for a node that is gone: nothing to keep it with
    assert tree.ancestry(m.Ancestry(2)) == m.Walked((), (), partial=False)


@given(
    page=st.sampled_from([1, 16, 64]),
    keys=st.lists(st.lists(st.integers(0, 1), max_size=260), min_size=1, max_size=6),
)
@settings(deadline=None)
def test_the_order_of_inserts_changes_no_match(page: int, keys: list[list[int]]) -> None:
    """Token by token, so that keys part inside pages too."""

    def lengths(order: list[list[int]]) -> list[int]:
        tree = UnifiedTreeCore(page)
        for key in order:
            add(tree, key, page)
        return [(walk(tree, key).ends or (0,))[-1] for key in keys]

    def add(tree: UnifiedTreeCore, key: list[int], page: int) -> None:
        walked = walk(tree, key)
        at = walked.ends[-1] if walked.ends else 0
        parent = walked.path[-1] if walked.path else m.ROOT
        if walked.partial:
            parent = tree.split(m.Split(parent, at))
        rest = key[at : len(key) // page * page]
        if rest:
            tree.insert(m.Insert(b"", pack(rest), parent))

    whole = [len(key) // page * page for key in keys]
    assert lengths(keys) == lengths(keys[::-1]) == whole


# -- against a set of prefixes ---------------------------------------------------------------------------


class Forest(RuleBasedStateMachine):
    """The model: for each namespace the prefixes, page by page, that the tree must know."""

    page = 1

    def __init__(self) -> None:
        super().__init__()
        self.known: set[tuple[bytes, tuple[int, ...]]] = set()
        self.ids: set[int] = set()
        self.tree = UnifiedTreeCore(self.page)

    def views(self) -> dict[int, v.NodeView]:
        return {view.id: view for view in self.tree.nodes(v.Nodes())}

    def whole(self, view: v.NodeView) -> tuple[int, ...]:
        """All tokens from the root to the node's end."""
        views, key = self.views(), b""
        at: v.NodeView | None = view
        while at is not None:
            key = at.key + key
            at = views.get(at.parent)
        return struct.unpack(f"<{len(key) // 4}I", key)

    def length(self, space: bytes, tokens: tuple[int, ...]) -> int:
        """How far the model knows a key, in tokens."""
        ends = range(self.page, len(tokens) + 1, self.page)
        return max((end for end in ends if (space, tokens[:end]) in self.known), default=0)

    keys = st.lists(st.integers(0, 1), max_size=7)

    def tokens(self, letters: list[int], last: int = 0) -> tuple[int, ...]:
        """Pages of equal tokens; the last token of all may differ from its page's."""
        tokens = [letter for letter in letters for _ in range(self.page)]
        return tuple([*tokens[:-1], tokens[-1] + last] if tokens else [])

    @rule(space=st.sampled_from(SPACES), letters=keys, last=st.integers(0, 1), data=st.data())
    def insert(self, space: bytes, letters: list[int], last: int, data: st.DataObject) -> None:
        tokens = self.tokens(letters, last)
        walked = self.tree.walk(m.Walk(space, pack(tokens)))
        at = walked.ends[-1] if walked.ends else 0
        assert at == self.length(space, tokens)
        parent = walked.path[-1] if walked.path else m.ROOT
        if walked.partial:
            parent = self.grew(self.tree.split(m.Split(parent, at)))
        if at == len(tokens):
            return
        inner = range(at + self.page, len(tokens), self.page)
        cuts = sorted(data.draw(st.sets(st.sampled_from(inner)))) if inner else []
        grown = self.tree.insert(m.Insert(space, pack(tokens[at:]), parent, tuple(cuts)))
        assert grown.ends == (*cuts, len(tokens))
        for id in grown.path:
            self.grew(id)
        ends = range(self.page, len(tokens) + 1, self.page)
        self.known |= {(space, tokens[:end]) for end in ends}

    def grew(self, id: int) -> int:
        assert id not in self.ids
        self.ids.add(id)
        return id

    @rule(space=st.sampled_from(SPACES), letters=keys, last=st.integers(0, 1))
    def walk(self, space: bytes, letters: list[int], last: int) -> None:
        tokens = self.tokens(letters, last)
        walked = self.tree.walk(m.Walk(space, pack(tokens)))
        views = self.views()
        assert (walked.ends[-1] if walked.ends else 0) == self.length(space, tokens)
        above = m.ROOT
        for id, end in zip(walked.path, walked.ends, strict=True):
            assert views[id].parent == above
            assert views[id].namespace == space
            whole = end == views[id].end
            assert whole or (walked.partial and id == walked.path[-1])
            assert self.whole(views[id])[:end] == tokens[:end]
            above = id
        assert not walked.partial or walked.ends[-1] < views[walked.path[-1]].end

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        view = data.draw(st.sampled_from(list(self.views().values())))
        inner = range(view.start + self.page, view.end, self.page)
        if inner:
            self.grew(self.tree.split(m.Split(view.id, data.draw(st.sampled_from(inner)))))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """A node with all below it, children first."""
        view = data.draw(st.sampled_from(list(self.views().values())))
        prefix = self.whole(view)
        below = self.tree.subtree(m.Subtree(view.id))
        views = self.views()
        assert {self.whole(views[id]) for id in below} == {
            self.whole(other)
            for other in views.values()
            if other.namespace == view.namespace
            and other.end > view.end
            and self.whole(other)[: view.end] == prefix
        }
        self.tree.remove(m.Remove((*reversed(below), view.id)))
        head = prefix[: view.start + self.page]
        self.known -= {
            (space, tokens)
            for space, tokens in self.known
            if space == view.namespace and tokens[: len(head)] == head
        }

    @invariant()
    def nodes_are_the_known_prefixes(self) -> None:
        views = self.views()
        told: list[tuple[bytes, tuple[int, ...]]] = []
        siblings: set[tuple[bytes, int, bytes]] = set()
        for view in views.values():
            assert 0 < len(view.key) == 4 * (view.end - view.start)
            assert view.start % self.page == view.end % self.page == 0
            assert view.start == (views[view.parent].end if view.parent else 0)
            first = (view.namespace, view.parent, view.key[: 4 * self.page])
            assert first not in siblings
            siblings.add(first)
            prefix = self.whole(view)
            ends = range(view.start + self.page, view.end + 1, self.page)
            told += [(view.namespace, prefix[:end]) for end in ends]
        assert len(told) == len(set(told))
        assert set(told) == self.known
        assert self.tree.count(m.Count()) == len(views)
        spaces = len({view.namespace for view in views.values()})
        assert f"in {spaces} namespaces" in repr(self.tree)


@pytest.mark.parametrize("page", [1, 16, 64])
def test_a_forest_is_a_set_of_prefixes(page: int) -> None:
    sized = type("Sized", (Forest,), {"page": page})
    run_state_machine_as_test(sized, settings=settings(stateful_step_count=20, deadline=None))
