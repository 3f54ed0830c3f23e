"""The public API behaves the same on every host, in both dispatch modes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest
from banyankv import (
    Cache,
    ConfigError,
    DeadlineExceeded,
    Lease,
    NoCapacity,
    StaleLease,
)

from .host import MOST, Host, until
from .rooms import NEXT, OTHER, PROMPT, config, nothing_is_held, turn
from .waits import Waits, below


def test_the_life_of_a_lease(host: Host, dispatch: str) -> None:
    async def scenario(host: Host) -> None:
        async with host.open(config(dispatch)) as cache:
            async with await cache.acquire(PROMPT, session="s") as lease:
                assert (lease.length, lease.extent) == (0, 0)
                await lease.extend(8)
                assert len(lease.pages("full")) == 4
                assert lease.state() is not None
                lease.append([8, 9, 10])
                await lease.extend(3)
                await lease.trim(1)
                assert (lease.extent, lease.known) == (10, 10)
                assert await lease.snapshot(at=10) is not None
                assert await lease.publish() == 10
            with pytest.raises(StaleLease):
                await lease.extend(1)
            await lease.release()  # once more does nothing
            assert (await cache.peek([*PROMPT, 8, 9, 10])).length == 10
            assert [v.component for v in await cache.explain([*PROMPT, 8, 9, 10])]
            async with await cache.acquire([*PROMPT, 8, 9, 10]) as lease:
                assert lease.length == 10
            leases = await cache.acquire_batch([[*PROMPT, 8, 9, 10], OTHER])
            assert [lease.length for lease in leases] == [10, 0]
            for lease in leases:
                await lease.release()
            tried = cache.try_acquire([*PROMPT, 8, 9, 10])
            assert (tried is None) == (dispatch == "mailbox")
            if tried is not None:
                await tried.release()
            await nothing_is_held(host, cache)
            assert (await cache.evict("full", 1)).nodes == 1
            await cache.flush()
            assert (await cache.stats()).leases == 0
            assert (await cache.peek([*PROMPT, 8, 9, 10])).length == 0

    host.run(scenario)


def test_an_extend_waits_for_room(host: Host, dispatch: str) -> None:
    async def scenario(host: Host) -> None:
        async with host.open(config(dispatch, pages=4)) as cache, host.beside():
            first, second = await cache.acquire(PROMPT), await cache.acquire(OTHER)
            await first.extend(8)
            waiting = host.start(lambda: second.extend(8))
            await host.sleep(0.02)
            assert second.extent == 0
            await first.release()
            ended = await waiting.end()
            assert ended is not None
            ended.unwrap()
            assert second.extent == 8
            await second.release()
            await nothing_is_held(host, cache)

    host.run(scenario)


def test_an_extend_without_room_is_refused_in_time(host: Host, dispatch: str) -> None:
    async def scenario(host: Host) -> None:
        async with host.open(config(dispatch, pages=4)) as cache:
            async with await cache.acquire(PROMPT) as first, await cache.acquire(OTHER) as second:
                await first.extend(8)
                for deadline in (0, 0.02):
                    with pytest.raises(NoCapacity, match="pool 'full': 4 pages needed, 0 free"):
                        await second.extend(8, deadline=deadline)
                assert second.extent == 0
            await nothing_is_held(host, cache)

    host.run(scenario)


@pytest.mark.parametrize("kind", ["room", "copy", "store"])
def test_who_waits_gets_what_it_waits_for(host: Host, dispatch: str, kind: str) -> None:
    waits = Waits(kind, dispatch)

    async def scenario(host: Host) -> None:
        async with host.open(waits.config, **waits.parts) as cache, host.beside():
            await waits.prepare(host, cache)
            task = host.start(lambda: waits.call(cache))
            await until(host, waits.waiting)
            await host.sleep(0.01)
            await waits.go()
            ended = await task.end()
            assert ended is not None
            assert ended.unwrap() == {"room": 0, "copy": 8, "store": 256}[kind]
            await nothing_is_held(host, cache)

    host.run(scenario)


@pytest.mark.parametrize("kind", ["room", "copy", "store"])
def test_who_is_cancelled_while_it_waits_holds_nothing(
    host: Host, dispatch: str, kind: str
) -> None:
    waits = Waits(kind, dispatch)

    async def scenario(host: Host) -> None:
        async with host.open(waits.config, **waits.parts) as cache, host.beside():
            await waits.prepare(host, cache)
            task = host.start(lambda: waits.call(cache))
            await until(host, waits.waiting)
            await host.sleep(0.01)
            task.cancel()
            assert await task.end() is None
            assert await host.timed(0.02, lambda: waits.call(cache))
            await waits.go()
            await nothing_is_held(host, cache)
            await waits.call(cache)

    host.run(scenario)


def test_a_deadline_ends_the_wait_for_a_copy(host: Host, dispatch: str) -> None:
    waits = Waits("copy", dispatch)

    async def scenario(host: Host) -> None:
        async with host.open(waits.config, **waits.parts) as cache:
            await waits.prepare(host, cache)
            with pytest.raises(DeadlineExceeded):
                await cache.acquire(NEXT, deadline=0.02)
            async with await cache.acquire(NEXT, deadline=0) as lease:
                assert lease.length == 0  # what L1 has now
            await waits.go()
            async with await cache.acquire(NEXT, deadline=60) as lease:
                assert lease.length == 8
            await nothing_is_held(host, cache)

    host.run(scenario)


async def each_verb(cache: Cache) -> None:
    """Use every verb that can wait under mailbox dispatch, with room and without."""
    async with await cache.acquire(PROMPT, deadline=60) as lease:
        await lease.extend(8 - lease.extent)
        lease.append([8, 9])
        await lease.extend(4)
        await lease.trim(2)
        await lease.snapshot(at=10)
        await lease.publish()
    await cache.peek(PROMPT)
    async with AsyncExitStack() as stack:
        for lease in await cache.acquire_batch([PROMPT, OTHER]):
            stack.push_async_exit(lease)
    await cache.evict("full", 1)


def test_cancelled_at_each_wait_nothing_is_held(host: Host, dispatch: str) -> None:
    async def scenario(host: Host) -> None:
        async with host.open(config(dispatch, l2=16)) as cache:
            for step in range(1, MOST):
                reached = await host.cancelled_at(step, lambda: each_verb(cache))
                await nothing_is_held(host, cache)
                if not reached:
                    assert step > (12 if dispatch == "mailbox" else 1)
                    return
            raise AssertionError("the sweep did not end")

    host.run(scenario)


def test_a_lease_goes_on_after_a_verb_of_it_was_cancelled(host: Host, dispatch: str) -> None:
    """Whether a publish or a trim was done or not, the lease knows, and what it says later is right."""

    async def scenario(host: Host) -> None:
        for step in range(1, MOST):
            async with host.open(config(dispatch, l2=16)) as cache:
                async with await cache.acquire(PROMPT) as lease:
                    await lease.extend(8)
                    lease.append([8, 9, 90, 91])
                    await lease.extend(4)
                    reached = await host.cancelled_at(step, partial(lease.trim, 2))
                    if lease.extent == 12:
                        await lease.trim(2)
                    assert (lease.extent, lease.known) == (10, 10)
                    reached |= await host.cancelled_at(step, lease.publish)
                    lease.append([10, 11])
                    await lease.extend(2)
                    await lease.snapshot(at=12)
                    assert await lease.publish() == 12
                assert (await cache.peek([*range(12), 50])).length == 12
                assert (await cache.peek([*range(10), 90, 91, 50])).length == 0
                await nothing_is_held(host, cache)
            if not reached:
                return
        raise AssertionError("the sweep did not end")

    host.run(scenario)


@pytest.mark.parametrize("kind", ["room", "copy"])
def test_cancelled_at_each_wait_of_one_that_has_to_wait(
    host: Host, dispatch: str, kind: str
) -> None:
    async def scenario(host: Host) -> None:
        for step in range(1, MOST):
            waits = Waits(kind, dispatch)
            async with host.open(waits.config, **waits.parts) as cache, host.beside():
                await waits.prepare(host, cache)
                helper = host.start(partial(soon, host, waits))
                reached = await host.cancelled_at(step, partial(waits.call, cache))
                await helper.end()
                await nothing_is_held(host, cache)
            if not reached:
                return
        raise AssertionError("the sweep did not end")

    async def soon(host: Host, waits: Waits) -> None:
        await host.sleep(0.005)
        await waits.go()

    host.run(scenario)


REFUSED: dict[str, Callable[[Cache, Lease], Awaitable[object]]] = {
    "an empty prompt": lambda cache, lease: cache.acquire([]),
    "ids that are none": lambda cache, lease: cache.acquire(["a"]),  # type: ignore[list-item]
    "a deadline that is none": lambda cache, lease: cache.acquire([1], deadline="soon"),  # type: ignore[arg-type]
    "an unknown component": lambda cache, lease: cache.evict("ful", 1),
    "no count": lambda cache, lease: lease.extend(0),
    "too much trimmed": lambda cache, lease: lease.trim(99),
    "published beyond the room": lambda cache, lease: lease.publish(99),
    "a batch that is none": lambda cache, lease: cache.acquire_batch(7),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_changes_nothing(host: Host, dispatch: str, what: str) -> None:
    async def scenario(host: Host) -> None:
        async with host.open(config(dispatch)) as cache:
            async with await cache.acquire(PROMPT) as lease:
                await lease.extend(8)
                with pytest.raises(ConfigError):
                    await REFUSED[what](cache, lease)
                assert await lease.publish() == 8
            await nothing_is_held(host, cache)

    host.run(scenario)


def test_a_configuration_that_cannot_work_starts_nothing(host: Host) -> None:
    async def scenario(host: Host) -> None:
        with pytest.raises(ConfigError):
            async with host.open(None):  # type: ignore[arg-type]
                pass
        with pytest.raises(ConfigError):
            async with host.open(config("direct"), policy=7):
                pass
        async with host.open(config("direct")) as cache:
            await turn(cache, PROMPT)

    host.run(scenario)


def test_batch_and_try_forms_take_what_l1_has_now(host: Host, dispatch: str) -> None:
    async def scenario(host: Host) -> None:
        async with host.open(config(dispatch, l2=16)) as cache:
            assert await cache.acquire_batch([]) == []
            await below(host, cache)  # brought up by `acquire` alone
            if dispatch == "direct":
                tried = cache.try_acquire(NEXT)
                assert tried is not None
                async with tried:
                    assert tried.length == 0
            leases = await cache.acquire_batch([NEXT, OTHER, NEXT])
            assert [lease.length for lease in leases] == [0, 0, 0]
            for lease in leases:
                await lease.release()
            async with await cache.acquire(NEXT):
                leases = await cache.acquire_batch([OTHER, NEXT])
                assert [lease.length for lease in leases] == [0, 8]
                for lease in leases:
                    await lease.extend(2)
                    await lease.release()
            await nothing_is_held(host, cache)

    host.run(scenario)


def test_a_call_in_the_callers_own_step(host: Host) -> None:
    """Under direct dispatch what needs no waiting never gives up the thread."""
    if host.name == "threads":
        pytest.skip("the cache has a thread of its own")

    async def scenario(host: Host) -> None:
        async with host.open(config("direct")) as cache:
            await turn(cache, PROMPT)
            ran: list[bool] = []
            async with host.beside():
                for _ in range(20):
                    other = host.start(lambda: note(ran))
                    await turn(cache, PROMPT)  # may yield once a millisecond
                    if not ran:
                        await other.end()
                        return
                    ran.clear()
            raise AssertionError("every turn gave up the thread")

    async def note(ran: list[bool]) -> None:
        ran.append(True)

    host.run(scenario)
