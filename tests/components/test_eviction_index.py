"""The eviction index: small under churn, no long step, and the order of its heap."""

from __future__ import annotations

import itertools
import random

import pytest
from banyankv.components import messages as m
from banyankv.components import views as v
from banyankv.components.eviction import EvictionIndex
from banyankv.components.kinds import make_actor
from banyankv.components.move_messages import Drop
from banyankv.components.policies import Policy, eviction_key
from banyankv.components.records import NO_KIDS, Payload, Record
from banyankv.spec import Tier
from banyankv.testing.rules.ground import pack
from banyankv.testing.rules.world import World
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .kinds import COMPONENTS


class Churn:
    """Records with payloads on L1 that come and go, used by the index only."""

    def __init__(self, policy: str | Policy = "lru") -> None:
        self.index = EvictionIndex(Tier.L1, eviction_key(policy))
        self.live: dict[int, Record] = {}
        self.now = 0

    def add(self) -> None:
        self.now += 1
        record = Record(self.now, None, 0, 1, self.now, 0, NO_KIDS)
        record.at[Tier.L1] = payload = Payload(b"")
        self.live[self.now] = record
        self.index.add(record, payload)

    def leave(self, id: int) -> None:
        """A payload goes by another way than the index."""
        record = self.live.pop(id)
        payload = record.at[Tier.L1]
        record.at[Tier.L1] = None
        assert payload is not None
        assert payload.queued
        self.index.gone()

    def use(self, id: int) -> None:
        self.now += 1
        self.live[id].stamp = self.now

    def order(self) -> list[int]:
        return [record.id for record, _ in self.popped()]

    def popped(self) -> list[tuple[Record, Payload]]:
        """Take everything out."""
        return list(iter(self.index.pop, None))


@pytest.mark.parametrize("live", [1, 10, 500])
@pytest.mark.parametrize("which", ["oldest", "newest", "any"])
def test_endless_churn_leaves_a_small_index(live: int, which: str) -> None:
    """Payloads that leave with their node's FULL would otherwise pile up for ever."""
    churn, chance = Churn(), random.Random(7)
    for _ in range(live):
        churn.add()
    most = 0
    for _ in range(10 * live + 5000):
        churn.add()
        ids = list(churn.live)
        churn.leave(ids[{"oldest": 0, "newest": -1, "any": chance.randrange(len(ids))}[which]])
        most = max(most, len(churn.index))
    assert most <= 4 * live + 100
    assert churn.order() == sorted(churn.live)
    assert len(churn.index) == 0


def test_no_step_of_the_cleaning_is_long() -> None:
    """The old heap's entries move over a few at a time."""
    churn = Churn()
    for _ in range(4000):
        churn.add()
    ids = list(churn.live)
    for id in ids[:3000]:
        before = len(churn.index)
        churn.leave(id)
        assert before - len(churn.index) <= 4
    assert len(churn.index) < 4000
    assert churn.order() == ids[3000:]


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "add", "leave", "leave", "use", "take"]),
            st.integers(0, 10**6),
        ),
        min_size=100,
        max_size=400,
    ),
    live=st.integers(60, 150),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_order_holds_while_the_old_heap_moves_over(steps: list[tuple[str, int]], live: int) -> None:
    churn = Churn()
    for _ in range(live):
        churn.add()
    for what, number in steps:
        ids = list(churn.live)
        if what == "add" or not ids:
            churn.add()
        elif what == "leave":
            churn.leave(ids[number % len(ids)])
        elif what == "use":
            churn.use(ids[number % len(ids)])
        else:
            first = churn.index.pop()
            assert first is not None
            record, payload = first
            assert record is min(churn.live.values(), key=lambda r: r.stamp)
            assert not payload.queued
            churn.index.add(record, payload)
    assert churn.order() == sorted(churn.live, key=lambda id: churn.live[id].stamp)


def test_order_holds_across_both_heaps() -> None:
    churn = Churn()
    for _ in range(400):
        churn.add()
    for id in range(200, 401):  # the last of them makes the heap the old one
        churn.leave(id)
    for _ in range(5):
        churn.add()
    assert churn.order() == [*range(1, 200), *range(401, 406)]


@pytest.mark.parametrize("others", [0, 100])
def test_a_stale_entry_and_a_new_one_of_the_same_node_and_key_do_not_meet(others: int) -> None:
    """A payload left by another way, and one came back that nobody had used in between."""
    churn = Churn()
    for _ in range(others + 1):
        churn.add()
    record = churn.live[1]
    for _ in range(3 * others + 3):
        churn.leave(1)
        churn.live[1] = record
        record.at[Tier.L1] = payload = Payload(b"")
        churn.index.add(record, payload)
    popped = churn.popped()
    assert [at.id for at, _ in popped] == sorted(churn.live)
    assert popped[0][1] is payload


@pytest.mark.parametrize("kind", COMPONENTS)
def test_what_comes_back_to_a_tier_unused_is_queued_again(kind: str) -> None:
    world = World(COMPONENTS[kind]())
    world.publish("ab", stands=(2,))
    for _ in range(3):
        op = world.backup("ab")
        assert op is not None
        world.end(op, ok=True)
        world.drop([1], Tier.L2)
    op = world.backup("ab")
    assert op is not None
    world.end(op, ok=True)
    assert world.evict(Tier.L2, 2) == ["ab"]
    assert world.evict(Tier.L2, 2) == []


def test_using_a_payload_costs_the_index_nothing_until_it_comes_up() -> None:
    churn = Churn()
    for _ in range(3):
        churn.add()
    churn.use(1)
    churn.use(2)
    churn.use(1)
    assert len(churn.index) == 3
    assert churn.order() == [3, 2, 1]


@pytest.mark.parametrize("kind", ["full", "swa", "mamba"])
def test_an_actors_index_stays_small_when_payload_goes_by_other_ways(kind: str) -> None:
    """Publish and drop for ever: nothing is evicted through the index."""
    component = COMPONENTS[kind]()
    actor = make_actor(component)
    for id in range(1, 3000):
        if component.snapshot:
            actor.keep(m.Keep(Tier.L1, (m.State(id, 0, 2, pack([id])),), now=id))
        else:
            actor.grow(
                m.Grow(
                    tier=Tier.L1,
                    parent=m.ROOT,
                    path=(id,),
                    ends=(2,),
                    own=0,
                    pages=pack([id]),
                    held=(),
                    relock=False,
                    now=id,
                )
            )
        if id > 5:
            actor.drop(Drop((id - 5,), Tier.L1, gone=(id - 5,)))
    held, _ = actor.ledger(v.Ledger())
    assert held.payloads == 5
    assert len(actor._presence.indexes[Tier.L1]) <= 4 * 5 + 100
    assert len(actor.views(v.Records())) == 5


def test_a_key_that_rises_at_each_look_ends_an_eviction_all_the_same() -> None:
    looks = itertools.count()
    churn = Churn(lambda view: next(looks))
    for _ in range(9):
        churn.add()
    for left in range(8, -1, -1):
        found = churn.index.pop()
        assert found is not None
        found[0].at[Tier.L1] = None
        assert len(churn.index) == left
    assert churn.index.pop() is None
