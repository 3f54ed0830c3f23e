"""Crashes with leases live are survived in the same way on every host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from banyankv import ActorCrashed, Closed, Lease
from banyankv.actors import Fault, FaultKind, FaultPlan
from banyankv.testing import MemoryStore

from .host import Host, until
from .rooms import (
    NEXT,
    OTHER,
    PROMPT,
    bytes_are_right,
    compute,
    config,
    nothing_is_held,
    turn,
)
from .waits import Waits


def crashing(message: str, receiver: str = "*", times: int = 1) -> FaultPlan:
    """Crash whoever gets such a message."""
    fault = Fault(receiver=receiver, message=message, what=FaultKind.CRASH, times=times)
    return FaultPlan(faults=(fault,))


def test_a_crash_is_its_askers_alone(host: Host, dispatch: str) -> None:
    async def scenario(host: Host) -> None:
        async with host.open(config(dispatch), faults=crashing("Insert", "/tree")) as cache:
            other = await cache.acquire(OTHER)
            await other.extend(8)
            async with await cache.acquire(PROMPT) as lease:
                await lease.extend(8)
                tables = [bytes(lease.pages(name)) for name in ("full", "swa")]
                with pytest.raises(ActorCrashed, match="/tree"):
                    await lease.publish()
                assert (lease.extent, lease.published) == (8, 0)
                assert [bytes(lease.pages(name)) for name in ("full", "swa")] == tables
                assert await lease.publish() == 8
            assert await other.publish() == 8
            async with await cache.acquire(NEXT) as lease:
                assert lease.length in (0, 8)  # no state was kept
            await other.release()
            await nothing_is_held(host, cache)
            assert (await cache.stats()).recoveries == {"/tree": 1}

    host.run(scenario)


@pytest.mark.parametrize("kind", ["room", "copy", "store"])
def test_who_waits_is_heard_again_after_a_crash(host: Host, dispatch: str, kind: str) -> None:
    waits = Waits(kind, dispatch)

    async def scenario(host: Host) -> None:
        parts: dict[str, Any] = {**waits.parts, "faults": crashing("Peek", "/cache")}
        async with host.open(waits.config, **parts) as cache, host.beside():
            await waits.prepare(host, cache)
            task = host.start(lambda: waits.call(cache))
            await until(host, waits.waiting)
            await host.sleep(0.01)
            with pytest.raises(ActorCrashed):
                await cache.peek(PROMPT)
            await waits.go()
            ended = await task.end()
            assert ended is not None
            # What L2 alone had is forgotten; the store serves on by its keys.
            assert ended.unwrap() == {"room": 0, "copy": 0, "store": 256}[kind]
            await nothing_is_held(host, cache)

    host.run(scenario)


def test_beyond_patience_everybody_is_told_that_it_has_closed(host: Host, dispatch: str) -> None:
    async def scenario(host: Host) -> None:
        with pytest.raises(Closed):
            async with (
                host.open(config(dispatch, pages=4), faults=crashing("Peek", "/cache", 0)) as cache,
                host.beside(),
            ):
                first, second = await cache.acquire(PROMPT), await cache.acquire(OTHER)
                await first.extend(8)
                waiting = host.start(lambda: second.extend(8, deadline=60))
                await host.sleep(0.01)
                with pytest.raises(Closed):
                    while True:
                        with pytest.raises(ActorCrashed):
                            await cache.peek(PROMPT)
                ended = await waiting.end()
                assert ended is not None
                with pytest.raises(Closed):
                    ended.unwrap()
                await first.release()
                await second.release()

    host.run(scenario)


ACTORS = ["/cache", "/tree", "/full", "/swa", "/mamba", "/l1", "/l2", "/controller"]
"""Whoever crashes with all others; L3's actor crashes alone, and no lease has to do with it."""

AGAIN = list(range(200, 458))
"""A chunk of the store, and a page."""


async def surely(call: Callable[[], Awaitable[Any]]) -> Any:
    """Ask, and once more where the crash cut that off."""
    try:
        return await call()
    except ActorCrashed:
        return await call()


