"""The endpoint rule against one that looks at every token."""

from __future__ import annotations

import random

import pytest
from banyankv.components.chunked import ChunkedComponent
from banyankv.components.contract import TreeComponent
from banyankv.components.full import FullComponent
from banyankv.components.mamba import MambaComponent
from banyankv.components.swa import SWAComponent
from banyankv.errors import IntegrityError
from banyankv.runtime.coordinator.endpoints import Endpoints, covers, union
from banyankv.runtime.coordinator.runs import Run, joined
from banyankv.tiers.store.messages import StoreItem

PAGE, CHUNK, COUNT = 4, 16, 8


class Sink(TreeComponent):
    """Several ranges, which a store's objects need not keep apart."""

    def need(self, boundary: int) -> tuple[tuple[int, int], ...]:
        low = boundary - self.window
        return ((0, boundary),) if low <= PAGE else ((0, PAGE), (low, boundary))


def rules_of(dice: random.Random) -> tuple[TreeComponent, ...]:
    others: list[TreeComponent] = [
        SWAComponent("swa", PAGE, dice.choice((3, 8, 18, 40))),
        ChunkedComponent("chunked", PAGE, dice.choice((8, 24, 32, 48))),
        Sink("sink", PAGE, dice.choice((6, 20))),
        MambaComponent("mamba", PAGE),
    ]
    return (FullComponent("full", PAGE), *dice.sample(others, dice.randrange(len(others) + 1)))


def legal(rule: TreeComponent, held: set[int], end: int, full: int) -> bool:
    """Look at every token; what a state needs is the token at which it stands."""
    if rule.snapshot:
        return end in held
    needed = {
        token
        for start, stop in rule.need(end)
        for token in range(start // PAGE * PAGE, -(-stop // PAGE) * PAGE)
    }
    return needed <= held | set(range(full) if rule.base else ())


@pytest.mark.parametrize("seed", range(300))
def test_the_deepest_endpoint_is_that_of_a_search_through_all_tokens(seed: int) -> None:
    dice = random.Random(seed)
    rules = rules_of(dice)
    endpoints = Endpoints(rules, CHUNK, dict.fromkeys((rule.name for rule in rules), 1))
    full = dice.randrange(0, CHUNK * COUNT, PAGE)
    reuse = dice.randrange(0, full + 1, PAGE)
    lucky = dice.choice((0.5, 0.8, 0.95))
    held: dict[str, set[int]] = {}
    spans: dict[str, tuple[tuple[int, int], ...]] = {}
    for rule in rules:
        chunks = [index for index in range(COUNT) if dice.random() < lucky]
        spans[rule.name] = endpoints.spans(rule, chunks)
        held[rule.name] = (
            {(index + 1) * CHUNK for index in chunks}
            if rule.snapshot
            else {i * CHUNK + token for i in chunks for token in range(CHUNK)}
        )
    ends = range(CHUNK, CHUNK * COUNT + 1, CHUNK)
    good = [
        end
        for end in ends
        if end > reuse and all(legal(rule, held[rule.name], end, full) for rule in rules)
    ]
    deepest = endpoints.deepest(spans, CHUNK * COUNT, full, reuse)
    assert deepest == max(good, default=0)
    # what was found is asked for, and some of it does not come
    wanted = list(endpoints.objects(deepest, full))
    came = [item for item in wanted if dice.random() < lucky]
    arrived: dict[str, set[int]] = {rule.name: set() for rule in rules}
    for name, _, start, end in came:
        arrived[name] |= {end} if start == end else set(range(start, end))
    good = [
        end
        for end in ends
        if reuse < end <= deepest
        and all(legal(rule, arrived[rule.name], end, full) for rule in rules)
    ]
    spans = {
        rule.name: union((start, end) for name, _, start, end in came if name == rule.name)
        for rule in rules
    }
    assert endpoints.deepest(spans, deepest, full, reuse) == max(good, default=0)
    if len(came) == len(wanted):
        assert max(good, default=0) == deepest


def test_spans_join_where_they_touch() -> None:
    spans = union([(32, 48), (0, 16), (16, 20), (64, 64)])
    assert spans == ((0, 20), (32, 48), (64, 64))
    assert covers(spans, 4, 20)
    assert covers(spans, 64, 64)
    assert not covers(spans, 4, 21)
    assert not covers(spans, 20, 32)
    assert not covers((), 0, 0)


def test_objects_are_joined_only_where_one_begins_at_the_end_of_another() -> None:
    def item(start: int, end: int, first: int) -> StoreItem:
        pages = b"".join((first + i).to_bytes(4, "little") for i in range((end - start) // PAGE))
        return StoreItem("swa", b"", start, end, pages)

    a, b, d = item(0, 8, 0), item(8, 12, 2), item(16, 20, 9)
    assert joined([d, b, a], PAGE) == [Run(0, 12, a.pages + b.pages), Run(16, 20, d.pages)]
    with pytest.raises(IntegrityError, match="hold token 8"):
        joined([item(0, 12, 0), b], PAGE)
    with pytest.raises(IntegrityError, match="bytes of page ids"):
        joined([StoreItem("swa", b"", 0, 8, a.pages[:4])], PAGE)
