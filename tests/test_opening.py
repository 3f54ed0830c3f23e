"""A system or a cache that is cancelled or interrupted anywhere in its opening or closing is gone then."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType

import pytest
import trio
from banyankv import CacheConfig, ModelSpec, PagedSpec, StoreConfig, open_cache
from banyankv.actors import Actor, ChildSpec, SupervisorSpec, open_system
from banyankv.tiers.store.lmdb_store import LmdbStore

MOST = 200
"""More checkpoints than opening and closing have: a sweep must come to its end."""


Use = Callable[[], Awaitable[None]]


class Idle(Actor):
    """An actor that has nothing to do; those that live are counted."""

    lives = 0

    def on_start(self) -> None:
        Idle.lives += 1

    def on_stop(self, cause: BaseException | None) -> None:
        Idle.lives -= 1


async def use_system(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        await system.spawn(Idle, name="one")
        await system.start_children(
            SupervisorSpec(name="below", children=(ChildSpec(factory=Idle, name="two"),))
        )
        await trio.lowlevel.checkpoint()


def config_of(folder: Path, dispatch: str) -> CacheConfig:
    room = {"full": 8}
    return CacheConfig(
        model=ModelSpec(name="m", components=(PagedSpec(name="full"),), page_size=2),
        l1=room,
        l2=room,
        store=StoreConfig(path=str(folder), max_bytes=1 << 20),
        dispatch=dispatch,
    )


async def use_cache(folder: Path, dispatch: str) -> None:
    async with open_cache(config_of(folder, dispatch)) as cache:
        async with await cache.acquire([1, 2]) as lease:
            await lease.extend(2)
            await lease.publish()
        await cache.settle()


@pytest.fixture(params=["system", "cache"])
def use(request: pytest.FixtureRequest, tmp_path: Path, dispatch: str) -> Use:
    """Open, use and close a system, or a cache on a folder."""
    if request.param == "system":
        return partial(use_system, dispatch)
    return partial(use_cache, tmp_path / "store", dispatch)


class At(trio.abc.Instrument):
    """Calls something when one task has taken its k-th step."""

    def __init__(self, task: trio.lowlevel.Task, step: int, act: Callable[[], None]) -> None:
        self._task, self._left, self._act = task, step, act

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._act()


def left_over() -> tuple[int, list[str]]:
    """Count tasks and name the threads that are not trio's own idle ones."""
    threads = [t.name for t in threading.enumerate() if not t.name.startswith("Trio thread")]
    return trio.lowlevel.current_statistics().tasks_living, sorted(threads)


async def test_cancelled_at_each_checkpoint(use: Use) -> None:
    await use()
    before = left_over()
    for step in range(1, MOST):
        with trio.CancelScope() as scope:
            at = At(trio.lowlevel.current_task(), step, scope.cancel)
            trio.lowlevel.add_instrument(at)
            try:
                await use()
            finally:
                trio.lowlevel.remove_instrument(at)
        assert left_over() == before, step
        await use()  # nothing stands in the way, such as a locked folder
        if not scope.cancel_called:
            return
    raise AssertionError("the sweep did not end")


async def test_cancelled_before_it_opens(use: Use) -> None:
    before = left_over()
    with trio.CancelScope() as scope:
        scope.cancel()
        await use()
    assert left_over() == before
    assert scope.cancelled_caught
    await use()


async def test_a_sibling_fails_while_it_opens(use: Use) -> None:

    async def fail() -> None:
        raise ValueError("no")

    with pytest.RaisesGroup(ValueError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(use)
            nursery.start_soon(fail)
    await use()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Have SIGINT raise KeyboardInterrupt, whoever started the tests."""
    kept = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, kept)


@pytest.mark.usefixtures("interruptible")
def test_interrupted_at_each_checkpoint(use: Use) -> None:
    for step in range(1, MOST):
        sent = interrupted_at(step, use)
        trio.run(use)
        if not sent:
            return
    raise AssertionError("the sweep did not end")


def interrupted_at(step: int, use: Use) -> bool:
    sent = False

    def interrupt() -> None:
        nonlocal sent
        sent = True
        signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        trio.lowlevel.add_instrument(At(trio.lowlevel.current_task(), step, interrupt))
        await use()

    try:
        trio.run(main)
    except KeyboardInterrupt:
        assert sent
    return sent


@pytest.mark.usefixtures("interruptible")
def test_interrupted_while_no_checkpoint_is_near(
    tmp_path: Path, dispatch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt is pending when the store is to be closed, which begins with a checkpoint."""
    use = partial(use_cache, tmp_path / "store", dispatch)
    aclose = LmdbStore.aclose

    @trio.lowlevel.enable_ki_protection
    async def interrupted(store: LmdbStore) -> None:
        signal.raise_signal(signal.SIGINT)
        await aclose(store)

    with monkeypatch.context() as patch:
        patch.setattr(LmdbStore, "aclose", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trio.run(use)
    trio.run(use)


@pytest.mark.usefixtures("interruptible")
def test_interrupted_in_what_python_runs_around_the_block(dispatch: str) -> None:
    for event in range(MOST):
        if not interrupted_in_contextlib(event, dispatch):
            assert event > 10
            return
        assert Idle.lives == 0
    raise AssertionError("the sweep did not end")


def interrupted_in_contextlib(event: int, dispatch: str) -> bool:
    left = event

    def trace(frame: FrameType, what: str, arg: object) -> object:
        nonlocal left
        code = frame.f_code
        around = code.co_filename == contextlib.__file__
        if not around or code.co_name not in ("__aenter__", "__aexit__"):
            return None
        left -= 1
        if left == -1:
            signal.raise_signal(signal.SIGINT)
        return trace

    async def main() -> None:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            await use_system(dispatch)
        finally:
            sys.settrace(before)

    try:
        trio.run(main)
    except KeyboardInterrupt:
        assert left < 0
    return left < 0


@pytest.mark.usefixtures("interruptible")
def test_interrupted_while_a_release_is_queued(tmp_path: Path) -> None:
    """What was leased is given back, though the one who asked has gone."""

    async def main() -> None:
        async with open_cache(config_of(tmp_path / "store", "mailbox")) as cache:
            here = trio.lowlevel.current_task()
            for _ in range(20):  # the cache is sometimes faster than the interrupt
                lease = await cache.acquire([1, 2])
                await lease.extend(2)
                at = At(here, 1, lambda: signal.raise_signal(signal.SIGINT))
                trio.lowlevel.add_instrument(at)
                with pytest.raises(KeyboardInterrupt):
                    await lease.release()
                    await trio.sleep_forever()
                trio.lowlevel.remove_instrument(at)
            await cache.settle()
            assert not (await cache.inspect()).leases

    trio.run(main)
