"""A sample of the matrix of crashes; `python -m tests.model.recovery.matrix` tries all of it.

BANYANKV_CRASHES says how many cells each world tries here (0: all).
"""

from __future__ import annotations

import os
import random

import pytest

from .crashes import Place
from .matrix import NEVER, WORLDS, cells, first_crash, seen, try_cell

SAMPLE = int(os.environ.get("BANYANKV_CRASHES", "8"))


@pytest.mark.parametrize("full", [False, True], ids=["wide", "full"])
def test_after_any_crash_engines_go_on_with_their_leases(dispatch, full):
    """Each cell is one crash; `try_cell` says what must hold after it."""
    every = list(cells(dispatch, full))
    chosen = random.Random(f"{dispatch} {full}").sample(every, SAMPLE or len(every))
    faults = [outcome for cell in chosen if (outcome := try_cell(cell)).fault]
    assert not faults, "\n".join(f"{fault.cell}: {fault.fault}" for fault in faults)


def test_every_message_of_every_actor_is_in_the_matrix():
    """A new message must be one that the scene brings about, or one that is known not to be sent."""
    reached: set[Place] = set()
    known: set[Place] = set()
    for dispatch, full in WORLDS[:2]:
        reached |= {cell.aim.place for cell in cells(dispatch, full)}
        known |= set(seen(dispatch, full).handlers)
    assert known - reached == set(NEVER)


def test_a_scene_without_a_crash_knows_no_recovery():
    """Else the matrix would count crashes that are none of its own."""
    dispatch, full = WORLDS[0]
    assert "prepare" not in {place.message for place in seen(dispatch, full).middles}
    assert (
        first_crash(dispatch, full).number in seen(dispatch, full).middles[Place("/cache", "Peek")]
    )
