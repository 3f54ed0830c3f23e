"""Called from where it cannot answer, a cache that was opened on trio says so, and what to do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import banyankv
import pytest
import trio
from banyankv import Cache, Closed, Lease, WrongHost

from .rooms import PROMPT, config


def in_a_thread(call: Callable[[], Any]) -> BaseException | None:
    """Return what a call raises in a thread of its own."""
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


def verbs(cache: Cache, lease: Lease) -> list[Callable[[], Any]]:
    """Return calls that can wait."""
    return [
        lambda: cache.acquire(PROMPT),
        lambda: cache.acquire(PROMPT, deadline=1.0),
        cache.settle,
        lambda: lease.extend(8),
        lease.publish,
        lease.release,
    ]


async def test_from_another_thread(dispatch: str) -> None:
    async with banyankv.open_cache(config(dispatch)) as cache:
        lease = await cache.acquire(PROMPT)
        for verb in verbs(cache, lease):

            async def call(verb: Callable[[], Any] = verb) -> None:
                await verb()

            for error in (
                in_a_thread(lambda call=call: trio.run(call)),
                in_a_thread(lambda call=call: asyncio.run(call())),
                in_a_thread(lambda call=call: call().send(None)),
            ):
                assert isinstance(error, WrongHost)
                assert "trio.from_thread.run" in str(error)
        assert isinstance(in_a_thread(lambda: cache.try_acquire(PROMPT)), WrongHost)
        await lease.extend(8)
        assert await lease.publish() == 8
        await lease.release()
        assert not (await cache.inspect()).leases
    assert isinstance(in_a_thread(lambda: trio.run(cache.settle)), Closed)


def test_from_asyncio_in_the_same_thread(dispatch: str) -> None:
    """trio is a guest of somebody's own there; a task of asyncio's is none of trio's all the same."""

    kept: list[Lease] = []  # until the cache has closed: it could not be released here

    async def main() -> None:
        over = asyncio.get_running_loop().create_future()
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def guest() -> None:
            async with banyankv.open_cache(config(dispatch)) as cache:
                ready.set_result((cache, await cache.acquire(PROMPT)))
                await left.wait()

        left = trio.Event()
        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=asyncio.get_running_loop().call_soon_threadsafe,
            done_callback=over.set_result,
            host_uses_signal_set_wakeup_fd=True,
        )
        cache, lease = await ready
        for verb in verbs(cache, lease):
            with pytest.raises(WrongHost, match=r"no trio task.*banyankv\.asyncio\.open_cache"):
                await verb()
        if dispatch == "direct":  # what cannot wait needs no task
            tried = cache.try_acquire(PROMPT)
            assert tried is not None
            kept.append(tried)
        left.set()
        (await over).unwrap()
        with pytest.raises(Closed):
            await cache.peek(PROMPT)

    asyncio.run(main())


FORK = """
import os, sys
import trio
import banyankv as bk
MODEL = bk.ModelSpec(name="m", page_size=2, components=(bk.PagedSpec(name="full"),))
config = bk.CacheConfig(model=MODEL, l1={"full": 64}, dispatch=sys.argv[1])

async def main():
    async with bk.open_cache(config) as cache:
        lease = await cache.acquire([1, 2])
        if os.fork() == 0:
            try:
                for call in (cache.settle, lambda: cache.acquire([1], deadline=1.0), lease.release):
                    try:
                        await call()
                    except bk.WrongHost as error:
                        assert "fork" in str(error)
                    else:
                        os._exit(2)
                os._exit(7)
            finally:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
        await lease.release()
        await cache.check()
        print("whole")

trio.run(main)
"""


def test_from_a_forked_child(dispatch: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, dispatch],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("whole\n", "")


def test_opened_on_asyncio_it_says_how_to_open_it_there() -> None:
    async def main() -> None:
        async with banyankv.open_cache(config("direct")):
            pass

    with pytest.raises(WrongHost, match=r"banyankv\.asyncio\.open_cache"):
        asyncio.run(main())
