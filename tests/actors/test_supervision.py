"""Restarts as in OTP: who, when, how often; ordered start and stop; the embedder's body is left alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
import trio.testing
from banyankv.actors import (
    ActorSystem,
    Backoff,
    ChildSpec,
    Leaf,
    Reason,
    Ref,
    Restart,
    Strategy,
    Supervisor,
    SupervisorSpec,
    handles,
    open_system,
)
from banyankv.errors import ActorCrashed, ActorStopped, Closed, ConfigError

from .cast import Add, Boom, Boss, Counter, End, Later, Pass, Watcher, Work, behind

AT_ONCE = Backoff(first=0.0, jitter=0.0)


class Diary:
    """What happened to the children, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def child(self, name: str, **options: Any) -> ChildSpec:
        diary = self.lines

        class Child(Counter):
            def on_start(self) -> None:
                diary.append(f"+{name}")

            def on_stop(self, cause: BaseException | None) -> None:
                diary.append(f"{'!' if cause else '-'}{name}")

        return ChildSpec(factory=Child, name=name, **options)

    def take(self) -> str:
        lines, self.lines[:] = " ".join(self.lines), []
        return lines


async def crash(ref: Ref[Any]) -> None:
    with pytest.raises(ActorCrashed):
        await ref.ask(Boom())
    await trio.testing.wait_all_tasks_blocked()


async def three(
    system: ActorSystem, diary: Diary, strategy: Strategy, **options: Any
) -> list[Ref[Any]]:
    options.setdefault("backoff", AT_ONCE)
    spec = SupervisorSpec(
        name="s",
        strategy=strategy,
        children=tuple(diary.child(name) for name in "abc"),
        **options,
    )
    await system.start_children(spec)
    return [system.find(f"/s/{name}") for name in "abc"]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Strategy.ONE_FOR_ONE, "!b +b"),
        (Strategy.ONE_FOR_ALL, "!b -c -a +a +b +c"),
        (Strategy.REST_FOR_ONE, "!b -c +b +c"),
    ],
)
async def test_who_is_restarted_with_a_child(
    dispatch: str, strategy: Strategy, expected: str
) -> None:
    diary = Diary()
    async with open_system("t", dispatch=dispatch) as system:
        _, b, c = await three(system, diary, strategy)
        assert diary.take() == "+a +b +c"
        await crash(b)
        assert diary.take() == expected
        assert await c.ask(Add()) == 1
        assert await b.ask(Add()) == 1
    assert diary.take() == "-c -b -a"


@pytest.mark.parametrize(
    ("restart", "after_crash", "after_end"),
    [
        (Restart.PERMANENT, True, True),
        (Restart.TRANSIENT, True, False),
        (Restart.TEMPORARY, False, False),
    ],
)
async def test_when_a_child_is_restarted(
    dispatch: str, restart: Restart, after_crash: bool, after_end: bool
) -> None:
    async with open_system("t", dispatch=dispatch, backoff=AT_ONCE) as system:
        for ending, again in ((Boom(), after_crash), (End(), after_end)):
            name = type(ending).__name__
            ref = await system.spawn(Counter, name=name, restart=restart)
            ref.tell(ending)
            await trio.testing.wait_all_tasks_blocked()
            assert (ref.actor is not None) == again
            assert (f"/{name}" in system.refs) == again
            if again:
                assert await ref.ask(Add()) == 1
            else:
                with pytest.raises(ActorStopped):
                    await ref.ask(Add())


