"""A cache in a thread of its own: the life of a lease, waiting, timeouts, batches, closing."""

from __future__ import annotations

import gc
import threading
import time

import pytest
from banyankv import (
    ActorCrashed,
    Closed,
    ConfigError,
    DeadlineExceeded,
    LeaseInUse,
    NoCapacity,
    StaleLease,
    threads,
)
from banyankv.actors import Fault, FaultKind, FaultPlan
from banyankv.hosts.tickets import Call

from .room import PROMPT, clean, config, serve, until, waiting


def test_the_life_of_a_lease(dispatch):
    with threads.open_cache(config(dispatch, {"full": 99, "swa": 99, "mamba": 4})) as cache:
        with cache.acquire(PROMPT, session="chat", priority=1) as lease:
            assert (lease.length, lease.extent, lease.known) == (0, 0, 40)
            assert lease.state() is None
            lease.extend(40)
            assert lease.state() is not None
            assert len(lease.pages("full")) == 40
            assert isinstance(lease.snapshot(at=40), int)
            assert lease.publish() == lease.published == 40
            lease.append([900, 901])
            lease.extend(2)
            lease.trim(1)
            assert (lease.extent, lease.known) == (41, 41)
            assert lease.publish() == 41
            assert lease.start("full") == 0
            assert lease.start("swa") > 0
        assert cache.peek([*PROMPT, 5]).length == 40
        with cache.acquire([*PROMPT, 5]) as lease:
            assert lease.length == lease.full_match == lease.hit.l1 == 40
            assert lease.state() is not None
        tried = cache.try_acquire([*PROMPT, 5])
        if dispatch == "direct":
            assert tried.length == 40
            tried.release()
        assert len(cache.explain(PROMPT)) == 3
        clean(cache)
        assert cache.evict("full", 5).freed >= 5
        cache.flush()
        assert cache.peek(PROMPT).length == 0
        assert cache.inspect().leases == ()
        assert "cache" in str(cache.tree())
        assert cache.page_size == 1
        assert "threads" not in repr(cache) and "thread" in repr(cache)


