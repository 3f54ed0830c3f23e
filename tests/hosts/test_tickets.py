"""Tickets: polling, cancelling at every stage, and what a lease says while a call of it is under way."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import trio
from banyankv import (
    ConfigError,
    LeaseInUse,
    NoCapacity,
    StaleLease,
    TicketCancelled,
    WrongHost,
    threads,
)

from .room import PROMPT, Gate, clean, config, until, waiting


def test_a_step_loop_submits_and_polls(dispatch):
    with threads.open_cache(config(dispatch, {"full": 99})) as cache:
        with Gate(cache):
            ticket = cache.submit(cache.acquire, PROMPT, deadline=20, session="s")
            assert not ticket.poll()
            with pytest.raises(TimeoutError):
                ticket.result(timeout=0)
            assert "under way" in repr(ticket)
        until(ticket.poll)
        lease = ticket.result()
        assert ticket.result() is lease
        assert "ready" in repr(ticket)
        ticket.cancel()  # what has been handed out stays
        extend = cache.submit(lease.extend, 40)
        assert extend.result(20) is None
        assert cache.submit(lease.publish, upto=40).result(20) == 40
        refused = cache.submit(lease.extend, 1000, deadline=0)
        until(refused.poll)
        for _ in range(2):
            with pytest.raises(NoCapacity):
                refused.result()
        cache.submit(lease.release).result(20)
        clean(cache)


def test_submit_takes_verbs_only(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        for wrong in (print, cache.submit, "acquire", threads.Cache.acquire):
            with pytest.raises(ConfigError, match="method of a cache or a lease"):
                cache.submit(wrong, [1])
        with pytest.raises(ConfigError, match="no timeout"):
            cache.submit(cache.acquire, [1], timeout=3)
        clean(cache)


def test_calls_of_one_thread_are_begun_in_order(dispatch):
    begun: list[int] = []
    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        with Gate(cache):
            for number in range(50):

                async def note(number: int = number) -> None:
                    begun.append(number)

                last = cache._send(note, None)
        last.result(20)
    assert begun == list(range(50))


def test_cancelled_before_it_began_it_takes_nothing(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        with Gate(cache):
            tickets = [
                cache.submit(cache.acquire, PROMPT),
                cache.submit(cache.acquire_batch, [[1], [2]]),
            ]
            for ticket in tickets:
                ticket.cancel()
                assert not ticket.poll()
        for ticket in tickets:
            with pytest.raises(TicketCancelled):
                ticket.result(20)
        assert cache.stats().requests == 0
        clean(cache)


def test_cancelled_while_it_waits_it_takes_nothing(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        holder, lease, other = cache.acquire_batch([[1], [2], [3]])
        holder.extend(9)
        ticket = cache.submit(lease.extend, 5)
        batch = cache.submit(cache.extend_batch, [other, holder], [1, 1])
        waiting(cache, 3)
        ticket.cancel()
        batch.cancel()
        with pytest.raises(TicketCancelled):
            ticket.result(20)
        assert [type(outcome) for outcome in batch.result(20)] == [TicketCancelled] * 2
        assert cache.stats().waiting == 0
        assert (holder.extent, lease.extent, other.extent) == (9, 0, 0)
        cache.release_batch([holder, lease, other])
        clean(cache)


def test_cancelled_when_it_is_ready_its_leases_are_released(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        tickets = [
            cache.submit(cache.acquire, [1]),
            cache.submit(cache.acquire_batch, [[1], [2]]),
        ]
        if dispatch == "direct":  # under mailbox dispatch it answers None
            tickets.append(cache.submit(cache.try_acquire, [1]))
        for ticket in tickets:
            until(ticket.poll)
        assert cache.stats().leases == 3 + (dispatch == "direct")
        for ticket in tickets:
            ticket.cancel()
            assert ticket.poll()
            with pytest.raises(TicketCancelled):
                ticket.result()
        clean(cache)


def test_cancelling_what_is_done_leaves_it_done(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        lease = cache.acquire([1] * 9)
        extend = cache.submit(lease.extend, 9)
        until(extend.poll)
        extend.cancel()
        assert extend.result() is None
        assert lease.extent == 9
        release = cache.submit(lease.release)
        release.cancel()
        assert release.result(20) is None
        clean(cache)


def test_cancelled_at_any_moment_nothing_is_left(dispatch):
    """The canceller is as fast as it can: it meets calls before, in and after every stage."""
    kept = []  # a ticket that is dropped would give its lease back too
    with threads.open_cache(config(dispatch, {"full": 20, "mamba": 8}, 60)) as cache:
        for number in range(300):
            ticket = cache.submit(cache.acquire, [*PROMPT[:6], number % 5])
            for _ in range(number % 7):
                ticket.poll()
            ticket.cancel()
            kept.append(ticket)
            if not number % 3:
                with pytest.raises(TicketCancelled):
                    ticket.result(20)
        clean(cache)


def test_cancelled_in_the_middle_what_it_takes_after_that_is_given_back(dispatch):
    begun, go = threading.Event(), threading.Event()

    async def slowly():
        begun.set()
        go.wait(20)
        return await cache._lease(partial(cache._cache.acquire, [1]), 0)

    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        ticket = cache._send(slowly, None)
        assert begun.wait(20)
        ticket.cancel()
        go.set()
        until(ticket.poll)
        clean(cache)  # before anybody asks for the result
        with pytest.raises(TicketCancelled):
            ticket.result()


def test_a_ticket_that_is_dropped_gives_its_lease_back(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        until(cache.submit(cache.stats).poll)
        with pytest.warns(ResourceWarning, match="given back now"):
            until(cache.submit(cache.acquire, [1]).poll)
        clean(cache)


def test_while_a_call_is_under_way_the_lease_says_so(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9, "mamba": 2})) as cache:
        holder, lease = cache.acquire([1]), cache.acquire([2])
        holder.extend(9)
        ticket = cache.submit(lease.extend, 5)
        waiting(cache)
        for use in (
            lambda: lease.extend(1),
            lambda: cache.submit(lease.publish),
            lease.publish,
            lambda: lease.trim(0),
            lambda: lease.snapshot(at=1),
            lambda: lease.append([1]),
            lambda: lease.pages("full"),
            lambda: lease.start("full"),
            lease.state,
        ):
            with pytest.raises(LeaseInUse, match="under way"):
                use()
        assert (lease.extent, lease.known) == (0, 1)
        holder.release()
        ticket.result(20)
        assert len(lease.pages("full")) == 5
        lease.release()
        clean(cache)


def test_a_release_ends_what_is_under_way(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        holder, lease = cache.acquire([1]), cache.acquire([2])
        holder.extend(9)
        ticket = cache.submit(lease.extend, 5)
        waiting(cache)
        lease.release()
        with pytest.raises(StaleLease):
            ticket.result(20)
        holder.release()
        clean(cache)


def test_in_the_caches_own_thread_waiting_is_refused_and_submitting_is_not(dispatch):
    seen: list[object] = []
    tickets: list[threads.Ticket] = []

    async def within() -> None:
        try:
            cache.acquire([1])
        except WrongHost as error:
            seen.append(error)
        tickets.append(cache.submit(cache.acquire, [1]))
        try:
            tickets[0].result()
        except WrongHost as error:
            seen.append(error)

    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        cache._send(within, None).result(20)
        assert len(seen) == 2
        assert all("would wait for itself" in str(error) for error in seen)
        tickets[0].result(20).release()
        clean(cache)


def test_two_caches_in_two_threads_know_nothing_of_each_other(dispatch):
    with (
        threads.open_cache(config(dispatch, {"full": 9})) as one,
        threads.open_cache(config(dispatch, {"full": 9})) as two,
    ):
        lease = one.acquire([1])
        (outcome,) = two.extend_batch([lease], 1)
        assert isinstance(outcome, ConfigError)
        with pytest.raises(ConfigError, match="leases of this cache"):
            two.release_batch([lease])
        lease.release()
        clean(one)
        clean(two)


async def test_a_trio_program_may_call_it_from_its_worker_threads(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        lease = await trio.to_thread.run_sync(cache.acquire, [1])
        await trio.to_thread.run_sync(lease.release)
        await trio.to_thread.run_sync(cache.check)
