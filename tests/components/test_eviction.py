"""Who goes first: every policy against a sort at each turn, leaf first, pins, readers, and the index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from banyankv.components import messages as m
from banyankv.components import views as v
from banyankv.components.full import FullComponent
from banyankv.components.move_messages import Evict, Freed, Moved, Unlocked
from banyankv.components.policies import POLICIES, EvictionView, eviction_key
from banyankv.components.swa import SWAComponent
from banyankv.errors import ConfigError
from banyankv.spec import Tier
from banyankv.testing.rules.ground import KEYS, Use, pack, unpack
from banyankv.testing.rules.histories import acquire, copy, go_on, publish, release, split
from banyankv.testing.rules.world import World
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .kinds import COMPONENTS

POLICY_KEYS: dict[str, tuple[Any, Callable[[Use], Any]]] = {
    **{name: (name, KEYS[name]) for name in POLICIES},
    "callable": (lambda view: view.hits, lambda use: use.hits),
}


# -- order ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICY_KEYS)
@pytest.mark.parametrize("kind", COMPONENTS)
@given(data=st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_victims_are_those_of_a_sort_at_each_turn(
    policy: str, kind: str, data: st.DataObject
) -> None:
    draw = data.draw
    world = World(COMPONENTS[kind](), *POLICY_KEYS[policy])

    def lock_and_release(world: World, draw: Any) -> None:
        if world.uses:
            prompt = draw(st.sampled_from(sorted(world.uses)))
            if not world.recorded(prompt):
                return
            lease, _ = world.lock(prompt, draw(st.integers(0, 2)))
            world.unlock(lease)

    def make_room(world: World, draw: Any) -> None:
        nodes = sorted(world.nodes())
        pinned = draw(st.sets(st.sampled_from(nodes), max_size=2)) if nodes else set()
        tier = draw(st.sampled_from([Tier.L1, Tier.L1, Tier.L2]))
        world.evict(tier, draw(st.integers(1, 4)), frozenset(pinned))

    steps = (publish, publish, lock_and_release, lock_and_release, split, copy, make_room)
    more = (acquire, go_on, release)
    publish(world, draw)
    for step in draw(st.lists(st.sampled_from(steps + more), max_size=14)):
        step(world, draw)  # `World.evict` looks at each victim in turn
        world.check()
    world.evict(Tier.L1, 1000)


@pytest.mark.parametrize(
    ("policy", "used", "order"),
    [
        ("lru", "a", "bcda"),
        ("fifo", "a", "abcd"),
        ("lfu", "aaacc", "bdca"),
        ("slru", "aabcc", "dbac"),  # a and c were used twice: they go last, whatever came later
        ("lru_k", "ca", "bdac"),  # who was used once has no use before the last
        ("priority", "a", "bcad"),  # d is published with a higher one
    ],
)
def test_policies_by_example(policy: str, used: str, order: str) -> None:
    world = World(FullComponent("full", 1), policy)
    for prompt in "abcd":
        world.publish(prompt, priority=1 if prompt == "d" else 0)
    for prompt in used:
        world.unlock(world.lock(prompt)[0])
    assert world.evict(Tier.L1, 4) == list(order)


def test_an_unknown_policy_says_which_there_are() -> None:
    with pytest.raises(ConfigError, match="'mru' is not one of lru, lru_k"):
        eviction_key("mru")


def test_a_policy_of_ones_own_sees_the_whole_view() -> None:
    seen: list[EvictionView] = []

    def policy(view: EvictionView) -> int:
        seen.append(view)
        return view.last_used

    world = World(FullComponent("full", 2), policy, KEYS["lru"])
    world.publish("ab", priority=3)
    world.publish("abc")
    lease, _ = world.lock("abc", priority=1)
    world.unlock(lease)
    seen.clear()
    assert world.evict(Tier.L1, 2) == ["abc", "ab"]
    assert EvictionView(3, 2, 2, 1, 1, 4, 6) in seen
    assert EvictionView(3, 2, 1, 1, 3, 0, 4) in seen


# -- what goes, what stays -------------------------------------------------------------------------------


def test_full_goes_leaf_first_and_climbs() -> None:
    world = World(FullComponent("full", 1))
    world.publish("abc", cuts=(1, 2))
    world.publish("abd")
    world.publish("e")
    assert world.evict(Tier.L1, 1) == ["abc"]
    assert world.evict(Tier.L1, 3) == ["abd", "ab", "a"]
    world.check()


def test_a_window_goes_shallow_part_first() -> None:
    world = World(SWAComponent("swa", 1, 3))
    world.publish("abcd", cuts=(1, 2, 3))
    assert world.evict(Tier.L1, 2) == ["a", "ab"]


def test_eviction_stops_within_one_victim_of_its_target() -> None:
    world = World(SWAComponent("swa", 1, 3))
    for prompt in ("aaa", "bbb", "ccc"):
        world.publish(prompt)
    assert world.evict(Tier.L1, 4) == ["aaa", "bbb"]
    assert world.evict(Tier.L1, 100) == ["ccc"]
    assert world.evict(Tier.L1, 1) == []


def test_both_halves_of_a_split_are_as_old_as_the_whole_was() -> None:
    for policy in ("fifo", "lru"):
        world = World(SWAComponent("swa", 1, 3), policy)
        for prompt in ("a", "bb", "c"):
            world.publish(prompt)
        world.boundary("b")
        assert world.evict(Tier.L1, 4) == ["a", "b", "bb", "c"]


def test_an_idle_payload_goes_before_any_that_is_read() -> None:
    world = World(SWAComponent("swa", 1, 3))
    world.publish("a")
    op = world.backup("a")
    assert op is not None
    for prompt in "bc":
        world.publish(prompt)
    assert world.evict(Tier.L1, 2) == ["b", "c"]  # a is older, and read
    assert world.evict(Tier.L1, 1) == ["a"]  # pending: its page comes when the copy is over
    world.end(op, ok=True)
    assert world.evict(Tier.L2, 1) == ["a"]
    world.check()


def test_a_pinned_payload_is_spared_and_found_again() -> None:
    world = World(SWAComponent("swa", 1, 3))
    for prompt in "abc":
        world.publish(prompt)
    a = world.boundary("a")
    assert world.evict(Tier.L1, 3, frozenset({a})) == ["b", "c"]
    assert world.evict(Tier.L1, 3) == ["a"]


def test_an_eviction_of_all_or_none_drops_nothing_where_too_little_may_go() -> None:
    world = World(SWAComponent("swa", 1, 3))
    for prompt in "abc":
        world.publish(prompt)
    pinned = frozenset({world.boundary("a")})
    world.lock("b")
    assert world.actor.unlocked(Unlocked(Tier.L1, pinned)) == 1
    assert world.actor.evict(Evict(Tier.L1, 2, pinned, all_or_none=True)) == Freed()
    world.check()
    freed = world.actor.evict(Evict(Tier.L1, 1, pinned, all_or_none=True))
    assert freed.nodes == (world.boundary("c"),)


def test_nodes_say_what_their_boundary_lost() -> None:
    """A snapshot at a node whose window went can never be used again; elsewhere it can."""
    world = World(SWAComponent("swa", 1, 1))
    world.publish("ab")
    world.publish("c")
    op = world.backup("c")
    assert op is not None
    world.end(op, ok=True)
    freed = world.actor.evict(Evict(Tier.L1, 3))
    ab, c = freed.nodes
    assert freed.gone == freed.unusable == (ab,)
    assert world.actor.lacks(m.Lacks(c, Tier.L1))
    assert not world.actor.lacks(m.Lacks(c, Tier.L2))


def test_pages_with_two_readers_come_back_once_when_the_last_is_over() -> None:
    world = World(SWAComponent("swa", 1, 4))
    world.publish("ab")
    backed = world.backup("ab")
    assert backed is not None
    world.end(backed, ok=True)
    first, second = world.read("ab", 0), world.read("ab", 1)
    node = world.boundary("ab")
    pages = [held.page for held in world.held[Tier.L2].values()]
    world.drop([node], Tier.L2)
    assert unpack(world.actor.shared(v.Shared(Tier.L2))) == pages
    world.check()
    world.end(second, ok=False)
    assert unpack(world.actor.shared(v.Shared(Tier.L2))) == pages
    freed = world.actor.moved(Moved(first, ok=True))
    assert freed == Freed(late=((Tier.L2, pack(pages)),))
    assert world.actor.moved(Moved(first, ok=True)) == Freed()
    assert world.actor.shared(v.Shared(Tier.L2)) == b""
