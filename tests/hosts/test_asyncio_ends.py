"""Ends of a program on asyncio: blocks that nobody leaves, loops that close, Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import banyankv
import pytest
from banyankv import Cache, Closed

from .loops import LOOPS, no_trio_here, run
from .rooms import NEXT, PROMPT, config, turn


def test_a_block_that_nobody_left_is_left_when_the_loop_shuts_down(
    new_loop: Callable[[], asyncio.AbstractEventLoop], dispatch: str, tmp_path: Path
) -> None:
    settings = config(dispatch, l2=16, folder=tmp_path / "store")
    kept: list[Any] = []

    async def main() -> Cache:
        context = banyankv.asyncio.open_cache(settings)
        kept.append(context)
        cache = await context.__aenter__()
        await turn(cache, PROMPT)
        return cache

    cache = run(new_loop, main())
    assert no_trio_here()
    with pytest.raises(Closed):
        asyncio.run(cache.peek(PROMPT))
    run(new_loop, main())  # the folder is free


@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_loop_that_is_closed_under_an_open_cache(
    new_loop: Callable[[], asyncio.AbstractEventLoop], dispatch: str, tmp_path: Path
) -> None:
    settings = config(dispatch, l2=16, folder=tmp_path / "store")

    async def main() -> None:
        async with banyankv.asyncio.open_cache(settings) as cache:
            await turn(cache, PROMPT)
            opened.set_result(None)
            await asyncio.sleep(99)

    loop = new_loop()
    opened: asyncio.Future[None] = loop.create_future()
    loop.set_exception_handler(lambda *_: None)  # asyncio tells of the task that is lost
    task = loop.create_task(main())
    loop.run_until_complete(opened)
    loop.close()

    async def again() -> None:
        async with banyankv.asyncio.open_cache(settings) as cache:
            await turn(cache, PROMPT)

    run(new_loop, again())  # neither trio nor the folder stands in its way
    del task
    gc.collect()
    assert no_trio_here()


def test_a_loop_that_is_closed_gives_the_cache_back_with_its_task(
    dispatch: str, tmp_path: Path
) -> None:
    settings = config(dispatch, l2=16, folder=tmp_path / "store")

    async def main() -> None:
        async with banyankv.asyncio.open_cache(settings):
            opened.set_result(None)
            await asyncio.sleep(99)

    loop = asyncio.new_event_loop()
    opened: asyncio.Future[None] = loop.create_future()
    loop.set_exception_handler(lambda *_: None)
    task = loop.create_task(main())
    loop.run_until_complete(opened)
    loop.close()
    del task, loop
    gc.collect()
    assert no_trio_here()


PROGRAM = """
import asyncio, signal, sys, threading, time
import banyankv as bk
MODEL = bk.ModelSpec(name="m", page_size=2, components=(bk.PagedSpec(name="full"),))
config = bk.CacheConfig(model=MODEL, l1={"full": 64}, dispatch=sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)
how, loops = sys.argv[2], sys.argv[3]
if loops == "uvloop":
    import uvloop
    new_loop = uvloop.new_event_loop
else:
    new_loop = asyncio.new_event_loop

async def main():
    async with bk.asyncio.open_cache(config) as cache:
        try:
            print("open", flush=True)
            prompt = list(range(64))
            while True:
                async with await cache.acquire(prompt) as lease:
                    await lease.extend(64 - lease.extent)
                    await lease.publish()
                if how == "idle":
                    await asyncio.sleep(60)
                await asyncio.sleep(0)
        finally:
            await cache.check()  # nothing was torn
            print("whole", flush=True)

try:
    if how == "by hand":
        loop = new_loop()
        task = loop.create_task(main())
        try:
            loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            try:
                loop.run_until_complete(task)
            except asyncio.CancelledError:
                pass
            raise
        finally:
            loop.close()
    else:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
except KeyboardInterrupt:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    print("interrupted", flush=True)
"""


UNLEFT = """
import asyncio, sys
import banyankv as bk

MODEL = bk.ModelSpec(name="m", page_size=2, components=(bk.PagedSpec(name="full"),))
CONFIG = bk.CacheConfig(model=MODEL, l1={"full": 8}, l2={"full": 8})


async def main():
    async with bk.asyncio.open_cache(CONFIG) as cache:
        lease = await cache.acquire([1, 2, 3])
        if "extended" in sys.argv:
            await lease.extend(2)
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)
        await asyncio.sleep(60)


if "uvloop" in sys.argv:
    import uvloop

    loop = uvloop.new_event_loop()
else:
    loop = asyncio.new_event_loop()
try:
    loop.run_until_complete(main())
except RuntimeError:
    print("stopped")
if "closed" in sys.argv:
    loop.close()
"""


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("how", ["closed", "closed extended", "left open"])
def test_a_program_that_ends_without_leaving_its_block_ends(how: str, loops: str) -> None:
    run = [sys.executable, "-c", UNLEFT, loops, *how.split()]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "stopped\n"


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("how", ["busy", "idle", "by hand"])
def test_ctrl_c(dispatch: str, how: str, loops: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, dispatch, how, loops],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert out == "whole\ninterrupted\n", err
    assert child.returncode == 0
    assert err == ""


def test_an_interrupt_in_the_middle_of_a_step_waits_for_its_end(dispatch: str) -> None:
    """By hand, with no asyncio.run around it: KeyboardInterrupt comes out of the loop, not of the step."""
    loop = asyncio.new_event_loop()
    interrupts = 0

    def policy(view: Any) -> float:
        """Evict the oldest first; called by a component in the middle of a step."""
        nonlocal interrupts
        if interrupts == 0:
            interrupts += 1
            signal.raise_signal(signal.SIGINT)
        return float(view.last_used)

    async def main() -> int:
        async with banyankv.asyncio.open_cache(config(dispatch), policy=policy) as cache:
            await turn(cache, PROMPT)
            await asyncio.sleep(0.01)
            await cache.check()
            return await turn(cache, NEXT)

    kept = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        task = loop.create_task(main())
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(task)
        assert interrupts == 1
        assert loop.run_until_complete(task) == 8
    finally:
        signal.signal(signal.SIGINT, kept)
        loop.close()
