from __future__ import annotations

from itertools import pairwise

import pytest
import trio
import trio.testing
from banyankv.tiers.store.breaker import Breaker, BreakerState


def call(breaker: Breaker, ok: bool | None) -> bool:
    permit = breaker.admit()
    if permit is None:
        return False
    breaker.settle(permit, ok)
    return True


async def test_failures_in_a_row_open_it(mock_clock: trio.testing.MockClock) -> None:
    breaker = Breaker(threshold=3)
    for ok in (False, False, True, False, False, None):
        assert call(breaker, ok)
        assert breaker.state is BreakerState.CLOSED
    assert call(breaker, False)
    assert breaker.state is BreakerState.OPEN
    assert not call(breaker, True)
    assert breaker.opened == 1


async def test_a_trial_that_succeeds_closes_it(mock_clock: trio.testing.MockClock) -> None:
    breaker = Breaker(threshold=1, base=4.0)
    call(breaker, False)
    assert 2.0 <= breaker.retry_at - trio.current_time() <= 4.0
    mock_clock.jump(breaker.retry_at - trio.current_time() - 0.01)
    assert breaker.admit() is None
    mock_clock.jump(0.02)
    assert breaker.state is BreakerState.HALF_OPEN
    trial = breaker.admit()
    assert trial is not None
    assert breaker.admit() is None  # one trial at a time
    breaker.settle(trial, True)
    assert breaker.state is BreakerState.CLOSED
    assert call(breaker, True)


async def test_a_trial_that_tells_nothing_leaves_room_for_another(
    mock_clock: trio.testing.MockClock,
) -> None:
    breaker = Breaker(threshold=1)
    call(breaker, False)
    mock_clock.jump(1.0)
    assert call(breaker, None)
    assert breaker.state is BreakerState.HALF_OPEN
    assert call(breaker, True)
    assert breaker.state is BreakerState.CLOSED


async def test_pauses_double_up_to_a_ceiling_and_start_anew_after_success(
    mock_clock: trio.testing.MockClock,
) -> None:
    breaker = Breaker(threshold=1, base=1.0, ceiling=8.0)
    pauses = []
    for _ in range(6):
        assert call(breaker, False)
        pauses.append(breaker.retry_at - trio.current_time())
        mock_clock.jump(pauses[-1])
    for pause, most in zip(pauses, [1, 2, 4, 8, 8, 8], strict=True):
        assert most / 2 <= pause <= most
    assert len(set(pauses)) == 6
    assert call(breaker, True)
    assert call(breaker, False)
    assert breaker.retry_at - trio.current_time() <= 1.0


@pytest.mark.parametrize("late", [True, False])
async def test_a_call_from_before_the_opening_decides_nothing(
    mock_clock: trio.testing.MockClock, late: bool
) -> None:
    breaker = Breaker(threshold=1)
    before = breaker.admit()
    assert before is not None
    call(breaker, False)
    until = breaker.retry_at
    breaker.settle(before, late)
    assert breaker.state is BreakerState.OPEN
    assert breaker.retry_at == until
    assert breaker.opened == 1


async def test_jitter_is_seeded(mock_clock: trio.testing.MockClock) -> None:
    def pauses(seed: int) -> list[float]:
        breaker = Breaker(threshold=1, seed=seed)
        times = [0.0]
        for _ in range(4):
            call(breaker, False)
            times.append(breaker.retry_at)
            mock_clock.jump(breaker.retry_at - trio.current_time())
        return [round(b - a, 9) for a, b in pairwise(times[1:])]

    assert pauses(1) == pauses(1)
    assert pauses(1) != pauses(2)
