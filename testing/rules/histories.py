"""The steps of random histories, each one step of a cache, drawn by Hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from ...spec import Tier
from .ground import BOTH, Lease
from .world import World

Draw = Callable[[st.SearchStrategy[Any]], Any]
"""Draws one value of a strategy."""

PROMPTS = st.text("ab", min_size=1, max_size=7)


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


def go_on(world: World, draw: Draw) -> None:
    """Let a leased request decode: its window goes forward, or it publishes and moves its locks."""
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
