"""The common component suite: what must hold for every rule, however many ranges it has.

A rule is a function from a page size to a `TreeComponent`. Each law takes one and a source of
Hypothesis' choices; `test_components.py` tries all laws on all rules, and so can whoever writes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from banyankv.components import messages as m
from banyankv.components.contract import TreeComponent
from banyankv.spec import Tier
from hypothesis import strategies as st

from .ground import BOTH, KEYS, Lease
from .world import World

Rule = Callable[[int], TreeComponent]
Draw = Callable[[st.SearchStrategy[Any]], Any]

PAGE_SIZES = st.sampled_from([1, 2, 4, 16])
PROMPTS = st.text("ab", min_size=1, max_size=7)
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
    short, long = sorted((draw(st.integers(0, FAR)), draw(st.integers(0, FAR))))
    assert {token for token in needed(component, long) if token < short} <= needed(component, short)


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


# -- histories -----------------------------------------------------------------------------------------


def publish(world: World, draw: Draw, lease: Lease | None = None) -> None:
    """Publish something new, or something known, from where own pages start."""
    prompt = draw(PROMPTS)
    if lease is not None:
        # Who goes on from a lease must not publish less than its window has passed.
        passed = max(0, lease.at // world.page - len(lease.prompt))
        prompt = lease.prompt + prompt.ljust(passed, "a")
    pages = st.integers(0, len(prompt))
    stands = draw(st.sets(pages, max_size=3)) if world.component.snapshot else ()
    world.publish(prompt, draw(pages), stands, draw(st.sets(pages, max_size=2)), lease)


def prefix(world: World, draw: Draw) -> str | None:
    """Choose some prefix that the tree knows, at a node's end or inside."""
    known = sorted(world.uses)
    return draw(st.sampled_from(known)) if known else None


def acquire(world: World, draw: Draw) -> Lease | None:
    """Lock a boundary and bring what it lacks; None where nothing was to be had."""
    prompt = prefix(world, draw)
    if prompt is None or not world.recorded(prompt):
        return None
    lease, locked = world.lock(prompt)
    if locked.missing:
        op = world.promote(lease, locked)
        if op is None:
            return None
        if draw(st.booleans()):
            world.end(op, ok=True)
    return lease


def make_holes(world: World, draw: Draw) -> None:
    """Take payload away somewhere: FULL leaf first, others anywhere."""
    tier = draw(st.sampled_from(BOTH))
    if world.component.base or draw(st.booleans()):
        world.evict(tier, draw(st.integers(1, 3)))
    elif world.uses:
        node = draw(st.sampled_from(sorted(world.nodes())))
        world.drop([node], tier)


def split(world: World, draw: Draw) -> None:
    inside = [node for node in world.nodes().values() if node.end - node.start > 1]
    if inside:
        node = draw(st.sampled_from(inside))
        world.split(node.id, draw(st.integers(node.start + 1, node.end - 1)))


def copy(world: World, draw: Draw) -> None:
    """Start a backup or a read, or end an operation, well or not."""
    prompt = prefix(world, draw)
    what = draw(st.sampled_from(["backup", "backup", "read", "end", "end"]))
    if what == "end" and world.ops:
        op = draw(st.sampled_from(sorted(world.ops)))
        world.end(op, ok=draw(st.sampled_from([True, True, False])))
    elif what == "backup" and prompt is not None:
        world.backup(prompt)
    elif what == "read" and prompt is not None:
        world.read(prompt, draw(st.integers(0, len(prompt) - 1)))


def demote(world: World, draw: Draw) -> None:
    """Back a path up and take it off L1, so that whoever comes next has it on its way."""
    prompt = prefix(world, draw)
    op = None if prompt is None else world.backup(prompt)
    if op is not None:
        world.end(op, ok=True)
        world.evict(Tier.L1, draw(st.integers(1, 10)))


def some_history(world: World, draw: Draw, most: int = 8) -> None:
    """Let a few steps of every kind happen."""
    steps = (publish, publish, make_holes, split, copy, demote, demote, acquire, acquire)
    publish(world, draw)
    for step in draw(st.lists(st.sampled_from(steps), max_size=most)):
        step(world, draw)


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


def go_on(world: World, draw: Draw) -> None:
    """A leased request decodes: its window goes forward, or it publishes and moves its locks."""
    if not world.leases:
        return
    lease = draw(st.sampled_from(world.leases))
    if world.component.snapshot or draw(st.booleans()):
        publish(world, draw, lease)
    else:
        world.recede(lease, draw(st.integers(0, 3 * world.page)))


def release(world: World, draw: Draw) -> None:
    if world.leases:
        world.unlock(draw(st.sampled_from(world.leases)))


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
    assert {record.lock for record in world.actor.views(m.Records())} <= {0}
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
    ledgers = [world.actor.ledger(m.Ledger()) for world in (cut, late)]
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


RULE_LAWS = (
    need_is_made_of_ascending_ranges_below_the_boundary,
    what_a_boundary_needs_every_shorter_one_needed,
    need_knows_no_pages,
    a_request_keeps_all_that_it_can_still_publish,
)
ACTOR_LAWS = (
    reach_is_that_of_all_boundaries_tried_page_by_page,
    a_claim_is_a_reach_and_a_lock,
    tables_name_the_pages_of_the_coverage,
    locks_count_exactly_the_coverage_and_come_back_to_zero,
    locked_payload_is_never_dropped,
    a_split_node_is_as_two_nodes_always_were,
)
