"""The component suite's entry, which needs Hypothesis only when it is used."""

from __future__ import annotations

from collections.abc import Callable

from ..components.contract import TreeComponent
from ..errors import ConfigError
from ..runtime.arguments import require_int


def check_rule(rule: Callable[[int], TreeComponent], *, examples: int | None = None) -> None:
    """Prove the component contract on a rule of your own, by random histories of a tree with it.

    `rule` makes the rule for a page size: `lambda page: SinkComponent("sink", page, 8)`. Each law is
    tried `examples` times, by default as often as Hypothesis' profile says: what the rule says of
    itself (ranges ascend and never start earlier for a longer prefix), and what its component does in
    histories of publishing, reuse, locks, copies, evictions and splits, compared with a model that
    knows only pages.

    Raises AssertionError with the shortest history that breaks a law, and the law's name as a note.
    Raises ConfigError where Hypothesis is missing, and under `python -O`, which leaves out what the
    laws are made of.
    """
    if not __debug__:
        raise ConfigError("check_rule proves nothing under python -O: run it without")
    if examples is not None:
        require_int("examples", examples, 1)
    try:
        from .rules import LAWS, check_law
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise ConfigError("check_rule needs Hypothesis: pip install hypothesis") from error
    for law in LAWS:
        check_law(law, rule, examples)
