"""Child tasks, monitors and names: what actors have of each other, and how a system shows it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from banyankv.actors import (
    Strategy,
    handles,
    open_system,
)
from banyankv.errors import ConfigError

from .cast import Add, Boom, Counter, Watcher, behind, tasks
from .diary import AT_ONCE, Diary, crash, three


async def test_children_end_with_their_actor_and_crash_it(
    dispatch: str, autojump_clock: Any
) -> None:
    ended: list[str] = []

    class Parent(Counter):
        def on_start(self) -> None:
            self.start(self.wait)

        async def wait(self) -> None:
            try:
                await trio.sleep_forever()
            finally:
                ended.append("child")

        @handles(Add)
        def add(self, msg: Add) -> int:
            self.start(self.fail)
            return 0

        async def fail(self) -> None:
            raise ValueError("in a child")

        def on_stop(self, cause: BaseException | None) -> None:
            ended.append(str(cause))

    async with open_system("t", dispatch=dispatch, backoff=AT_ONCE) as system:
        ref = await system.spawn(Parent, name="p")
        await ref.ask(Add())
        await trio.testing.wait_all_tasks_blocked()
        assert ended == ["child", "/p crashed: builtins.ValueError: in a child"]
        assert ref.restarts == 1
    assert ended[2:] == ["child", "None"]


async def test_monitors_hear_of_crashes_and_stops(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch, backoff=AT_ONCE) as system:
        ref = await system.spawn(Counter, name="c")
        watcher = await system.spawn(lambda: Watcher(ref), name="w")
        late = await system.spawn(lambda: Watcher(ref), name="late")
        await system.stop(late)
        await crash(ref)
        await system.stop(ref)
        await trio.testing.wait_all_tasks_blocked()
        downs = behind(watcher).downs
        assert [(down.path, down.cause) for down in downs] == [
            ("/c", "/c crashed: builtins.ValueError: boom"),
            ("/c", ""),
        ]
        after = await system.spawn(lambda: Watcher(ref), name="after")
        await trio.testing.wait_all_tasks_blocked()
        assert [down.cause for down in behind(after).downs] == ["stopped"]


async def test_a_restarted_watcher_hears_once(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch, backoff=AT_ONCE) as system:
        ref = await system.spawn(Counter, name="c")

        class Fragile(Watcher):
            @handles(Boom)
            def boom(self, msg: Boom) -> None:
                raise ValueError("boom")

        watcher = await system.spawn(lambda: Fragile(ref), name="w")
        await crash(watcher)
        await crash(ref)
        assert len(behind(watcher).downs) == 1


async def test_names_are_checked_and_unique(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        above = await system.spawn(Counter, name="a")
        below = await system.spawn(Counter, name="b", parent=above)
        assert below.path == "/a/b"
        with pytest.raises(ConfigError, match="/a/b exists already"):
            await system.spawn(Counter, name="b", parent=above)
        for name in ("", "x/y", " x"):
            with pytest.raises(ConfigError, match="a plain word"):
                await system.spawn(Counter, name=name)
        with pytest.raises(ConfigError, match="'direct' or 'mailbox'"):
            async with open_system("t", dispatch="fast"):
                pass


async def test_tree_and_repr_tell_what_is_there(dispatch: str) -> None:
    diary = Diary()
    async with open_system("demo", dispatch=dispatch) as system:
        cache = await system.spawn(Counter, name="cache")
        await system.spawn(Counter, name="tree", parent=cache)
        await three(system, diary, Strategy.ONE_FOR_ALL)
        await cache.ask(Add())
        cache.tell(Add())
        drawn = str(system.tree())
        assert drawn.splitlines() == [
            "/ (supervisor)",
            "├─ cache (Counter) queued, 1 handled, 1 queued",
            "│  └─ tree (Counter) free, 0 handled, 0 queued",
            "└─ s (supervisor)",
            "   ├─ a (Child) free, 0 handled, 0 queued",
            "   ├─ b (Child) free, 0 handled, 0 queued",
            "   └─ c (Child) free, 0 handled, 0 queued",
        ]
        assert repr(cache) == "<Ref /cache (Counter): queued, 1 handled, 1 queued>"
        assert repr(system).startswith(f"<ActorSystem 'demo' open, {dispatch} dispatch: 5 actors")
        assert repr(system.top) == "<Supervisor / one_for_one: 3 children, 0 restarts>"
        assert [figures.path for figures in system.statistics().actors][:2] == [
            "/cache",
            "/cache/tree",
        ]
        assert {"/cache", "/cache/tree", "/s", "/s/a"} <= {task.name for task in tasks()}