async def test_an_instance_lives_once(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        counter = Counter()
        ref = await system.spawn(counter, name="once")
        assert behind(ref) is counter
        await crash(ref)
        assert "/once" not in system.refs
        with pytest.raises(ConfigError, match="can live only once"):
            await system.spawn(Counter(), name="again", restart=Restart.PERMANENT)


async def test_queued_messages_survive_a_restart(dispatch: str, autojump_clock: Any) -> None:
    backoff = Backoff(first=2.0, jitter=0.0)
    async with open_system("t", dispatch=dispatch, backoff=backoff) as system:
        ref = await system.spawn(Counter, name="c")
        await crash(ref)
        ref.tell(Add(3))
        start = trio.current_time()
        assert await ref.ask(Add(4)) == 7
        assert trio.current_time() == start + 2.0


async def test_backoff_grows_and_falls_back(dispatch: str, autojump_clock: Any) -> None:
    backoff = Backoff(first=1.0, factor=2.0, most=3.0, jitter=0.0)
    async with open_system(
        "t", dispatch=dispatch, backoff=backoff, intensity=10, period=100.0
    ) as system:
        ref = await system.spawn(Counter, name="c")
        waits = []
        for pause in (0, 0, 0, 0, 200):
            await trio.sleep(pause)
            await crash(ref)
            start = trio.current_time()
            await ref.ask(Add())
            waits.append(trio.current_time() - start)
        assert waits == [1.0, 2.0, 3.0, 3.0, 1.0]


def test_jitter_is_seeded_and_bounded() -> None:
    backoff = Backoff(first=1.0, jitter=0.5)
    drawn = [backoff.delay(0, random.Random(7)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    rng = random.Random(1)
    assert all(1.0 <= backoff.delay(0, rng) <= 1.5 for _ in range(100))
    assert backoff.delay(10_000, rng) <= 7.5
    with pytest.raises(ConfigError):
        Backoff(factor=0.5)


async def test_beyond_intensity_the_supervisor_crashes_and_is_restarted(
    dispatch: str, autojump_clock: Any
) -> None:
    diary = Diary()
    async with open_system("t", dispatch=dispatch, backoff=AT_ONCE) as system:
        _, b, _ = await three(system, diary, Strategy.ONE_FOR_ONE, intensity=2, period=10.0)
        for _ in range(2):
            await crash(b)
        await trio.sleep(11)
        for _ in range(2):
            await crash(b)
        assert diary.take() == "+a +b +c" + " !b +b" * 4
        await crash(b)
        assert diary.take() == "!b -c -a +a +b +c"
        assert await b.ask(Add()) == 1
        supervisor = system.top.children[0]
        assert isinstance(supervisor, Supervisor)
        assert system.top.restarts == 1


async def test_when_the_top_gives_up_the_body_goes_on_and_leaving_raises_closed(
    dispatch: str,
) -> None:
    reached = False
    with pytest.raises(
        Closed, match="at the crash of an actor, none of which may be started anew: /c crashed"
    ) as closed:
        async with open_system("t", dispatch=dispatch, intensity=0) as system:
            other = await system.spawn(Counter, name="other")
            ref = await system.spawn(Counter, name="c")
            with pytest.raises(ActorCrashed):
                await ref.ask(Boom())
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(Closed, match="none of which may be started anew") as late:
                await other.ask(Add())
            assert isinstance(late.value.cause, ActorCrashed)
            with pytest.raises(Closed):
                await system.spawn(Counter, name="more")
            # nobody cancelled us
            await trio.lowlevel.checkpoint()
            reached = True
    assert reached
    assert isinstance(closed.value.cause, ActorCrashed)


async def test_a_body_error_passes_unchanged(dispatch: str) -> None:
    error = KeyError("mine")
    with pytest.raises(KeyError) as raised:
        async with open_system("t", dispatch=dispatch, intensity=0) as system:
            ref = await system.spawn(Counter, name="c")
            await crash(ref)
            raise error
    assert raised.value is error


async def test_actors_serve_a_cancelled_body_until_it_has_unwound(dispatch: str) -> None:
    answers: list[int] = []
    with trio.CancelScope() as scope:
        async with open_system("t", dispatch=dispatch) as system:
            ref = await system.spawn(Counter, name="c")
            try:
                scope.cancel()
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()
                    answers.append(await ref.ask(Add()))
    assert scope.cancelled_caught
    assert answers == [1]


class Broken(Leaf):
    """Cannot start while told so."""

    broken = True

    def on_start(self) -> None:
        if type(self).broken:
            raise OSError("no disk")


async def test_an_actor_that_cannot_start_raises_at_its_spawner(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        with pytest.raises(ActorCrashed, match=r"/b crashed: builtins.OSError: no disk"):
            await system.spawn(Broken, name="b")

        def factory() -> Counter:
            raise ValueError("no parts")

        with pytest.raises(ActorCrashed, match="no parts"):
            await system.spawn(factory, name="b")
        # the name is free again, and nothing was restarted
        ref = await system.spawn(Counter, name="b")
        assert await ref.ask(Add()) == 1
        assert system.top.restarts == 0


async def test_a_restart_that_fails_to_start_is_one_more_crash(
    dispatch: str, autojump_clock: Any
) -> None:
    class Flaky(Counter):
        lives = 0

        def on_start(self) -> None:
            type(self).lives += 1
            if type(self).lives in (2, 3):
                raise OSError("not yet")

    async with open_system("t", dispatch=dispatch) as system:
        ref = await system.spawn(Flaky, name="f")
        await crash(ref)
        assert await ref.ask(Add()) == 1
        assert system.top.restarts == 3


async def test_an_actor_stopped_during_its_backoff_stays_stopped(
    dispatch: str, autojump_clock: Any
) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        ref = await system.spawn(Counter, name="c")
        with pytest.raises(ActorCrashed):
            await ref.ask(Boom())
        await trio.testing.wait_all_tasks_blocked()
        ref.tell(Add())
        await system.stop(ref)
        await trio.sleep(10)
        assert ref.actor is None
        assert system.dead_letters[Reason.STOPPED] == 1


async def test_a_stop_finishes_what_is_queued_and_in_hand(
    dispatch: str, autojump_clock: Any
) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        counter = await system.spawn(Counter, name="counter")
        boss = await system.spawn(lambda: Boss(counter), name="boss")
        counter.tell(Add(5))
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await boss.ask(Pass("work", 3.0)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            await system.stop(boss)
        assert answers == [1]
        actor = behind(counter)
        await system.stop(counter)
        assert actor.total == 5


async def test_a_stop_that_takes_too_long_cancels(dispatch: str, autojump_clock: Any) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        counter = await system.spawn(Counter, name="counter")
        boss = await system.spawn(lambda: Boss(counter), name="boss", stop_timeout=2.0)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def ask() -> None:
                with pytest.raises(ActorStopped, match="/boss has stopped"):
                    await boss.ask(Pass("work", 1000.0))

            await trio.testing.wait_all_tasks_blocked()
            await system.stop(boss)
            assert trio.current_time() == 2.0
        await trio.testing.wait_all_tasks_blocked()
        # whom the cancelled operation asked has been told
        assert len(behind(counter).abandoned_tokens) == 1


async def test_a_stop_does_not_wait_for_whom_a_cancelled_operation_asked(
    dispatch: str, autojump_clock: Any
) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        counter = await system.spawn(Counter, name="counter")
        middle = await system.spawn(lambda: Boss(counter), name="middle", stop_timeout=3.0)
        top = await system.spawn(lambda: Boss(middle), name="top", stop_timeout=2.0)
        top.tell(Pass("deep", 1e6))
        await trio.testing.wait_all_tasks_blocked()
        await system.stop(top)
        assert trio.current_time() == 2.0
        await system.stop(middle)
        assert trio.current_time() == 5.0


async def test_a_spawn_that_is_cancelled_leaves_nothing(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        with trio.CancelScope() as scope:

            class Slow(Counter):
                def on_start(self) -> None:
                    scope.cancel()
                    raise ValueError("too late")

            with pytest.raises(ActorCrashed):
                await system.spawn(Slow, name="slow")
        with trio.CancelScope() as scope:
            scope.cancel()
            await system.spawn(Counter, name="cancelled")
        assert scope.cancelled_caught
        assert system.refs == {}
        assert system.top.children == []


async def test_a_wrong_supervisor_spec_leaves_nothing(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        child = ChildSpec(factory=Counter, name="same")
        with pytest.raises(ConfigError, match="/s/same exists already"):
            await system.start_children(SupervisorSpec(name="s", children=(child, child)))
        assert system.refs == {}
        assert str(system.tree()) == "/ (supervisor)"


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
        assert {"/cache", "/cache/tree", "/s", "/s/a"} <= {task.name for task in _tasks()}


def _tasks() -> list[trio.lowlevel.Task]:
    found = []
    queue = [trio.lowlevel.current_root_task()]
    while queue:
        task = queue.pop()
        if task is not None:
            found.append(task)
            queue += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found


async def test_stopping_is_over_when_the_block_is_left(dispatch: str, autojump_clock: Any) -> None:
    before = len(_tasks())
    async with open_system("t", dispatch=dispatch) as system:
        ref = await system.spawn(Counter, name="c")
        ref.tell(Work(1000.0))
        await trio.testing.wait_all_tasks_blocked()
        assert len(_tasks()) > before
    assert len(_tasks()) == before
    assert system.dead_letters[Reason.NO_REPLY] == 0


class Slow(Counter):
    """Its child task takes long to end, whatever cancels it."""

    def on_start(self) -> None:
        self.start(self._slow)

    async def _slow(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(100)


async def test_who_waits_for_a_crashed_actor_is_refused_before_its_child_tasks_end(
    dispatch: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_system("t", dispatch=dispatch, backoff=AT_ONCE) as system:
        slow = await system.spawn(Slow, name="slow")
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(ActorCrashed):
                    await slow.ask(Later())

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            begun = trio.current_time()
            await crash(slow)
        assert trio.current_time() == begun
        assert await slow.ask(Add()) == 1, "the next life begins when all of the last is over"
        assert trio.current_time() == begun + 100


@pytest.mark.parametrize("deep", [False, True])
async def test_when_the_top_gives_up_nobody_waits_for_what_is_being_stopped(
    dispatch: str, autojump_clock: trio.testing.MockClock, *, deep: bool
) -> None:
    closed = False
    try:
        async with open_system("t", dispatch=dispatch, intensity=0) as system:
            parent: Any = None
            if deep:
                (parent,) = await system.start_children(SupervisorSpec(name="below", intensity=0))
            slow = await system.spawn(Slow, name="slow", parent=parent)
            other = await system.spawn(Counter, name="other", parent=parent)
            begun = trio.current_time()
            refused = []

            async def wait(message: Any) -> None:
                try:
                    await other.ask(message)
                except (ActorStopped, Closed):
                    refused.append(trio.current_time())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, Later())
                await trio.testing.wait_all_tasks_blocked()
                await crash(slow)
                nursery.start_soon(wait, Add())
            assert refused == [begun, begun]
    except Closed:
        closed = True
    assert closed


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff(first=float("nan")),
        lambda: Backoff(factor=0.5),
        lambda: Backoff(jitter=-0.1),
        lambda: ChildSpec(factory=Counter, name="c", restart="never"),
        lambda: ChildSpec(factory=Counter, name="c", stop_timeout=float("nan")),
        lambda: SupervisorSpec(name="s", strategy="one_for_all"),
        lambda: SupervisorSpec(name="s", restart="permanent"),
        lambda: SupervisorSpec(name="s", intensity=-1),
        lambda: SupervisorSpec(name="s", intensity=1.5),
        lambda: SupervisorSpec(name="s", period=float("nan")),
    ],
)
def test_a_specification_that_cannot_be_meant_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()
