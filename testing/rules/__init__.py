"""The component suite: laws that every rule must obey, tried by random histories. Needs Hypothesis."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .laws import ACTOR_LAWS, RULE_LAWS, Law, Rule

LAWS: tuple[Law, ...] = (*RULE_LAWS, *ACTOR_LAWS)
"""First what the rule alone must obey, then what its component does with it."""


def check_law(law: Law, rule: Rule, examples: int = 30) -> None:
    """Try one law on a rule by so many random histories; raises AssertionError with the least one."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(data=st.data())
    def obeys(data: st.DataObject) -> None:
        law(rule, data.draw)

    obeys()


__all__ = ["LAWS", "Law", "Rule", "check_law"]
