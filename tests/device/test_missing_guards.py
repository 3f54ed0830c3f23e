"""Take a guard away, and the simulated device shows the wrong byte that it kept away."""

from __future__ import annotations

from unittest import mock

import pytest
from banyankv.testing import SimulatedStream
from banyankv.tiers.fences import FenceTable
from banyankv.tiers.stream_copy import StreamCopyEngine
from banyankv.tiers.tier import PageTier

from .engine import history, repeatable

SEEDS = 60
"""Histories within which each is found; most in the first ten."""

take_back = PageTier._take_back
work = StreamCopyEngine._work


def without_quarantine(tier, items, fence):
    take_back(tier, tuple((name, pages, 0) for name, pages, _ in items), fence)


def without_cooling(tier, items, fence):
    take_back(tier, items, 0)


def without_the_end(engine, groups, lane, *args):
    """Say that a batch is over when it is enqueued."""
    done, lane.done = lane.done, mock.Mock()
    work(engine, groups, lane, *args)
    lane.done = done


GUARDS = {
    "no copy waits for what the engine has enqueued": (
        mock.patch.object(SimulatedStream, "wait_event", return_value=None),
        {"streams": 1},
    ),
    "pages of a transfer are not quarantined": (
        mock.patch.object(PageTier, "_take_back", without_quarantine),
        {"streams": 1},
    ),
    "freed pages do not cool": (
        mock.patch.object(PageTier, "_take_back", without_cooling),
        {"streams": 3, "l2": False},
    ),
    "nothing of the engine's streams is recorded": (
        mock.patch.object(FenceTable, "record", return_value=0),
        {"streams": 1},
    ),
    "no stream follows another": (
        mock.patch.object(FenceTable, "follow", return_value=None),
        {"streams": 3, "l2": False},
    ),
    "a batch is over before the device has done it": (
        mock.patch.object(StreamCopyEngine, "_work", without_the_end),
        {"streams": 1},
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_a_missing_guard_shows_as_a_wrong_byte(guard):
    missing, world = GUARDS[guard]
    for seed in range(SEEDS):
        with repeatable(seed), missing:
            if history(seed, **world).wrong:
                return
    pytest.fail(f"{guard}: found in none of {SEEDS} histories")
