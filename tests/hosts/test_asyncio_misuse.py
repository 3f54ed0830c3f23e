"""A cache on asyncio called where it cannot be: another thread, another loop, no loop, a forked child."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import banyankv
import pytest
import trio
from banyankv import Closed, WrongHost

from .loops import run
from .rooms import PROMPT, config, turn


def in_a_thread(call: Callable[[], Any]) -> BaseException | None:
    found: list[BaseException | None] = []

    def catch() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - it is what is tested
            found.append(error)
        else:
            found.append(None)

    thread = threading.Thread(target=catch, daemon=True)
    thread.start()
    thread.join(10)
    assert found, "it hangs"
    return found[0]


def test_called_from_another_thread_or_loop(
    new_loop: Callable[[], asyncio.AbstractEventLoop], dispatch: str
) -> None:
    async def main() -> None:
        async with banyankv.asyncio.open_cache(config(dispatch)) as cache:
            lease = await cache.acquire(PROMPT)
            for verb in (
                lambda: cache.acquire(PROMPT),
                lambda: cache.acquire(PROMPT, deadline=1.0),
                cache.settle,
                lambda: lease.extend(8),
                lease.release,
            ):

                async def call(verb: Callable[[], Any] = verb) -> None:
                    await verb()

                for error in (
                    in_a_thread(lambda call=call: asyncio.run(call())),
                    in_a_thread(lambda call=call: trio.run(call)),
                    in_a_thread(lambda call=call: call().send(None)),
                ):
                    assert isinstance(error, WrongHost)
                    assert "run_coroutine_threadsafe" in str(error)
            assert isinstance(in_a_thread(lambda: cache.try_acquire(PROMPT)), WrongHost)
            await lease.extend(8)
            assert await lease.publish() == 8
            await lease.release()
            await cache.check()
            assert not (await cache.inspect()).leases
            closed = cache
        with pytest.raises(Closed):
            await closed.peek(PROMPT)
        assert isinstance(in_a_thread(lambda: asyncio.run(closed.peek(PROMPT))), Closed)

    run(new_loop, main())


def test_called_outside_the_running_loop(
    new_loop: Callable[[], asyncio.AbstractEventLoop], dispatch: str
) -> None:
    loop = new_loop()
    context = banyankv.asyncio.open_cache(config(dispatch))
    cache = loop.run_until_complete(context.__aenter__())
    with pytest.raises(WrongHost, match="loop"):
        cache.peek(PROMPT).send(None)
    with pytest.raises(WrongHost, match="loop"):
        cache.try_acquire(PROMPT)
    other = new_loop()
    with pytest.raises(WrongHost, match="another event loop of this thread"):
        other.run_until_complete(banyankv.asyncio.open_cache(config(dispatch)).__aenter__())
    other.close()
    loop.run_until_complete(turn(cache, PROMPT))
    loop.run_until_complete(context.__aexit__(None, None, None))
    loop.close()


def test_opened_outside_a_loop_or_within_trio() -> None:
    with pytest.raises(WrongHost, match="no asyncio loop"):
        banyankv.asyncio.open_cache(config("direct")).__aenter__().send(None)  # type: ignore[attr-defined]

    async def main() -> None:
        async def within() -> None:
            async with banyankv.asyncio.open_cache(config("direct")):
                pass

        with pytest.raises(WrongHost, match="trio runs in this thread already"):
            asyncio.run(within())

    trio.run(main)


FORK = """
import asyncio, os, sys, warnings
import banyankv as bk
MODEL = bk.ModelSpec(name="m", page_size=2, components=(bk.PagedSpec(name="full"),))
config = bk.CacheConfig(
    model=MODEL, l1={"full": 64}, l2={"full": 64}, dispatch=sys.argv[1],
    store=bk.StoreConfig(path=sys.argv[2], max_bytes=1 << 22),
)
warnings.simplefilter("ignore", DeprecationWarning)  # forks with threads

async def turn(cache):
    async with await cache.acquire(list(range(64))) as lease:
        await lease.extend(64 - lease.extent)
        await lease.publish()

async def main():
    async with bk.asyncio.open_cache(config) as cache:
        await turn(cache)
        lease = await cache.acquire([1, 2])
        if os.fork() == 0:
            try:
                for call in (cache.settle, lambda: cache.acquire([1]), lease.release, lambda: lease.extend(1, deadline=1.0)):
                    try:
                        await call()
                    except bk.WrongHost as error:
                        assert "fork" in str(error)
                    else:
                        os._exit(2)
                try:
                    cache.try_acquire([1])
                except bk.WrongHost:
                    os._exit(7)
            finally:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
        await lease.release()
        await turn(cache)
        await cache.settle()
        await cache.check()
        print("whole")

asyncio.run(main())
"""


def test_a_forked_child_gets_an_error_and_the_parent_goes_on(dispatch: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, dispatch, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("whole\n", "")
