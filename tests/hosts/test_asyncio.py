"""What only asyncio's host has: a loop of its own, which may stop, close or be interrupted at any time."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import banyankv
import pytest
import trio
import uvloop
from banyankv import Cache, Closed, DeadlineExceeded, WrongHost
from banyankv.hosts.guest import Guest

from .rooms import NEXT, OTHER, PROMPT, config, turn

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """Make a loop of one kind."""
    return LOOPS[request.param]


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], main: Any) -> Any:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


def no_trio_here() -> bool:
    """Whether trio has gone from this thread."""
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        return True
    return False


def threads() -> list[str]:
    """Name the threads that are not trio's own idle ones."""
    return sorted(t.name for t in threading.enumerate() if not t.name.startswith("Trio thread"))


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


# -- misuse ---------------------------------------------------------------------------------------


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


def test_a_deadline_is_over_before_the_message_is_sent(dispatch: str) -> None:
    async def main() -> None:
        async with banyankv.asyncio.open_cache(config(dispatch)) as cache:
            with pytest.raises(DeadlineExceeded):
                await cache.acquire(PROMPT, deadline=1e-9)

    asyncio.run(main())
