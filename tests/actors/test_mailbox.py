"""Bounded mailboxes: each policy, the control lane, statistics, dead letters."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from banyankv.actors import ActorSystem, MailboxSpec, Policy, Reason, Ref, open_system
from banyankv.actors.envelope import Envelope
from banyankv.actors.mailbox import Mailbox
from banyankv.errors import ConfigError, MailboxFull
from hypothesis import given
from hypothesis import strategies as st

from .cast import Add, Boss, Counter, Latest, Log, Note, Pass, Refuse, behind


async def stalled(
    system: ActorSystem, nursery: trio.Nursery, spec: MailboxSpec
) -> tuple[Ref[Boss], Ref[Counter]]:
    """A boss whose operation waits for 10 seconds, so that its mailbox fills."""
    counter = await system.spawn(Counter, name="counter")
    boss = await system.spawn(lambda: Boss(counter), name="boss", mailbox=spec)
    nursery.start_soon(boss.ask, Pass("work", 10.0))
    await trio.testing.wait_all_tasks_blocked()
    return boss, counter


async def test_wait_parks_askers_until_there_is_room_and_refuses_tells(
    dispatch: str, autojump_clock: Any
) -> None:
    async with open_system("t", dispatch=dispatch) as system, trio.open_nursery() as nursery:
        boss, _ = await stalled(system, nursery, MailboxSpec(bound=2))
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
        assert system.dead_letters[Reason.MAILBOX_FULL] == 1
        await trio.sleep(20)
        assert len(answers) == 5


async def test_refuse_refuses_asks_and_tells(dispatch: str, autojump_clock: Any) -> None:
    async with open_system("t", dispatch=dispatch) as system, trio.open_nursery() as nursery:
        spec = MailboxSpec(bound=1, policy=Policy.REFUSE)
        boss, _ = await stalled(system, nursery, spec)
        boss.tell(Pass("who"))
        with pytest.raises(MailboxFull):
            await boss.ask(Pass("who"))
        with pytest.raises(MailboxFull):
            boss.tell(Pass("who"))
        assert boss.mailbox.statistics().dropped == 2


async def test_drop_oldest_lets_the_oldest_go(dispatch: str, autojump_clock: Any) -> None:
    async with open_system("t", dispatch=dispatch) as system, trio.open_nursery() as nursery:
        spec = MailboxSpec(bound=2, policy=Policy.DROP_OLDEST)
        boss, counter = await stalled(system, nursery, spec)
        failed: list[str] = []

        async def ask() -> None:
            try:
                await boss.ask(Pass("refuse"))
            except MailboxFull as error:
                failed.append(str(error))

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        boss.tell(Pass("who"))
        boss.tell(Pass("boom"))
        await trio.testing.wait_all_tasks_blocked()
        assert failed == ["/boss: Pass had to go for a newer one"]
        assert system.dead_letters[Reason.MAILBOX_FULL] == 1
        await trio.sleep(20)
        # the two that stayed were handled: the last crashed the counter
        assert counter.restarts == 1


async def test_coalesce_keeps_the_newest_of_a_key(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        spec = MailboxSpec(bound=3, policy=Policy.COALESCE)
        ref = await system.spawn(Counter, name="c", mailbox=spec)
        for key, value in (("a", 1), ("b", 1), ("a", 2), ("a", 3)):
            ref.tell(Latest(key, value))
        ref.tell(Note(0, 0))
        with pytest.raises(MailboxFull):
            ref.tell(Note(0, 1))
        await trio.testing.wait_all_tasks_blocked()
        assert behind(ref).notes == [Latest("b", 1), Latest("a", 3), Note(0, 0)]
        assert system.dead_letters[Reason.COALESCED] == 2


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


def test_specs_are_checked() -> None:
    with pytest.raises(ConfigError, match="bound of at least 1"):
        MailboxSpec(bound=0)
    with pytest.raises(ConfigError, match="is not a Policy"):
        MailboxSpec(policy="block")  # type: ignore[arg-type]


@given(
    bound=st.integers(1, 4),
    policy=st.sampled_from(Policy),
    moves=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=60),
)
def test_no_lane_is_ever_deeper_than_its_bound(
    bound: int, policy: Policy, moves: list[tuple[bool, int]]
) -> None:
    box = Mailbox(MailboxSpec(bound=bound, policy=policy))
    waiting: list[Envelope] = []
    inside = 0
    for number, (put, key) in enumerate(moves):
        if put:
            reply: Any = None
            envelope = Envelope(Latest(str(key), number), reply, trace=None, deadline=0.0)
            try:
                inside += box.put(envelope, may_wait=True) is None
            except MailboxFull:
                assert policy is not Policy.WAIT
                assert inside == bound
            else:
                waiting.append(envelope)
        elif box.take() is not None:
            inside -= 1
        assert box.statistics().depth <= bound
        assert len(box) == inside
    assert len(box.clear()) == inside


async def test_asks_and_tells_behind_a_full_mailbox_keep_their_order(autojump_clock: Any) -> None:
    async with open_system("t", dispatch="mailbox") as system:
        ref = await system.spawn(Counter, name="c", mailbox=MailboxSpec(bound=1))
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(ref.ask, Note(number, number))
        assert len(behind(ref).notes) == 6
        assert await ref.ask(Add()) == 1
