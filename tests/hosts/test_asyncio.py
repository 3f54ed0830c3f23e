"""What only asyncio's host has: a loop of its own, whose tasks are answered in their own step."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import banyankv
import pytest
from banyankv import DeadlineExceeded
from banyankv.hosts.guest import Guest

from .loops import no_trio_here, run, threads
from .rooms import NEXT, OTHER, PROMPT, config, turn


def test_it_is_found_by_each_way_of_importing_it() -> None:
    code = (
        "import asyncio as own, banyankv, banyankv.asyncio, sys; from banyankv import asyncio;"
        "assert banyankv.asyncio is asyncio is sys.modules['banyankv.asyncio'] is not own;"
        "assert own.run and asyncio.open_cache"
    )
    folder = Path(banyankv.__file__).parent
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(folder.glob("asyncio*"))  # there it would hide Python's own


def test_what_needs_no_waiting_is_answered_in_the_callers_own_step() -> None:
    async def main() -> None:
        async with banyankv.asyncio.open_cache(config("direct")) as cache:
            await turn(cache, PROMPT)
            await asyncio.sleep(0.002)
            for _ in range(20):  # it may yield once a millisecond
                coroutine = turn(cache, NEXT)
                try:
                    coroutine.send(None)
                except StopIteration as ended:
                    assert ended.value == 8
                    return
                while True:
                    try:
                        await asyncio.sleep(0)
                        coroutine.send(None)
                    except StopIteration:
                        break
            raise AssertionError("it always yields")

    asyncio.run(main())


def test_nothing_of_trio_is_left_when_the_last_cache_is_closed(
    new_loop: Callable[[], asyncio.AbstractEventLoop], dispatch: str, tmp_path: Path
) -> None:
    before = threads()
    kept = signal.getsignal(signal.SIGINT)

    async def main() -> None:
        settings = config(dispatch, l2=16, folder=tmp_path / "store")
        for _ in range(3):
            async with banyankv.asyncio.open_cache(settings) as cache:
                await turn(cache, PROMPT)
            assert no_trio_here()
            assert threads() == before
            assert len(asyncio.all_tasks()) == 1

    run(new_loop, main())
    assert signal.getsignal(signal.SIGINT) == kept


def test_cancelled_at_each_step_of_trio(
    dispatch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task is cancelled while trio is at any point of opening, serving or closing the cache."""
    settings = config(dispatch, l2=16, folder=tmp_path / "store")
    left = 0
    task: asyncio.Task[None] | None = None
    tick = Guest._tick

    def counted(guest: Guest) -> None:
        nonlocal left
        tick(guest)
        left -= 1
        if left == 0 and task is not None:
            task.cancel()

    async def use() -> None:
        async with banyankv.asyncio.open_cache(settings) as cache:
            await turn(cache, PROMPT)

    async def main() -> None:
        nonlocal left, task
        before = threads()
        step = 0
        while step < 2000:
            step += 1 + step // 10  # closer at the beginning, where it opens
            left, task = step, asyncio.create_task(use())
            await asyncio.wait((task,))
            if not task.cancelled():
                task.result()
            assert no_trio_here()
            assert threads() == before
            if left > 0:
                assert step > 10
                return
            left = 0
        raise AssertionError("the sweep did not end")

    monkeypatch.setattr(Guest, "_tick", counted)
    asyncio.run(main())


def test_who_has_its_answer_and_is_cancelled_before_it_runs_gives_it_back() -> None:
    async def main() -> None:
        async with banyankv.asyncio.open_cache(config("direct", pages=4)) as cache:
            first, second = await cache.acquire(PROMPT), await cache.acquire(OTHER)
            await first.extend(8)
            waiting = asyncio.create_task(second.extend(8))
            await asyncio.sleep(0.02)
            await first.release()  # answers the extend; its task has not run since
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert second.extent == 0
            await second.release()
            await cache.settle()
            await cache.check()
            assert not (await cache.inspect()).leases

    asyncio.run(main())


def test_a_cancellation_that_is_pending_comes_before_the_operation(dispatch: str) -> None:
    async def main() -> None:
        async with banyankv.asyncio.open_cache(config(dispatch)) as cache:

            async def ask() -> None:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await cache.acquire(PROMPT)

            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(ask())
            assert (await cache.stats()).requests == 0

    asyncio.run(main())


def test_a_task_that_was_cancelled_still_cleans_up(dispatch: str) -> None:
    async def main() -> None:
        async with banyankv.asyncio.open_cache(config(dispatch)) as cache:

            async def ask() -> int:
                async with await cache.acquire(PROMPT) as lease:
                    await lease.extend(8)
                    try:
                        await asyncio.sleep(99)
                    finally:
                        return await lease.publish()  # noqa: B012 - it is what is tested

            task = asyncio.create_task(ask())
            await asyncio.sleep(0.01)
            task.cancel()
            assert await task == 8

    asyncio.run(main())


def test_a_deadline_is_over_before_the_message_is_sent(dispatch: str) -> None:
    async def main() -> None:
        async with banyankv.asyncio.open_cache(config(dispatch)) as cache:
            with pytest.raises(DeadlineExceeded):
                await cache.acquire(PROMPT, deadline=1e-9)

    asyncio.run(main())
