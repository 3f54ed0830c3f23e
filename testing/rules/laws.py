"""The laws of the component contract: what must hold for every rule, however many ranges it has.

Each law takes a rule (a function from a page size to a `TreeComponent`) and a source of Hypothesis'
choices, and fails by an AssertionError.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from ...components import views as v
from ...components.contract import TreeComponent
from ...spec import Tier
from .ground import BOTH, KEYS
from .histories import (
    PROMPTS,
    Draw,
    acquire,
    copy,
    go_on,
    make_holes,
    prefix,
    publish,
    release,
    some_history,
    split,
)
from .world import World

Rule = Callable[[int], TreeComponent]
"""Makes the rule for a page size."""

Law = Callable[[Rule, Draw], None]

PAGE_SIZES = st.sampled_from([1, 2, 4, 16])
FAR = 200
"""Positions up to here are tried where a law is about the rule alone."""


# -- the rule ------------------------------------------------------------------------------------------


def needed(component: TreeComponent, boundary: int) -> set[int]:
    return {token for start, end in component.need(boundary) for token in range(start, end)}


def need_is_made_of_ascending_ranges_below_the_boundary(rule: Rule, draw: Draw) -> None:
    boundary = draw(st.integers(0, FAR))
    component = rule(draw(PAGE_SIZES))
    last = 0
    for start, end in component.need(boundary):
        assert last <= start <= end <= boundary
        assert start < end or boundary == 0
        last = end
    assert not (component.snapshot and component.need(boundary))


def what_a_boundary_needs_every_shorter_one_needed(rule: Rule, draw: Draw) -> None:
    component = rule(draw(PAGE_SIZES))
    shorter = set[int]()
    for boundary in range(FAR):  # neighbours suffice, and a fault between two may be rare
        longer = needed(component, boundary)
        assert longer - shorter <= {boundary - 1}
        shorter = longer


def what_can_do_without_a_hole_is_that_of_all_boundaries_tried(rule: Rule, draw: Draw) -> None:
    page = draw(PAGE_SIZES)
    component = rule(page)
    at = st.integers(0, FAR // page)
    start, size, boundary = page * draw(at), page * draw(at) + page, page * draw(at)
    end = start + size
    hole = set(range(start, end))
    tried = range(boundary, -1, -page)
    best = next(at for at in tried if not needed(component, at) & hole)
    assert component.deepest_without(start, end, boundary) == best


def need_knows_no_pages(rule: Rule, draw: Draw) -> None:
    boundary = draw(st.integers(0, FAR))
    assert len({rule(page).need(boundary) for page in (1, 2, 3, 16, 64)}) == 1


def a_request_keeps_all_that_it_can_still_publish(rule: Rule, draw: Draw) -> None:
    page = draw(PAGE_SIZES)
    component = rule(page)
    now, later = sorted((draw(st.integers(0, FAR)), draw(st.integers(0, FAR))))
    kept = component.keep_from(now)
    assert kept % page == 0
    assert kept <= now
    for boundary in (now, later, later // page * page):
        assert boundary < now // page * page or all(t >= kept for t in needed(component, boundary))
    # Not a page more than that: something of the first page kept is needed now, or at its floor.
    floor = now // page * page
    wanted = needed(component, now) | needed(component, floor)
    assert min(wanted, default=floor) // page * page == kept


# -- reuse ---------------------------------------------------------------------------------------------


def reach_is_that_of_all_boundaries_tried_page_by_page(rule: Rule, draw: Draw) -> None:
    world = World(rule(draw(PAGE_SIZES)))
    some_history(world, draw)
    for prompt in {*world.uses, draw(PROMPTS), "".join(draw(PROMPTS) for _ in range(2))}:
        limit = draw(st.integers(0, len(prompt) + 1))
        device = world.reach(prompt, limit, host=False)
        either = world.reach(prompt, limit, host=True)
        assert device.boundary <= either.boundary
    world.check()


def a_claim_is_a_reach_and_a_lock(rule: Rule, draw: Draw) -> None:
    world = World(rule(draw(PAGE_SIZES)), draw(st.sampled_from(sorted(KEYS))))
    some_history(world, draw)
    for prompt in sorted({*world.uses, draw(PROMPTS)}):
        lease = world.claim(prompt, draw(st.integers(0, len(prompt) + 1)), host=draw(st.booleans()))
        world.check()
        if lease is not None and draw(st.booleans()):  # the others did not agree
            world.unlock(lease)
    for op in list(world.ops):
        world.end(op, ok=True)
    for lease in list(world.leases):
        world.unlock(lease)
    world.evict(Tier.L1, draw(st.integers(1, 10)))  # in the order of their uses
    world.check()


def tables_name_the_pages_of_the_coverage(rule: Rule, draw: Draw) -> None:
    world = World(rule(draw(PAGE_SIZES)))
    some_history(world, draw)
    lease = acquire(world, draw)  # asks for the table, and what of it is lacking
    if lease is not None:
        for step in draw(st.lists(st.sampled_from([split, copy, publish]), max_size=4)):
            step(world, draw)
            if lease in world.leases:
                world.table(lease)
    world.check()


# -- locks ---------------------------------------------------------------------------------------------


def locks_count_exactly_the_coverage_and_come_back_to_zero(rule: Rule, draw: Draw) -> None:
    world = World(rule(draw(PAGE_SIZES)))
    steps = (publish, acquire, acquire, go_on, go_on, release, split, make_holes)
    publish(world, draw)
    for step in draw(st.lists(st.sampled_from(steps), max_size=12)):
        step(world, draw)
        world.check()
    for op in list(world.ops):
        world.end(op, ok=True)
    for lease in draw(st.permutations(world.leases)):
        world.unlock(lease)
        world.check()
    assert {record.lock for record in world.actor.views(v.Records())} <= {0}
    for tier in BOTH:  # nothing that is unlocked stays, whatever the order
        world.evict(tier, 1000)
    world.check()
    assert world.held == ({}, {})


def locked_payload_is_never_dropped(rule: Rule, draw: Draw) -> None:
    world = World(rule(draw(PAGE_SIZES)))
    some_history(world, draw)
    for op in list(world.ops):
        world.end(op, ok=True)
    lease = acquire(world, draw)
    for op in list(world.ops):
        world.end(op, ok=True)
    before = {unit: held.page for unit, held in world.held[Tier.L1].items()}
    world.evict(Tier.L1, 1000)
    if not world.component.base:
        world.drop(sorted(world.nodes()), Tier.L1)
    world.check()
    locked = {unit for lease in world.leases for unit in lease.cover}
    after = {unit: held.page for unit, held in world.held[Tier.L1].items()}
    assert after == {unit: page for unit, page in before.items() if unit in locked}
    if lease is not None:
        world.table(lease)


# -- splits --------------------------------------------------------------------------------------------


def a_split_node_is_as_two_nodes_always_were(rule: Rule, draw: Draw) -> None:
    """Publish in one world with cuts, in another without, split later: what follows is the same."""
    page = draw(PAGE_SIZES)
    cut, late = World(rule(page)), World(rule(page))
    for _ in range(draw(st.integers(1, 3))):
        prompt = draw(PROMPTS)
        at = draw(st.integers(0, len(prompt) - 1))
        own = draw(st.integers(0, len(prompt)))
        # A snapshot's node ends where it stands: there it is cut in both.
        stands = draw(st.sets(st.integers(1, len(prompt)), max_size=2))
        cut.publish(prompt, own, stands, {at})
        late.publish(prompt, own, stands)
        if draw(st.booleans()):
            assert cut.backup(prompt) == late.backup(prompt)
    borders = sorted(node.prefix for node in cut.nodes().values())
    for border in draw(st.permutations(borders)):
        late.boundary(border)
    assert sorted(node.prefix for node in late.nodes().values()) == borders
    ledgers = [world.actor.ledger(v.Ledger()) for world in (cut, late)]
    assert ledgers[0] == ledgers[1]
    for step in draw(st.lists(st.sampled_from(["lock", "unlock", "evict", "end"]), max_size=8)):
        tier, count = draw(st.sampled_from(BOTH)), draw(st.integers(1, 4))
        target = prefix(cut, draw)
        if step == "lock" and target and cut.recorded(target):
            answers = [world.lock(target)[1] for world in (cut, late)]
            assert answers[0].pages == answers[1].pages
            if answers[0].missing:
                for world in (cut, late):
                    world.unlock(world.leases[-1])
        elif step == "unlock" and cut.leases:
            for world in (cut, late):
                world.unlock(world.leases[0])
        elif step == "evict":
            assert cut.evict(tier, count) == late.evict(tier, count)
        elif step == "end" and cut.ops:
            op = min(cut.ops)
            ok = draw(st.booleans())
            for world in (cut, late):
                world.end(op, ok=ok)
        assert cut.held == late.held
        assert cut.locks() == late.locks()
        for world in (cut, late):
            world.check()


RULE_LAWS: tuple[Law, ...] = (
    need_is_made_of_ascending_ranges_below_the_boundary,
    what_a_boundary_needs_every_shorter_one_needed,
    what_can_do_without_a_hole_is_that_of_all_boundaries_tried,
    need_knows_no_pages,
    a_request_keeps_all_that_it_can_still_publish,
)
ACTOR_LAWS: tuple[Law, ...] = (
    reach_is_that_of_all_boundaries_tried_page_by_page,
    a_claim_is_a_reach_and_a_lock,
    tables_name_the_pages_of_the_coverage,
    locks_count_exactly_the_coverage_and_come_back_to_zero,
    locked_payload_is_never_dropped,
    a_split_node_is_as_two_nodes_always_were,
)
