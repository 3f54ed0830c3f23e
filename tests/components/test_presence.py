"""What is held, arriving, read and given back: by example, and against the model at every step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from banyankv.components import messages as m
from banyankv.components import views as v
from banyankv.components.contract import TreeComponent
from banyankv.components.full import FullComponent
from banyankv.components.mamba import MambaComponent
from banyankv.components.move_messages import Arrive, Drop, Evict, Freed, Moved, Read, Slice
from banyankv.components.snapshot import SnapshotActor
from banyankv.components.swa import SWAComponent
from banyankv.errors import IntegrityError
from banyankv.spec import Tier
from banyankv.testing.rules import histories as suite
from banyankv.testing.rules.ground import BOTH, Lease, pack, unpack
from banyankv.testing.rules.world import World
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

COMPONENTS: dict[str, Callable[[], TreeComponent]] = {
    "full": lambda: FullComponent("full", 2),
    "swa": lambda: SWAComponent("swa", 2, 5),
    "mamba": lambda: MambaComponent("mamba", 2),
}


def backed(prompt: str = "abcd", kind: str = "swa") -> tuple[World, int]:
    """A world with one node on L1 that is being copied to L2."""
    world = World(COMPONENTS[kind]())
    world.publish(prompt, stands=(len(prompt),))
    op = world.backup(prompt)
    assert op is not None
    return world, op


def waiting() -> tuple[World, int, Lease]:
    """A world with one node on L2 that a lease waits for on L1."""
    world, op = backed()
    world.end(op, ok=True)
    world.evict(Tier.L1, 4)
    lease, locked = world.lock("abcd")
    promoted = world.promote(lease, locked)
    assert promoted is not None
    return world, promoted, lease


# -- by example ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COMPONENTS)
def test_what_arrives_is_held_and_no_source_until_it_is_there(kind: str) -> None:
    world, op = backed("abcd", kind)
    (record,) = world.actor.views(v.Records())
    assert record.l2_writer == op
    world.evict(Tier.L1, 4)
    assert world.reach("abcd", 4, host=True).boundary == 0
    world.end(op, ok=True)
    assert world.reach("abcd", 4, host=True).boundary == 8
    assert not world.reach("abcd", 4, host=True).resident
    world.check()


@pytest.mark.parametrize("kind", COMPONENTS)
def test_a_failed_arrival_leaves_nothing_and_its_source_as_it_was(kind: str) -> None:
    world, op = backed("abcd", kind)
    world.end(op, ok=False)
    world.check()
    l1, l2 = world.actor.ledger(v.Ledger())
    assert l2 == v.Held(0, 0, 0)
    assert l1.payloads == 1
    assert world.evict(Tier.L1, 1) == ["abcd"]


def test_an_arrival_cannot_go_before_it_is_there() -> None:
    world, op = backed()
    assert world.evict(Tier.L2, 4) == []
    world.end(op, ok=True)
    assert world.evict(Tier.L2, 4) == ["abcd"]


def test_a_lease_joins_an_arrival_and_its_table_is_whole_when_it_is_over() -> None:
    world, op, lease = waiting()
    other, locked = world.lock("abcd")
    assert locked.joins == (op,)
    assert not locked.missing
    world.end(op, ok=True)
    assert world.table(lease).pages == world.table(other).pages != b""


@pytest.mark.parametrize("ok", [True, False])
def test_a_split_while_arriving_gives_both_halves_the_mark(ok: bool) -> None:
    world, op = backed()
    upper = world.boundary("ab")
    world.check()
    assert {record.l2_writer for record in world.actor.views(v.Records())} == {op}
    freed = world.actor.moved(Moved(op, ok))
    assert sorted(freed.nodes) == [1, upper]
    assert len(unpack(freed.free)) == (0 if ok else 4)
    held = world.actor.ledger(v.Ledger())[Tier.L2]
    assert held == (v.Held(4, 0, 2) if ok else v.Held(0, 0, 0))


def test_a_split_while_read_gives_both_halves_the_mark() -> None:
    world, op = backed()
    world.boundary("ab")
    freed = world.actor.evict(Evict(Tier.L1, 4))
    assert freed.free == b""
    assert freed.pending == ((op, pack([1, 2])), (op, pack([3, 4])))


def test_an_arrival_that_is_dropped_is_pending_until_its_operation_is_over() -> None:
    world, op = backed()
    pages = [held.page for held in world.held[Tier.L2].values()]
    freed = world.actor.drop(Drop((1,), Tier.L2))
    assert freed == Freed(pending=((op, pack(pages)),), nodes=(1,), pages=len(pages))
    assert world.actor.moved(Moved(op, ok=True)) == Freed()
    assert world.actor.ledger(v.Ledger())[Tier.L2] == v.Held(0, 0, 0)


def test_what_was_dropped_and_published_again_is_not_the_operations_any_more() -> None:
    world, op = backed()
    world.drop([1], Tier.L1)
    world.publish("abcd")
    assert world.evict(Tier.L1, 1) == ["abcd"]  # nobody reads the new pages
    world.publish("abcd")
    world.end(op, ok=False)
    world.check()
    assert world.reach("abcd", 4, host=False).boundary == 8


def test_a_failed_arrival_under_a_lock_goes_from_the_locked_ledger() -> None:
    world, op, lease = waiting()
    assert world.actor.ledger(v.Ledger())[Tier.L1] == v.Held(4, 4, 1)
    freed = world.actor.moved(Moved(op, ok=False))
    assert len(unpack(freed.free)) == 4
    assert world.actor.ledger(v.Ledger())[Tier.L1] == v.Held(0, 0, 0)
    world.actor.unlock(m.Unlock(lease.receipts))
    assert world.actor.ledger(v.Ledger())[Tier.L1] == v.Held(0, 0, 0)


@pytest.mark.parametrize("kind", COMPONENTS)
def test_what_arrives_on_l1_can_be_joined_but_not_used(kind: str) -> None:
    world, op = backed("abcd", kind)
    world.end(op, ok=True)
    world.evict(Tier.L1, 4)
    lease, locked = world.lock("abcd")
    promoted = world.promote(lease, locked)
    assert promoted is not None
    device, either = (world.reach("abcd", 4, host=host) for host in (False, True))
    assert (device.boundary, either.boundary, either.resident) == (0, 8, False)
    world.end(promoted, ok=True)
    assert world.reach("abcd", 4, host=False) == m.Reached(8, resident=True, hole=None)


def test_both_halves_of_a_split_arrival_are_known_to_be_on_their_way() -> None:
    world, op, _ = waiting()
    world.boundary("ab")
    path = world.walk("abcd").path
    assert world.actor.first_arriving(m.Arriving(path)) == 0
    world.end(op, ok=True)
    # Each half was counted when it began to arrive, so both are counted out.
    assert world.actor.first_arriving(m.Arriving(path)) == 2
    assert world.actor._presence.arriving == [0, 0]


def test_a_publish_stops_before_the_first_arrival() -> None:
    world, op, _ = waiting()
    world.publish("abcdef")  # asserts that `Arriving` names the node; publishes nothing then
    assert world.known("abcdef") == 4
    world.end(op, ok=True)
    world.publish("abcdef")
    assert world.known("abcdef") == 6


def test_a_read_answers_the_longest_present_tail() -> None:
    world, op = backed("abcd")
    world.end(op, ok=True)
    upper = world.boundary("ab")
    read = world.read("abcd", 1)  # [2, 8): a half of the upper node, and the lower one
    world.drop([upper], Tier.L2)
    assert world.actor.read(Read(99, 1, 2, 8)).start == 4
    assert world.actor.read(Read(99, upper, 0, 4)) == Slice(4, b"")
    freed = world.actor.moved(Moved(read, ok=True))
    assert freed == Freed()


def test_a_read_marks_no_more_than_it_answers() -> None:
    world, op = backed("abcd")
    world.end(op, ok=True)
    upper = world.boundary("ab")
    read = world.read("abcd", 2)  # begins where the lower node does
    freed = world.actor.drop(Drop((upper, 1), Tier.L2))
    assert len(unpack(freed.free)) == 2
    assert [op for op, _ in freed.pending] == [read]


@pytest.mark.parametrize("prompt", ["ab", "abcd"])
def test_a_state_is_read_at_its_own_boundary_only(prompt: str) -> None:
    world, op = backed("abcd", "mamba")
    world.end(op, ok=True)
    node = world.walk("abcd").path[-1]
    answer = world.actor.read(Read(9, node, 0, len(prompt) * 2))
    assert len(answer.pages) == (4 if prompt == "abcd" else 0)


def test_nothing_arrives_from_nothing() -> None:
    world = World(SWAComponent("swa", 2, 5))
    world.publish("ab", own=2)
    for tier in BOTH:
        with pytest.raises(IntegrityError, match="nothing to fill"):
            world.actor.arrive(Arrive(1, (1,), tier, pack([7, 8])))
    world.check()


def test_nothing_arrives_twice_and_an_arrival_is_no_source() -> None:
    world, _ = backed()
    with pytest.raises(IntegrityError, match="has a payload on L2 already"):
        world.actor.arrive(Arrive(2, (1,), Tier.L2, pack([7, 8, 9, 10])))
    world, _ = backed()
    world.drop([1], Tier.L1)
    with pytest.raises(IntegrityError, match="nothing to fill L1"):
        world.actor.arrive(Arrive(2, (1,), Tier.L1, pack([7, 8, 9, 10])))


def test_a_lock_that_was_taken_back_cannot_be_taken_back_again() -> None:
    world = World(SWAComponent("swa", 2, 5))
    world.publish("abcd")
    lease, _ = world.lock("abcd")
    world.unlock(lease)
    with pytest.raises(IntegrityError, match="unlocked more often"):
        world.actor.unlock(m.Unlock(lease.receipts))


def test_a_state_that_goes_while_locked_leaves_a_record_until_it_is_unlocked() -> None:
    actor = SnapshotActor(MambaComponent("mamba", 2))
    actor.keep(m.Keep(Tier.L2, (m.State(1, 0, 4, pack([7])),), now=1))
    locked = actor.lock(m.Lock(1, 2))
    assert locked.missing == ((1, 1),)
    assert unpack(actor.drop(Drop((1,), Tier.L2)).free) == [7]
    (record,) = actor.views(v.Records())
    assert (record.lock, record.l1, record.l2) == (1, None, None)
    actor.unlock(m.Unlock(locked.receipts))
    assert actor.views(v.Records()) == ()


def test_a_locked_node_cannot_leave_the_tree() -> None:
    world = World(SWAComponent("swa", 2, 5))
    world.publish("abcd")
    world.lock("abcd")
    with pytest.raises(IntegrityError, match="locked"):
        world.actor.drop(Drop((1,), Tier.L1, gone=(1,)))


def test_a_node_that_is_held_elsewhere_cannot_leave_the_tree() -> None:
    world, op = backed()
    world.end(op, ok=True)
    with pytest.raises(IntegrityError, match="held"):
        world.actor.drop(Drop((1,), Tier.L1, gone=(1,)))
    world.actor.drop(Drop((1,), Tier.L2, gone=(1,)))
    assert world.actor.views(v.Records()) == ()


# -- against the model -----------------------------------------------------------------------------------


class Presence(RuleBasedStateMachine):
    """Whatever happens, in whatever order: records and running sums are the model's."""

    kind = "swa"

    def __init__(self) -> None:
        super().__init__()
        self.world = World(COMPONENTS[self.kind]())

    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        suite.publish(self.world, data.draw)

    @precondition(lambda self: self.world.uses)
    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        suite.split(self.world, data.draw)

    @precondition(lambda self: self.world.uses)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        suite.acquire(self.world, data.draw)

    @precondition(lambda self: self.world.leases)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        suite.go_on(self.world, data.draw)

    @precondition(lambda self: self.world.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        suite.release(self.world, data.draw)

    @precondition(lambda self: self.world.uses)
    @rule(data=st.data())
    def backup(self, data: st.DataObject) -> None:
        self.world.backup(data.draw(st.sampled_from(sorted(self.world.uses))))

    @precondition(lambda self: self.world.held[Tier.L2])
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        prompt = data.draw(st.sampled_from(sorted(self.world.held[Tier.L2])))
        self.world.read(prompt, data.draw(st.integers(0, len(prompt) - 1)))

    @precondition(lambda self: self.world.ops)
    @rule(data=st.data(), ok=st.booleans())
    def end(self, data: st.DataObject, ok: bool) -> None:
        self.world.end(data.draw(st.sampled_from(sorted(self.world.ops))), ok=ok)

    @rule(tier=st.sampled_from(BOTH), pages=st.integers(1, 6))
    def evict(self, tier: Tier, pages: int) -> None:
        self.world.evict(tier, pages)

    @precondition(lambda self: self.world.uses and not self.world.component.base)
    @rule(data=st.data(), tier=st.sampled_from(BOTH))
    def drop(self, data: st.DataObject, tier: Tier) -> None:
        self.world.drop([data.draw(st.sampled_from(sorted(self.world.nodes())))], tier)

    @invariant()
    def records_and_sums_are_the_models(self) -> None:
        self.world.check()

    @invariant()
    def every_page_is_somewhere_once(self) -> None:
        pages = [held.page for held in (*self.world.held[0].values(), *self.world.held[1].values())]
        pages += [page for _, _, shared in self.world.shared for page in shared]
        assert len(pages) == len(set(pages))

    def teardown(self) -> None:
        """Nothing can keep an unlocked cache from being emptied."""
        for op in list(self.world.ops):
            self.world.end(op, ok=True)
        for lease in list(self.world.leases):
            self.world.unlock(lease)
        for tier in BOTH:
            self.world.evict(tier, 10**6)
        self.world.check()
        assert self.world.held == ({}, {})
        assert not self.world.shared
        assert not self.world.component.base or not self.world.nodes()


@pytest.mark.parametrize("kind", COMPONENTS)
def test_ledgers_are_recomputation_whatever_happens(kind: str) -> None:
    sized = type("Kind", (Presence,), {"kind": kind})
    run_state_machine_as_test(
        sized,
        settings=settings(
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
