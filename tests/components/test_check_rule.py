"""The suite for authors of rules: it takes a right rule, finds wrong ones, and needs Hypothesis."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from banyankv import ConfigError
from banyankv.components import messages as m
from banyankv.components import paged
from banyankv.components.contract import Ranges, TreeComponent
from banyankv.components.full import FullComponent
from banyankv.components.paged import PagedActor
from banyankv.components.paged_presence import PagedPresence
from banyankv.components.swa import SWAComponent
from banyankv.testing import check_rule
from banyankv.testing.rules import Law, Rule, check_law, laws
from hypothesis import Phase, settings


class DilatedComponent(TreeComponent):
    """Need every token of the last two windows."""

    def need(self, boundary: int) -> Ranges:
        start = max(0, boundary - 2 * self.window)
        return ((start, boundary),) if boundary else ()


class ForgetfulComponent(DilatedComponent):
    """Need less of one prefix than of a longer one: no running request could keep up."""

    def need(self, boundary: int) -> Ranges:
        start = max(0, boundary - (1 if boundary % 7 == 6 else self.window))
        return ((start, boundary),) if boundary else ()


class BoldComponent(DilatedComponent):
    """Say that a boundary behind a hole can do without it."""

    def deepest_without(self, start: int, end: int, boundary: int) -> int:
        return boundary


class TimidComponent(DilatedComponent):
    """Give up wherever there is a hole."""

    def deepest_without(self, start: int, end: int, boundary: int) -> int:
        return 0


class TornComponent(DilatedComponent):
    """Break one law in two ways: ranges that overlap, and ranges that end behind the boundary."""

    def need(self, boundary: int) -> Ranges:
        if boundary % 5 == 3:
            return ((0, boundary), (0, boundary))
        return ((0, boundary + 1),) if boundary % 5 == 4 else super().need(boundary)


def test_a_right_rule_passes() -> None:
    check_rule(lambda page: DilatedComponent("dilated", page, 3), examples=10)


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (ForgetfulComponent, laws.what_a_boundary_needs_every_shorter_one_needed),
        (BoldComponent, laws.what_can_do_without_a_hole_is_that_of_all_boundaries_tried),
        (TimidComponent, laws.what_can_do_without_a_hole_is_that_of_all_boundaries_tried),
        (TornComponent, laws.need_is_made_of_ascending_ranges_below_the_boundary),
    ],
)
def test_a_wrong_rule_is_found_and_its_law_is_named(kind: type[TreeComponent], law: Law) -> None:
    with pytest.raises(AssertionError, match=f"broken law: {law.__name__}"):
        check_rule(lambda page: kind("wrong", page, 3))


@pytest.fixture
def found_is_enough() -> Iterator[None]:
    """What breaks a law is not made shorter: that takes longer than to find it."""
    settings.register_profile("found", settings.default, derandomize=True, phases=[Phase.generate])
    settings.load_profile("found")
    yield
    settings.load_profile("budget")


def full(page: int) -> TreeComponent:
    return FullComponent("full", page)


def swa(page: int) -> TreeComponent:
    return SWAComponent("swa", page, 3)


def _reach_too_far(self: PagedActor, msg: m.Reach | m.Claim) -> int:
    return min(msg.limit, msg.ends[-1])


def _claim_without_a_lock(self: PagedActor, msg: m.Claim) -> m.Claimed:
    return m.Claimed(self._deepest(msg))


def _never_unlock(self: PagedActor, msg: m.Unlock) -> None:
    pass


def _evict_locked(record: Any, payload: Any, tier: int) -> bool:
    return not (payload.writer or record.kids[tier])


def _first_page_only(*args: Any) -> m.Locked:
    locked = page_table(*args)
    return m.Locked(locked.receipts, locked.low_end, locked.start, locked.pages[:4])


def _split_forgets_uses(self: PagedPresence, record: Any, upper_id: int, at: int) -> None:
    presence_split(self, record, upper_id, at)
    self.records[upper_id].stamp = 0


page_table, presence_split = paged.page_table, PagedPresence.split


@pytest.mark.parametrize(
    ("law", "rule", "where", "name", "broken"),
    [
        (
            laws.reach_is_that_of_all_boundaries_tried_page_by_page,
            swa,
            PagedActor,
            "_deepest",
            _reach_too_far,
        ),
        (laws.a_claim_is_a_reach_and_a_lock, swa, PagedActor, "claim", _claim_without_a_lock),
        (laws.tables_name_the_pages_of_the_coverage, full, paged, "page_table", _first_page_only),
        (
            laws.locks_count_exactly_the_coverage_and_come_back_to_zero,
            swa,
            PagedActor,
            "unlock",
            _never_unlock,
        ),
        (
            laws.locked_payload_is_never_dropped,
            swa,
            PagedPresence,
            "evictable",
            staticmethod(_evict_locked),
        ),
        (
            laws.a_split_node_is_as_two_nodes_always_were,
            swa,
            PagedPresence,
            "split",
            _split_forgets_uses,
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.usefixtures("found_is_enough")
def test_a_component_that_breaks_a_law_is_found(
    monkeypatch: pytest.MonkeyPatch, law: Law, rule: Rule, where: Any, name: str, broken: Any
) -> None:
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(AssertionError, match=f"broken law: {law.__name__}"):
        check_law(law, rule, 200)


def test_it_tries_as_often_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr("banyankv.testing.rules.LAWS", (lambda rule, draw: tried.append(1),))
    check_rule(lambda page: DilatedComponent("dilated", page, 3))
    assert len(tried) == 1  # nothing was drawn, so that there is one history
    with pytest.raises(ConfigError, match="examples"):
        check_rule(lambda page: DilatedComponent("dilated", page, 3), examples=0)


def test_without_hypothesis_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "hypothesis":
            raise ModuleNotFoundError("No module named 'hypothesis'", name="hypothesis")
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.startswith("banyankv.testing.rules")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match="pip install hypothesis"):
        check_rule(lambda page: DilatedComponent("dilated", page, 3))


def test_without_asserts_it_refuses() -> None:
    program = "from banyankv.testing import check_rule; check_rule(None)"
    ran = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True)
    assert ran.returncode != 0
    assert "ConfigError: check_rule proves nothing under python -O" in ran.stderr