def test_errors_are_those_of_trio(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        for bad in ([], [-1], "text", 3):
            with pytest.raises(ConfigError):
                cache.acquire(bad)
            with pytest.raises(ConfigError):
                cache.submit(cache.acquire, bad)
        with pytest.raises(ConfigError, match="seconds"):
            cache.acquire(PROMPT, deadline="soon")
        with pytest.raises(ConfigError, match="timeout"):
            cache.acquire(PROMPT, timeout="soon")
        with pytest.raises(ConfigError, match="stream"):
            cache.acquire(PROMPT, stream=-1)
        lease = cache.acquire(PROMPT)
        with pytest.raises(ConfigError, match="at least 1"):
            lease.extend(0)
        with pytest.raises(NoCapacity):
            lease.extend(10, deadline=0)
        with pytest.raises(ConfigError, match="no paged component"):
            lease.pages("mamba")
        lease.release()
        lease.release()
        for verb in (lease.publish, lambda: lease.pages("full"), lambda: lease.append([1])):
            with pytest.raises(StaleLease):
                verb()
        clean(cache)


def test_what_is_wrong_with_the_configuration_is_said_to_the_opener(dispatch):
    before = threading.active_count()
    with pytest.raises(ConfigError, match="CacheConfig"):
        threads.open_cache("big").__enter__()
    with pytest.raises(ConfigError, match="unheard"):
        threads.open_cache(config(dispatch, {"full": 9}), policy="unheard").__enter__()
    block = threads.open_cache(config(dispatch, {"full": 9}))
    with block:
        pass
    with pytest.raises(ConfigError, match="entered before"), block:
        pass
    assert threading.active_count() == before


def test_an_error_of_the_block_passes_unchanged(dispatch):
    error = ValueError("mine")
    with (
        pytest.raises(ValueError, match="mine") as caught,
        threads.open_cache(config(dispatch, {"full": 9})),
    ):
        raise error
    assert caught.value is error


def test_who_waits_for_room_is_served_when_another_thread_releases(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        holder, lease = cache.acquire([1]), cache.acquire([2])
        holder.extend(9)
        thread = threading.Thread(target=lease.extend, args=(5,))
        thread.start()
        waiting(cache)
        holder.release()
        thread.join(20)
        assert lease.extent == 5
        lease.release()
        clean(cache)


def test_a_call_is_given_up_after_its_timeout(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        holder, lease = cache.acquire([1]), cache.acquire([2])
        holder.extend(9)
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="timeout of 0.1 s"):
            lease.extend(5, timeout=0.1)
        with pytest.raises(DeadlineExceeded):
            lease.extend(5, timeout=-1)
        assert time.monotonic() - started < 10
        assert lease.extent == 0
        assert cache.stats().waiting == 0
        holder.release()
        lease.extend(5, timeout=20)
        lease.release()
        clean(cache)


def test_the_deadline_is_the_caches(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        holder, lease = cache.acquire([1]), cache.acquire([2])
        holder.extend(9)
        with pytest.raises(NoCapacity):
            lease.extend(5, deadline=0.05, timeout=20)
        holder.release()
        lease.release()
        clean(cache)


def test_batches_serve_a_step_each_item_by_itself(dispatch):
    with threads.open_cache(config(dispatch, {"full": 99})) as cache:
        serve(cache, PROMPT)
        prompts = [[*PROMPT, 1], [], [*PROMPT[:10], 2], "text"]
        first, empty, second, text = cache.acquire_batch(prompts)
        assert (first.length, second.length) == (40, 10)
        assert isinstance(empty, ConfigError)
        assert isinstance(text, ConfigError)
        gone = cache.acquire([7])
        gone.release()
        leases = [first, gone, second, second, "lease"]
        done, stale, also, busy, foreign = cache.extend_batch(leases, 3, deadline=0)
        assert done is also is None
        assert isinstance(stale, StaleLease)
        assert isinstance(busy, LeaseInUse)
        assert isinstance(foreign, ConfigError)
        none, short = cache.extend_batch([first, second], [2, 99], deadline=0)
        assert none is None
        assert isinstance(short, NoCapacity)
        assert cache.publish_batch([first, second]) == [41, 11]
        first.append([8, 9])
        assert cache.publish_batch([first, second], [42, None]) == [42, 11]
        cache.release_batch([first, second, gone])
        for leases, counts in (([first], [1, 2]), (first, 1), ([first], 1.5)):
            with pytest.raises(ConfigError):
                cache.extend_batch(leases, counts)
        with pytest.raises(ConfigError):
            cache.release_batch([None])
        with pytest.raises(ConfigError):
            cache.acquire_batch(7)
        assert cache.acquire_batch([]) == cache.extend_batch([], 1) == cache.publish_batch([]) == []
        clean(cache)


def test_an_item_that_waits_keeps_no_other(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9, "swa": 9})) as cache:
        leases = cache.acquire_batch([[1], [2], [3]])
        assert cache.extend_batch(leases, [3, 3, 2]) == [None] * 3
        ticket = cache.submit(cache.extend_batch, leases, [5, 1, 1])
        waiting(cache, 3)
        assert not ticket.poll()
        leases[0].release()
        first, second, third = ticket.result(20)
        assert isinstance(first, StaleLease)
        assert second is third is None
        cache.release_batch(leases)
        clean(cache)


def test_a_batch_that_is_late_says_so_item_by_item(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        leases = cache.acquire_batch([[1], [2]])
        done, late = cache.extend_batch(leases, [6, 6], timeout=0.1)
        assert done is None
        assert isinstance(late, DeadlineExceeded)
        assert [lease.extent for lease in leases] == [6, 0]
        cache.release_batch(leases)
        clean(cache)


def test_closing_with_leases_live_and_callers_waiting(dispatch):
    outcomes: list[object] = []

    def wait(lease) -> None:
        try:
            lease.extend(5)
        except Closed as error:
            outcomes.append(error)

    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        holder, lease = cache.acquire([1]), cache.acquire([2])
        holder.extend(9)
        thread = threading.Thread(target=wait, args=(lease,))
        thread.start()
        waiting(cache)
        ticket = cache.submit(holder.extend, 1)
    thread.join(20)
    assert len(outcomes) == 1
    with pytest.raises(Closed):
        ticket.result(20)
    for verb in (cache.stats, holder.publish, lambda: cache.submit(cache.settle)):
        with pytest.raises(Closed, match="has closed"):
            verb()
    late = threads.Ticket(cache.bridge)
    cache.bridge.send([Call(late, cache._cache.stats)])  # by who looked before the block was left
    with pytest.raises(Closed):
        late.result(20)
    assert cache.release_batch([lease]) is None
    assert holder.release() is None
    gc.collect()  # what was live at the end is no dropped lease


def test_a_lease_that_is_dropped_is_given_back_and_said(dispatch):
    with threads.open_cache(config(dispatch, {"full": 9})) as cache:
        lease = cache.acquire([1])
        lease.extend(9)
        leases = [lease]
        del lease
        with pytest.warns(ResourceWarning, match="given back now"):
            leases.clear()
        clean(cache)
        serve(cache, [5] * 9)


def test_many_threads_at_once(dispatch):
    """Hits, misses, waits, timeouts and cancellations of eight threads leave a sound, empty cache."""
    failures: list[BaseException] = []

    def engine(cache, number: int) -> None:
        try:
            for turn in range(12):
                tokens = [*PROMPT[: 4 + turn], 100 + number % 3, 7]
                with cache.acquire(tokens) as lease:
                    try:
                        lease.extend(len(tokens) - lease.length, timeout=20 if turn % 3 else 0.01)
                        lease.publish()
                    except DeadlineExceeded:
                        pass
                tickets = [cache.submit(cache.acquire, [number, turn, n]) for n in range(4)]
                tickets[0].cancel()
                tickets[1].result().release()
                tickets[2].cancel()
                until(tickets[3].poll)
                cache.release_batch([tickets[3].result()])
                leases = cache.acquire_batch([tokens] * 3)
                cache.extend_batch(leases, 1, timeout=0.01)
                cache.publish_batch(leases)
                cache.release_batch(leases)
        except BaseException as error:
            failures.append(error)
            raise

    small = config(dispatch, {"full": 60, "swa": 60}, 200)
    with threads.open_cache(small) as cache:
        engines = [threading.Thread(target=engine, args=(cache, n)) for n in range(8)]
        for thread in engines:
            thread.start()
        for thread in engines:
            thread.join(100)
        assert not failures
        clean(cache)
        cache.flush()
        assert cache.stats().nodes == 0


def test_a_cache_that_gives_up_refuses_all_callers_and_says_why_on_leaving(dispatch):
    plan = FaultPlan(faults=(Fault(message="Insert", what=FaultKind.CRASH, times=0),))
    refused: list[BaseException] = []

    def wait(lease) -> None:
        try:
            lease.extend(5)
        except (ActorCrashed, Closed) as error:
            refused.append(error)

    small = config(dispatch, {"full": 9})
    with pytest.raises(Closed) as caught, threads.open_cache(small, faults=plan) as cache:
        holder, lease = cache.acquire([1] * 9), cache.acquire([2])
        holder.extend(9)
        thread = threading.Thread(target=wait, args=(lease,))
        thread.start()
        waiting(cache)
        crashes = 0
        while crashes < 100:
            try:
                holder.publish()
            except ActorCrashed:
                crashes += 1
            except Closed:
                break
        thread.join(20)
        assert refused
        with pytest.raises(Closed):
            cache.acquire([1])
        lease.release()
    assert "Insert" in str(caught.value)
    assert caught.value.cause is not None
