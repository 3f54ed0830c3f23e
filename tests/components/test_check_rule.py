"""The suite for authors of rules: it takes a right rule, finds wrong ones, and needs Hypothesis."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest
from banyankv import ConfigError
from banyankv.components.contract import Ranges, TreeComponent
from banyankv.testing import check_rule


class DilatedComponent(TreeComponent):
    """Need every token of the last two windows."""

    def need(self, boundary: int) -> Ranges:
        start = max(0, boundary - 2 * self.window)
        return ((start, boundary),) if boundary else ()


class ForgetfulComponent(TreeComponent):
    """Need less of one prefix than of a longer one: no running request could keep up."""

    def need(self, boundary: int) -> Ranges:
        start = max(0, boundary - (1 if boundary % 7 == 6 else self.window))
        return ((start, boundary),) if boundary else ()


def test_a_right_rule_passes() -> None:
    check_rule(lambda page: DilatedComponent("dilated", page, 3), examples=10)


def test_a_rule_whose_ranges_go_back_is_found() -> None:
    with pytest.raises(AssertionError):
        check_rule(lambda page: ForgetfulComponent("forgetful", page, 3))


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
