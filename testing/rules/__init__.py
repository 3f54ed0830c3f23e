"""The component suite: laws that every rule must obey, tried by random histories. Needs Hypothesis."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .laws import ACTOR_LAWS, RULE_LAWS, Law, Rule

LAWS: tuple[Law, ...] = (*RULE_LAWS, *ACTOR_LAWS)
"""First what the rule alone must obey, then what its component does with it."""


def check_law(law: Law, rule: Rule, examples: int | None = None) -> None:
    """Try one law on a rule by random histories, by default as many as Hypothesis' profile says.

    Raises AssertionError with the shortest history that breaks the law, and its name as a note.
    """

    @settings(
        settings() if examples is None else settings(max_examples=examples),
        deadline=None,
        database=None,
        report_multiple_bugs=False,  # several would be an exception group, which is no AssertionError
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(data=st.data())
    def obeys(data: st.DataObject) -> None:
        law(rule, data.draw)

    try:
        obeys()
    except Exception as error:
        error.add_note(f"broken law: {law.__name__}")
        raise


__all__ = ["LAWS", "Law", "Rule", "check_law"]
