"""The simulated device itself: late, in any order that streams and events allow, and no other."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
from banyankv import ConfigError
from banyankv.testing import SimulatedDevice, simulated_device
from banyankv.tiers.device import device_for

SEEDS = range(40)
CPU = torch.device("cpu")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_keeps_its_order(seed):
    device, done = SimulatedDevice(seed), []
    streams = [device.new_stream() for _ in range(3)]
    for number in range(30):
        streams[number % 3].enqueue(lambda number=number: done.append(number))
    device.synchronize()
    assert sorted(done) == list(range(30))
    for first in range(3):
        assert [number for number in done if number % 3 == first] == list(range(first, 30, 3))


def orders(seed, *, wait):
    """What two streams do, of which the second may wait for the first, in the order in which it is done."""
    device, done = SimulatedDevice(seed), []
    one, other = device.new_stream(), device.new_stream()
    event = device.new_event()
    one.enqueue(lambda: done.append("a"))
    event.record(one)
    one.enqueue(lambda: done.append("b"))
    if wait:
        other.wait_event(event)
    other.enqueue(lambda: done.append("c"))
    device.synchronize()
    return "".join(done)


def test_streams_go_in_any_order_that_events_allow():
    assert {orders(seed, wait=False) for seed in SEEDS} == {"abc", "acb", "cab"}
    assert {orders(seed, wait=True) for seed in SEEDS} == {"abc", "acb"}


def test_some_devices_do_nothing_before_they_must_and_others_much():
    waited = set()
    for seed in SEEDS:
        device, done = SimulatedDevice(seed), []
        stream, event = device.new_stream(), device.new_event()
        for number in range(9):
            stream.enqueue(partial(done.append, number))
        event.record(stream)
        waited.add(len(done))
        passed = event.query()
        assert passed == (not stream.steps)
        event.synchronize()
        assert event.query()
        assert len(done) == 9
    assert {0, 9} < waited


def recorded_again(seed):
    """Whether work before a second recording is done when who waits for the first has gone on."""
    device, done = SimulatedDevice(seed), []
    one, other = device.new_stream(), device.new_stream()
    event = device.new_event()
    event.synchronize()
    assert event.query()
    other.wait_event(event)
    event.record(one)
    other.wait_event(event)
    one.enqueue(lambda: done.append("late"))
    event.record(one)
    other.synchronize()
    was_done = bool(done)
    event.synchronize()
    assert done == ["late"]
    return was_done


def test_a_wait_is_for_what_was_recorded_then():
    assert {recorded_again(seed) for seed in SEEDS} == {True, False}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_calls_and_seed_give_the_same_order(seed):
    assert orders(seed, wait=False) == orders(seed, wait=False)


def test_the_current_stream_is_each_threads_own():
    device, seen = SimulatedDevice(0), []
    stream = device.new_stream()
    with device.using(stream):
        thread = threading.Thread(target=lambda: seen.append(device.stream_at(0)))
        thread.start()
        thread.join()
        assert device.stream_at(0) is stream
    assert seen == [device.stream_at(0)]
    assert device.stream_at(stream.handle) is stream
    with pytest.raises(ConfigError, match="has no stream 99"):
        device.stream_at(99)


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_are_done_late_and_in_order(seed):
    device = SimulatedDevice(seed)
    pool, ids = torch.arange(6).reshape(3, 2), torch.tensor([2, 0])
    rows, back = torch.zeros((2, 2), dtype=torch.int64), torch.zeros((3, 2), dtype=torch.int64)
    device.gather(rows, pool, ids)
    device.scatter(back, ids, rows)
    device.copy(rows, torch.ones_like(rows))
    device.synchronize()
    assert back.tolist() == [[0, 1], [0, 0], [4, 5]]
    assert rows.unique().tolist() == [1]


def test_the_block_is_about_the_cpu_and_ends():
    assert device_for(CPU) is None
    with simulated_device(1) as outer:
        with simulated_device(2) as inner:
            assert device_for(CPU) is inner
        assert device_for(CPU) is outer
    assert device_for(CPU) is None


def test_all_work_is_done_at_the_end_of_the_block():
    done = []
    with simulated_device(0) as device:
        stream = device.new_stream()
        for _ in range(50):
            stream.enqueue(lambda: done.append(1))
    assert len(done) == 50


def test_a_seed_is_a_number():
    with pytest.raises(ConfigError, match="seed"):
        SimulatedDevice("7")
