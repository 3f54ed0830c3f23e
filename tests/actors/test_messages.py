"""Calls, asks and tells: answers, errors, order, re-entry, the same in both dispatch modes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing
from banyankv.actors import (
    ActorSystem,
    Coordinator,
    Leaf,
    Reason,
    Ref,
    Trace,
    handles,
    open_system,
)
from banyankv.actors.dispatch import begin
from banyankv.actors.gate import BUSY
from banyankv.errors import (
    ActorCrashed,
    ActorStopped,
    Closed,
    ConfigError,
    NoCapacity,
    WouldWait,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from .cast import (
    Add,
    Answer,
    Boom,
    Boss,
    Counter,
    Forgotten,
    Later,
    Note,
    Pass,
    Refuse,
    Sleepy,
    Twice,
    Who,
    behind,
)


async def boss_and_counter(system: ActorSystem) -> tuple[Ref[Boss], Ref[Counter]]:
    counter = await system.spawn(Counter, name="counter")
    boss = await system.spawn(lambda: Boss(counter), name="boss")
    return boss, counter


async def test_an_ask_answers_and_operations_ask_below(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        boss, counter = await boss_and_counter(system)
        assert await counter.ask(Add(5)) == 5
        assert await boss.ask(Twice(2)) == (7, 9)


async def test_a_told_message_is_handled_before_a_later_ask(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        _, counter = await boss_and_counter(system)
        counter.tell(Add(3))
        assert await counter.ask(Add(4)) == 7


async def test_a_call_runs_in_the_callers_stack_after_what_is_queued() -> None:
    async with open_system("t") as system:
        boss, counter = await boss_and_counter(system)
        counter.tell(Add(3))
        assert counter.ready
        assert counter.call(Add(4)) == 7
        boss.tell(Twice(1))
        assert boss.call(Twice(1)) == (10, 11)


async def test_a_call_needs_no_running_task() -> None:
    async with open_system("t") as system:
        boss, counter = await boss_and_counter(system)
        answers: list[Any] = []

        class Instrument(trio.abc.Instrument):
            def before_io_wait(self, timeout: float) -> None:
                # no task is current here, as in a callback of a host loop
                if not answers:
                    answers.extend((counter.call(Add(1)), boss.call(Twice(1))))
                    counter.tell(Add(1))

        instrument = Instrument()
        trio.lowlevel.add_instrument(instrument)
        await trio.testing.wait_all_tasks_blocked()
        while not answers:
            await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(instrument)
        assert answers == [1, (2, 3)]
        assert await counter.ask(Add(0)) == 4


async def test_a_call_would_wait_under_mailbox_dispatch() -> None:
    async with open_system("t", dispatch="mailbox") as system:
        _, counter = await boss_and_counter(system)
        assert not counter.ready
        with pytest.raises(WouldWait, match="mailbox dispatch"):
            counter.call(Add())
        assert behind(counter).total == 0


async def test_a_refusal_passes_as_it_is_and_the_actor_lives_on(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        boss, counter = await boss_and_counter(system)
        life = behind(counter)
        with pytest.raises(ConfigError, match=r"^no$"):
            await counter.ask(Refuse())
        with pytest.raises(ConfigError, match=r"^no$"):
            await boss.ask(Pass("refuse"))
        assert behind(counter) is life
        assert await boss.ask(Twice(1)) == (1, 2)


class Strict(Leaf):
    """Refuses by one class only."""

    refusals = (ConfigError,)

    @handles(Refuse)
    def refuse(self, msg: Refuse) -> None:
        raise ConfigError("no")

    @handles(Boom)
    def boom(self, msg: Boom) -> None:
        raise NoCapacity("pool", 1, 0, 0)


async def test_an_error_that_is_none_of_its_refusals_is_a_crash(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        strict = await system.spawn(Strict, name="strict")
        with pytest.raises(ConfigError, match=r"^no$"):
            await strict.ask(Refuse())
        assert strict.restarts == 0
        with pytest.raises(ActorCrashed) as crash:
            await strict.ask(Boom())
        assert isinstance(crash.value.__cause__, NoCapacity)
        with pytest.raises(ConfigError, match=r"^no$"):
            await strict.ask(Refuse())
        assert strict.restarts == 1


async def test_a_crash_is_boxed_with_the_path_where_it_arose(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        boss, counter = await boss_and_counter(system)
        with pytest.raises(ActorCrashed) as crash:
            await boss.ask(Pass("boom"))
        assert crash.value.path == "/counter"
        assert crash.value.cause_type == "builtins.ValueError"
        assert 'raise ValueError("boom")' in crash.value.traceback
        assert isinstance(crash.value.__cause__, ValueError)
        # the counter is made anew, and an ask waits for it; the boss only passed the answer on
        assert await boss.ask(Twice(1)) == (1, 2)
        assert (counter.restarts, boss.restarts) == (1, 0)


async def test_a_call_would_wait_while_the_actor_is_restarted() -> None:
    async with open_system("t") as system:
        _, counter = await boss_and_counter(system)
        with pytest.raises(ActorCrashed):
            counter.call(Boom())
        assert not counter.ready
        with pytest.raises(WouldWait, match="restarting"):
            counter.call(Add())
        assert await counter.ask(Add()) == 1


async def test_what_nobody_handles_is_refused_and_a_dead_letter(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        boss, counter = await boss_and_counter(system)
        for ref in (boss, counter):
            with pytest.raises(
                ConfigError, match=rf"{ref.path} \(\w+\) has no handler for Forgotten"
            ):
                await ref.ask(Forgotten())
        if dispatch == "direct":
            with pytest.raises(ConfigError, match="has no handler for Forgotten"):
                counter.call(Forgotten())
        assert system.dead_letters[Reason.NO_HANDLER] == (3 if dispatch == "direct" else 2)
        assert await boss.ask(Twice(1)) == (1, 2)


async def test_an_operation_that_awaits_anything_but_asks_crashes(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        boss, _ = await boss_and_counter(system)
        with pytest.raises(ActorCrashed, match="awaited something that is not an ask"):
            await boss.ask(Sleepy())
        assert await boss.ask(Twice(1)) == (1, 2)


def test_handlers_are_checked_when_the_class_is_made() -> None:
    for kind in (dict, Add(1)):
        with pytest.raises(ConfigError, match="derived from Message"):
            handles(kind)

    with pytest.raises(ConfigError, match=r"Bad\.step is an async def"):

        class Bad(Leaf):
            @handles(Add)
            async def step(self, msg: Add) -> None: ...

    with pytest.raises(ConfigError, match=r"Worse\.operation is a plain method"):

        class Worse(Coordinator):
            @handles(Add)
            def operation(self, msg: Add) -> None: ...

    with pytest.raises(ConfigError, match="handles Add twice: one and two"):

        class Both(Leaf):
            @handles(Add)
            def one(self, msg: Add) -> None: ...

            @handles(Add)
            def two(self, msg: Add) -> None: ...


async def test_one_operation_at_a_time(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        boss, counter = await boss_and_counter(system)
        seen: list[tuple[int, int]] = []

        async def ask() -> None:
            seen.append(await boss.ask(Twice(1)))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
        assert sorted(seen) == [(n, n + 1) for n in range(1, 40, 2)]
        assert behind(counter).total == 40


async def test_trace_and_deadline_travel_with_nested_asks_and_tells(dispatch: str) -> None:
    trace = Trace(trace_id="0" * 31 + "1", span_id=7)
    async with open_system("t", dispatch=dispatch) as system:
        boss, counter = await boss_and_counter(system)
        deadline = trio.current_time() + 60
        assert await boss.ask(Pass("who"), deadline=deadline, trace=trace) == (trace, deadline)
        assert await boss.ask(Pass("who")) == (None, math.inf)
        assert await counter.ask(Who(), trace=trace) == (trace, math.inf)
        assert await counter.ask(Who(), deadline=deadline) == (None, deadline)


async def test_a_queued_message_drained_by_a_call_runs_under_its_own_envelope() -> None:
    theirs = Trace(trace_id="0" * 31 + "1", span_id=1)
    ours = Trace(trace_id="0" * 31 + "2", span_id=2)
    seen: list[Any] = []

    class Spy(Leaf):
        @handles(Who)
        def who(self, msg: Who) -> None:
            seen.append((self.trace, self.deadline))

        @handles(Refuse)
        def refuse(self, msg: Refuse) -> None:
            raise ConfigError("theirs")

    async with open_system("t") as system:
        spy = await system.spawn(Spy, name="spy")
        spy.tell(Who(), trace=theirs)
        spy.tell(Refuse())
        spy.call(Who(), ours)
        assert seen == [(theirs, math.inf), (ours, math.inf)]
        assert system.dead_letters[Reason.REFUSED] == 1
        assert system.trace is None


async def test_the_error_of_a_drained_question_goes_to_its_own_asker() -> None:
    async with open_system("t") as system:
        _, counter = await boss_and_counter(system)
        counter.gate |= BUSY  # as if a step were running when the question arrives
        theirs = begin(counter, Refuse(), math.inf, None)
        counter.gate &= ~BUSY
        assert counter.call(Add(2)) == 2
        with pytest.raises(ConfigError, match=r"^no$"):
            theirs.result()


class Upward(Leaf):
    """Answers, and tells on the way what happened, in the same step."""

    def __init__(self, above: Ref[Any]) -> None:
        super().__init__()
        self.above = above

    @handles(Note)
    def note(self, msg: Note) -> None:
        self.above.tell(msg)


@settings(max_examples=40, deadline=None)
@given(
    dispatch=st.sampled_from(["direct", "mailbox"]),
    scripts=st.lists(
        st.lists(st.sampled_from(["ask", "tell", "call", "pause", "via"]), max_size=8),
        min_size=1,
        max_size=4,
    ),
)
def test_messages_of_one_sender_arrive_in_order(dispatch: str, scripts: list[list[str]]) -> None:
    async def main() -> None:
        async with open_system("t", dispatch=dispatch) as system:
            counter = await system.spawn(Counter, name="counter")
            via = await system.spawn(lambda: Upward(counter), name="via")

            async def write(who: int, script: list[str]) -> None:
                for number, way in enumerate(script):
                    note = Note(who, number)
                    if way == "tell":
                        counter.tell(note)
                    elif way == "via":
                        await via.ask(Note(100 + who, number))
                    elif way == "pause":
                        await trio.lowlevel.checkpoint()
                    elif way == "call" and counter.ready:
                        counter.call(note)
                    else:
                        await counter.ask(note)

            async with trio.open_nursery() as nursery:
                for who, script in enumerate(scripts):
                    nursery.start_soon(write, who, script)
            await counter.ask(Add())
            notes = behind(counter).notes
            writers = {note.who for note in notes}
            for who in writers:
                numbers = [note.number for note in notes if note.who == who]
                assert numbers == sorted(numbers)
            sent = sum(way != "pause" for script in scripts for way in script)
            assert len(notes) == sent

    trio.run(main)


async def test_asks_of_a_stopped_actor_and_a_closed_system_are_refused(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        boss, counter = await boss_and_counter(system)
        await system.stop(boss)
        with pytest.raises(ActorStopped, match="/boss has stopped"):
            await boss.ask(Twice())
        with pytest.raises(ActorStopped):
            boss.tell(Twice())
        with pytest.raises(ConfigError, match="no actor at '/boss'"):
            system.find("/boss")
        assert system.find("/counter") is counter
    with pytest.raises(Closed, match="'t' is closed"):
        await counter.ask(Add())
    with pytest.raises(Closed):
        counter.call(Add())
    with pytest.raises(Closed):
        await system.spawn(Counter, name="late")
    assert system.dead_letters[Reason.STOPPED] == 1


async def test_threads_tell_in_order(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        counter = await system.spawn(Counter, name="counter")

        def work() -> None:
            for number in range(50):
                system.tell_from_thread(counter, Note(0, number))
            system.tell_from_thread(counter, Refuse())

        await trio.to_thread.run_sync(work)
        await trio.testing.wait_all_tasks_blocked()
        assert [note.number for note in behind(counter).notes] == list(range(50))
        assert system.dead_letters[Reason.REFUSED] == 1


async def test_a_told_answer_that_holds_something_is_given_back(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        counter = await system.spawn(Counter, name="counter")
        counter.tell(Add(3))
        counter.tell(Later())
        await trio.testing.wait_all_tasks_blocked()
        assert await counter.ask(Answer(9)) == 1
        assert behind(counter).orphans == [(Add(3), 3), (Later(), 9)]
