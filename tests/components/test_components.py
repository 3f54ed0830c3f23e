"""The component suite for every rule that comes with the library, and for a fifth made here."""

from __future__ import annotations

from typing import Any

import pytest
from banyankv.actors import open_system
from banyankv.components import messages as m
from banyankv.components import views as v
from banyankv.components.chunked import ChunkedComponent
from banyankv.components.contract import Ranges, TreeComponent
from banyankv.components.full import FullComponent
from banyankv.components.mamba import MambaComponent
from banyankv.components.move_messages import Drop, Evict
from banyankv.components.paged import PagedActor
from banyankv.components.swa import SWAComponent
from banyankv.components.tree import UnifiedTreeCore
from banyankv.spec import Tier
from banyankv.testing.rules import LAWS, Law, Rule, check_law
from banyankv.testing.rules.ground import pack


class SinkComponent(TreeComponent):
    """Need the first three tokens and the last `window`, as attention sinks do."""

    def need(self, boundary: int) -> Ranges:
        start = boundary - self.window
        return ((0, boundary),) if start <= 3 else ((0, 3), (start, boundary))


class HeadComponent(TreeComponent):
    """Need the first token, and those of the boundary's own chunk: at its start the first alone."""

    def need(self, boundary: int) -> Ranges:
        start = max(1, boundary // self.window * self.window)
        if start < boundary:
            return ((0, 1), (start, boundary))
        return ((0, 1),) if boundary else ()


RULES: dict[str, Rule] = {
    "full": lambda page: FullComponent("full", page),
    **{f"swa{w}": lambda page, w=w: SWAComponent("swa", page, w) for w in (1, 3, 8, 17)},
    **{f"chunked{c}": lambda page, c=c: ChunkedComponent("chunked", page, c) for c in (3, 8)},
    "mamba": lambda page: MambaComponent("mamba", page),
    **{f"sink{w}": lambda page, w=w: SinkComponent("sink", page, w) for w in (2, 9)},
    "head4": lambda page: HeadComponent("head", page, 4),
}

over_rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


@over_rules
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_a_rule_obeys(law: Law, rule: Rule) -> None:
    check_law(law, rule)


@pytest.mark.parametrize(
    ("rule", "boundary", "ranges"),
    [
        ("full", 7, ((0, 7),)),
        ("swa8", 7, ((0, 7),)),
        ("swa8", 9, ((1, 9),)),
        ("chunked8", 15, ((8, 15),)),
        ("chunked8", 16, ()),
        ("mamba", 7, ()),
        ("sink9", 12, ((0, 12),)),
        ("sink9", 14, ((0, 3), (5, 14))),
    ],
)
def test_needs_by_example(rule: str, boundary: int, ranges: Ranges) -> None:
    assert RULES[rule](1).need(boundary) == ranges


def test_two_ranges_on_one_page_name_it_once_and_count_its_node_once() -> None:
    actor = PagedActor(SinkComponent("sink", 8, 4))
    grow(actor, 8, pack([5]))
    locked = actor.lock(m.Lock(1, 1))
    assert (locked.start, locked.pages) == (0, pack([5]))
    (record,) = actor.views(v.Records())
    assert record.lock == 1
    actor.unlock(m.Unlock(locked.receipts))
    assert actor.evict(Evict(Tier.L1, 1)).free == pack([5])


def test_pages_that_no_range_needs_are_marked() -> None:
    actor = PagedActor(SinkComponent("sink", 2, 4))
    grow(actor, 14, pack(range(1, 8)))
    locked = actor.lock(m.Lock(1, 1))  # needs [0, 3) and [10, 14)
    assert (locked.start, locked.pages) == (0, pack([1, 2, -1, -1, -1, 6, 7]))


def test_one_range_may_end_before_the_boundary() -> None:
    actor = PagedActor(HeadComponent("head", 1, 4))
    grow(actor, 4, pack([1, 2, 3, 4]))
    locked = actor.lock(m.Lock(1, 1))  # needs [0, 1)
    assert (locked.start, locked.pages) == (0, pack([1, -1, -1, -1]))


@pytest.mark.parametrize(
    ("rule", "limit", "boundary"),
    [
        (ChunkedComponent("chunked", 16, 256), 600, 512),
        (ChunkedComponent("chunked", 16, 256), 500, 256),
        (ChunkedComponent("chunked", 16, 24), 600, 576),  # every second chunk starts with a page
        (SWAComponent("swa", 16, 16), 600, 0),
        (HeadComponent("head", 16, 64), 600, 0),
    ],
)
def test_a_hole_in_a_long_edge_is_passed_at_once(
    monkeypatch: pytest.MonkeyPatch, rule: TreeComponent, limit: int, boundary: int
) -> None:
    actor = PagedActor(rule)
    grow(actor, 64_000, pack(range(4_000)))
    actor.drop(Drop((1,), Tier.L1))
    asked, need = [], rule.need
    monkeypatch.setattr(rule, "need", lambda at: asked.append(at) or need(at))
    reach = m.Reach((1,), (64_000,), limit // 16 * 16, partial=False, host=True)
    assert actor.reach(reach) == m.Reached(boundary, resident=True, hole=1)
    assert len(asked) < 10


@pytest.mark.parametrize(("end", "unusable"), [(4, ()), (6, (1,))])
def test_a_boundary_is_unusable_only_where_it_needs_what_went(
    end: int, unusable: tuple[int, ...]
) -> None:
    actor = PagedActor(HeadComponent("head", 1, 4))  # 4 needs [0, 1), and 6 needs [4, 6) as well
    grow(actor, end, pack(range(end)))
    actor.split_done(m.SplitDone(1, 2, 2))
    actor.drop(Drop((2,), Tier.L1))
    assert actor.evict(Evict(Tier.L1, 1)).unusable == unusable


def grow(actor: PagedActor, end: int, pages: bytes) -> None:
    actor.grow(
        m.Grow(
            tier=Tier.L1,
            parent=m.ROOT,
            path=(1,),
            ends=(end,),
            own=0,
            pages=pages,
            held=(),
            relock=False,
            now=1,
        )
    )


async def test_as_actors_they_answer_the_same_through_a_mailbox(dispatch: Any) -> None:
    async with open_system("components", dispatch=dispatch) as system:
        tree = await system.spawn(lambda: UnifiedTreeCore(2), name="tree")
        swa = await system.spawn(lambda: PagedActor(SWAComponent("swa", 2, 4)), name="swa")
        key = bytes(range(48))
        grown = await tree.ask(m.Insert(b"", key, m.ROOT))
        assert grown == m.Grown((1,), (12,))
        await swa.ask(
            m.Grow(
                tier=Tier.L1,
                parent=m.ROOT,
                path=grown.path,
                ends=grown.ends,
                own=0,
                pages=pack(range(1, 7)),
                held=(),
                relock=False,
                now=1,
            )
        )
        upper = await tree.ask(m.Split(1, 8))
        await swa.ask(m.SplitDone(1, upper, 8))
        walked = await tree.ask(m.Walk(b"", key[:40]))
        assert walked == m.Walked((upper, 1), (8, 10), partial=True)
        reach = m.Reach(walked.path, walked.ends, 12, walked.partial, host=False)
        assert await swa.ask(reach) == m.Reached(10, resident=True, hole=None)
        locked = await swa.ask(m.Lock(1, 2))
        assert (locked.start, locked.pages) == (8, pack([5, 6]))
        freed = await swa.ask(Evict(Tier.L1, 100))
        assert (freed.free, freed.nodes) == (pack([1, 2, 3, 4]), (upper,))
        await swa.ask(m.Unlock(locked.receipts))
        assert await swa.ask(v.Ledger()) == (v.Held(2, 0, 1), v.Held(0, 0, 0))
