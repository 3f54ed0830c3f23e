"""Bounded mailboxes: what happens at a full one, the control lane, statistics, dead letters."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from banyankv.actors import ActorSystem, ChildSpec, Reason, Ref, open_system
from banyankv.actors.envelope import Envelope
from banyankv.actors.mailbox import Mailbox
from banyankv.errors import ConfigError, MailboxFull
from hypothesis import given
from hypothesis import strategies as st

from .cast import Add, Boss, Counter, Log, Note, Pass, Refuse, behind


async def stalled(
    system: ActorSystem, nursery: trio.Nursery, bound: int
) -> tuple[Ref[Boss], Ref[Counter]]:
    """A boss whose operation waits for 10 seconds, so that its mailbox fills."""
    counter = await system.spawn(Counter, name="counter")
    boss = await system.spawn(lambda: Boss(counter), name="boss", bound=bound)
    nursery.start_soon(boss.ask, Pass("work", 10.0))
    await trio.testing.wait_all_tasks_blocked()
    return boss, counter


async def test_wait_parks_askers_until_there_is_room_and_refuses_tells(
    dispatch: str, autojump_clock: Any
) -> None:
    async with open_system("t", dispatch=dispatch) as system, trio.open_nursery() as nursery:
        boss, _ = await stalled(system, nursery, 2)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await boss.ask(Pass("who")))

        for _ in range(5):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(MailboxFull, match="/boss: 2 messages are queued"):
            boss.tell(Pass("who"))
        figures = boss.mailbox.statistics()
        assert (figures.depth, figures.waiting, figures.waits, figures.peak) == (2, 3, 3, 2)
        assert figures.refused == 1
        assert system.dead_letters[Reason.MAILBOX_FULL] == 1
        await trio.sleep(20)
        assert len(answers) == 5


async def test_control_messages_go_first(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        ref = await system.spawn(Counter, name="c")
        ref.tell(Note(0, 1))
        ref.tell(Note(1, 1), control=True)
        ref.tell(Note(0, 2))
        ref.tell(Note(1, 2), control=True)
        await trio.testing.wait_all_tasks_blocked()
        assert behind(ref).notes == [Note(1, 1), Note(1, 2), Note(0, 1), Note(0, 2)]


async def test_dead_letters_are_counted_kept_and_reported() -> None:
    log = Log()
    async with open_system("t", observer=log) as system:
        ref = await system.spawn(Counter, name="c")
        for _ in range(300):
            ref.tell(Refuse())
            await trio.testing.wait_all_tasks_blocked()
        assert system.dead_letters[Reason.REFUSED] == 300
        assert len(system.dead_letters.last) == 256
        assert len(log.facts) == 300
        letter = system.dead_letters.last[-1]
        assert (letter.receiver, letter.message, letter.error) == ("/c", "Refuse", "no")
        assert system.statistics().dead_letters.by_reason == (("refused", 300),)
        assert repr(system.dead_letters) == "<DeadLetters 300 refused>"


def test_bounds_are_checked() -> None:
    for bound in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="a message at least"):
            ChildSpec(factory=Counter, name="c", bound=bound)


@given(bound=st.integers(1, 4), moves=st.lists(st.integers(0, 9), max_size=60))
def test_a_mailbox_is_its_bound_and_an_order(bound: int, moves: list[int]) -> None:
    """Messages go in, out and away; what is left comes out in the order in which it went in."""
    box = Mailbox(bound)
    inside: list[Envelope] = []
    for move in moves:
        if move < 5:
            reply: Any = None
            envelope = Envelope(Add(), reply, trace=None, deadline=0.0)
            box.put(envelope, may_wait=True)
            inside.append(envelope)
        elif move < 8:
            assert box.head() is (inside[0] if inside else None)
            assert box.take() is (inside.pop(0) if inside else None)
        elif inside:
            box.withdraw(inside.pop(move % len(inside)))
        assert box.statistics().depth == min(bound, len(inside))
        assert len(box) == len(inside)
    assert box.clear() == inside


async def test_asks_and_tells_behind_a_full_mailbox_keep_their_order(autojump_clock: Any) -> None:
    async with open_system("t", dispatch="mailbox") as system:
        ref = await system.spawn(Counter, name="c", bound=1)
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(ref.ask, Note(number, number))
        assert len(behind(ref).notes) == 6
        assert await ref.ask(Add()) == 1