@pytest.mark.parametrize("actor", ACTORS)
def test_leases_go_on_with_their_bytes_whichever_actor_crashes(
    host: Host, dispatch: str, actor: str
) -> None:
    fault = Fault(receiver=actor, what=FaultKind.CRASH, nth=6)
    parts: dict[str, Any] = {"store": MemoryStore(), "faults": FaultPlan(faults=(fault,))}

    async def scenario(host: Host) -> None:
        async with host.open(config(dispatch, pages=150, l2=150), **parts) as cache:
            held: list[tuple[Lease, int]] = []
            for prompt, mark in ((PROMPT, 1), (OTHER, 101)):
                lease = await surely(lambda prompt=prompt: cache.acquire(prompt))
                held.append((lease, mark))
                await surely(lambda lease=lease: lease.extend(8))
                compute(cache, lease, mark)
            await surely(held[0][0].publish)  # the other one's pages stay private
            for _ in range(20):
                if (await surely(cache.stats)).recoveries:
                    break
                # Whoever is cut off half-way begins anew: its lease is given back on the way out.
                await surely(lambda: turn(cache, AGAIN))
                await surely(lambda: cache.evict("full", 2))
                await surely(cache.settle)
            assert (await cache.stats()).recoveries == {actor: 1}
            await cache.check()
            for lease, mark in held:
                bytes_are_right(cache, lease, mark)
                lease.append([8, 9])
                assert lease.extent == 8
                await lease.extend(2)
                assert await lease.publish() == 10
                await cache.check()
                await lease.release()
            await turn(cache, AGAIN)
            assert await turn(cache, [*AGAIN, 1]) == 258  # there are hits again
            await nothing_is_held(host, cache)

    host.run(scenario)


@pytest.mark.parametrize("what", [FaultKind.CRASH, FaultKind.DROP, FaultKind.FAIL])
def test_a_release_is_never_lost(host: Host, dispatch: str, what: FaultKind) -> None:
    fault = Fault(receiver="/cache", message="Release", what=what, times=2)

    async def scenario(host: Host) -> None:
        plan = FaultPlan(faults=(fault,))
        async with host.open(config(dispatch, pages=8), faults=plan) as cache:
            async with await cache.acquire(PROMPT) as lease:
                await lease.extend(8)
            other = await cache.acquire(OTHER)
            await other.extend(16, deadline=60)  # all that there is
            await other.release()
            await nothing_is_held(host, cache)

    host.run(scenario)


def test_forms_that_do_not_wait_are_told_of_a_crash_and_take_nothing(
    host: Host, dispatch: str
) -> None:
    async def scenario(host: Host) -> None:
        plan = FaultPlan(
            faults=tuple(
                Fault(receiver="/cache", message=each, what=FaultKind.CRASH)
                for each in ("AcquireBatch", "Acquire")
            )
        )
        async with host.open(config(dispatch), faults=plan) as cache:
            with pytest.raises(ActorCrashed):
                await cache.acquire_batch([PROMPT, OTHER])
            await nothing_is_held(host, cache)
            if dispatch == "direct":
                with pytest.raises(ActorCrashed):
                    cache.try_acquire(PROMPT)
            else:
                assert cache.try_acquire(PROMPT) is None  # it always waits under mailbox dispatch
                with pytest.raises(ActorCrashed):
                    await cache.acquire(PROMPT)
            await nothing_is_held(host, cache)
            for lease in await cache.acquire_batch([PROMPT, OTHER]):
                await lease.extend(8)
                await lease.release()


def test_a_release_that_is_cancelled_while_it_crashes_is_not_lost(
    host: Host, dispatch: str
) -> None:
    async def scenario(host: Host) -> None:
        async with (
            host.open(config(dispatch), faults=crashing("Release", "/cache")) as cache,
            host.beside(),
        ):
            lease = await cache.acquire(PROMPT)
            await lease.extend(8)
            releasing = host.start(lease.release)
            await host.sleep(0)
            releasing.cancel()
            await releasing.end()
            await lease.release()  # on threads, one that was cancelled before it began is none
            await nothing_is_held(host, cache)

    host.run(scenario)
