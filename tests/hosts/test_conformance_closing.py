"""Caches are opened and closed in the same way on every host, whatever goes on in them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from banyankv import Closed

from .host import MOST, Host, until
from .rooms import NEXT, OTHER, PROMPT, config, nothing_is_held, turn
from .waits import Waits


def test_opening_and_closing_cancelled_at_each_wait(
    host: Host, dispatch: str, tmp_path: Path
) -> None:
    settings = config(dispatch, l2=16, folder=tmp_path / "store")

    async def use() -> None:
        async with host.open(settings) as cache:
            await turn(cache, PROMPT)

    async def scenario(host: Host) -> None:
        for step in range(1, MOST):
            reached = await host.cancelled_at(step, use)
            await use()  # nothing stands in the way, such as a locked folder
            if not reached:
                return
        raise AssertionError("the sweep did not end")

    host.run(scenario)


def test_closed_with_leases_live(host: Host, dispatch: str) -> None:
    async def scenario(host: Host) -> None:
        async with host.beside(), host.open(config(dispatch, pages=4)) as cache:
            lease, second = await cache.acquire(PROMPT), await cache.acquire(OTHER)
            await lease.extend(8)
            waiting = host.start(lambda: second.extend(8))
            await host.sleep(0.01)
            closing = cache
        ended = await waiting.end()
        assert ended is not None
        with pytest.raises(Closed):
            ended.unwrap()
        await lease.release()
        for call in (
            lambda: closing.acquire(PROMPT),
            lambda: closing.acquire(PROMPT, deadline=1.0),
            closing.settle,
            lambda: second.extend(1),
            lambda: second.extend(1, deadline=1.0),
        ):
            with pytest.raises(Closed):
                await call()
        with pytest.raises(Closed):
            closing.try_acquire(PROMPT)
        await second.release()

    host.run(scenario)


@pytest.mark.parametrize("kind", ["room", "copy", "store"])
def test_closed_while_somebody_waits(host: Host, dispatch: str, kind: str) -> None:
    waits = Waits(kind, dispatch)

    async def scenario(host: Host) -> None:
        async with host.beside(), host.open(waits.config, **waits.parts) as cache:
            await waits.prepare(host, cache)
            waiting = host.start(partial(waits.call, cache))
            settling = host.start(cache.settle)
            await until(host, waits.waiting)
            await host.sleep(0.01)
        ended = await waiting.end()
        assert ended is not None
        with pytest.raises(Closed):
            ended.unwrap()
        # It may hear first that what it waits for was cut off: then nothing is in flight any more.
        settled = await settling.end()
        assert settled is not None
        with suppress(Closed):
            settled.unwrap()

    host.run(scenario)


def test_an_error_of_the_body_passes_unchanged(host: Host, dispatch: str) -> None:
    class Mine(Exception):
        pass

    async def scenario(host: Host) -> None:
        mine = Mine()
        with pytest.raises(Mine) as raised:
            async with host.open(config(dispatch)) as cache, await cache.acquire(PROMPT) as lease:
                await lease.extend(8)
                raise mine
        assert raised.value is mine
        async with host.open(config(dispatch)) as cache:
            await turn(cache, PROMPT)

    host.run(scenario)


def test_two_caches_are_open_at_once(host: Host, dispatch: str) -> None:
    async def scenario(host: Host) -> None:
        async with host.open(config(dispatch)) as one:
            async with host.open(config(dispatch)) as two:
                assert (await turn(one, PROMPT), await turn(two, PROMPT)) == (0, 0)
                await nothing_is_held(host, two)
            assert (await one.peek(NEXT)).length == 8
            await nothing_is_held(host, one)
        with pytest.raises(Closed):
            await one.peek(PROMPT)

    host.run(scenario)
