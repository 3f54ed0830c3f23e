"""Streams belong to the thread that calls: the cache's own thread must never ask which one is current."""

from __future__ import annotations

import contextlib

import pytest
from banyankv import threads
from banyankv.testing import simulated_device

from .room import config


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_pages_are_not_given_on_before_the_callers_stream_has_passed(dispatch, named, seed):
    """The stream is the caller's current one, or the one that it names; its work is done late."""
    done: list[str] = []
    with (
        simulated_device(seed) as device,
        threads.open_cache(config(dispatch, {"full": 4})) as cache,
    ):
        stream = device.new_stream()
        handle = stream.handle if named else None
        for give_back in (
            lambda lease: lease.release(stream=handle),
            lambda lease: cache.release_batch([lease], stream=handle),
            lambda lease: lease.trim(4, stream=handle),
            lambda lease: cache.submit(lease.release, stream=handle).result(20),
        ):
            done.clear()
            with contextlib.nullcontext() if named else device.using(stream):
                lease = cache.acquire([1])
                lease.extend(4)
                stream.enqueue(lambda: done.append("written"))
                give_back(lease)
            with cache.acquire([2]) as other:
                other.extend(4, timeout=20)
                assert done
            lease.release()
        cache.check()


def test_every_verb_of_a_lease_hands_over_the_callers_stream(dispatch, monkeypatch):
    with (
        simulated_device(0) as device,
        threads.open_cache(config(dispatch, {"full": 9, "mamba": 3})) as cache,
    ):
        recorded: list[int] = []
        fences = cache.bridge.fences
        record = type(fences).record

        def note(self, stream: int = 0) -> int:
            recorded.append(stream)
            return record(self, stream)

        monkeypatch.setattr(type(fences), "record", note)
        stream = device.new_stream()
        with device.using(stream):
            lease = cache.acquire([1, 2])
            lease.extend(2)
            lease.snapshot(at=2)
            lease.publish()
            cache.extend_batch([lease], 1)
            lease.append([3])
            cache.publish_batch([lease])
            lease.trim(0)
            lease.release()
        assert recorded
        assert set(recorded) == {stream.handle}
        del stream
