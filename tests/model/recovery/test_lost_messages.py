"""A fault plan that drops, fails, delays, duplicates or crashes any message leaves nobody waiting for ever.

Each run is the scene with one fault at one message of its play; every wait has a limit on the virtual
clock. A dropped ask without a deadline fails at once, as the plan would else be what nobody answers.
"""

from __future__ import annotations

import functools
import os
import random
from collections import Counter
from unittest import mock

import pytest
from banyankv.actors import Fault, FaultKind, FaultPlan, Faults
from banyankv.errors import IntegrityError

from .crashes import Place, Watcher
from .matrix import play

SAMPLE = int(os.environ.get("BANYANKV_CRASHES", "3"))
KINDS = (FaultKind.DROP, FaultKind.FAIL, FaultKind.DELAY, FaultKind.DUPLICATE, FaultKind.CRASH)
NOWHERE = FaultPlan(faults=(Fault(what=FaultKind.FAIL, receiver="/nobody"),))


@functools.cache
def edges(dispatch: str, full: bool) -> dict[Place, range]:
    """The messages that are sent in the play, by their numbers."""
    sent: Counter[Place] = Counter()
    before: Counter[Place] = Counter()
    at_edge = Faults.at_edge

    def counted(faults: Faults, sender: str, receiver: str, message: str) -> object:
        sent[Place(receiver, message)] += 1
        return at_edge(faults, sender, receiver, message)

    with mock.patch.object(Faults, "at_edge", counted):
        play(
            dispatch,
            full=full,
            watcher=Watcher(),
            armed=lambda: before.update(sent),
            faults=NOWHERE,
        )
    return {p: range(before[p] + 1, n + 1) for p, n in sent.items() if n > before[p]}


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_that_is_lost_leaves_anybody_waiting(dispatch, kind):
    rng = random.Random(f"{dispatch} {kind}")
    full = bool(rng.randrange(2))
    sent = edges(dispatch, full)
    places = rng.sample(sorted(sent), SAMPLE or len(sent))
    faults: list[str] = []
    for place in places:
        fault = Fault(
            what=kind,
            receiver=place.path,
            message=place.message,
            nth=rng.choice(sent[place]),
            seconds=2.0 if kind is FaultKind.DELAY else 0.0,
        )
        try:
            play(dispatch, full=full, watcher=Watcher(), faults=FaultPlan(faults=(fault,)))
        except Exception as error:  # noqa: BLE001 - whatever it is, that is the finding
            # What is done twice may leave a page or a lock behind, until an audit finds it.
            if kind is not FaultKind.DUPLICATE or not _left_behind(error):
                faults.append(f"{fault}: {type(error).__name__}: {error}"[:600])
    assert not faults, "\n".join(faults)


def _left_behind(error: Exception) -> bool:
    return isinstance(error, IntegrityError) or "left behind" in str(error)
