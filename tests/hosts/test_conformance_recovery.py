"""Crashes with leases live are survived in the same way on every host."""

from __future__ import annotations

from typing import Any

import pytest
from banyankv import ActorCrashed, Closed
from banyankv.actors import Fault, FaultKind, FaultPlan

from .host import Host, until
from .rooms import NEXT, OTHER, PROMPT, config, nothing_is_held
from .test_conformance import Waits


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
