"""The journal: what it says, how it is written, and that the same seed writes the same."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from banyankv.actors import (
    ActorSystem,
    Fault,
    FaultKind,
    FaultPlan,
    Journal,
    Leaf,
    Message,
    Trace,
    handles,
    open_system,
    read_journal,
)
from banyankv.errors import BanyanError, ConfigError, DeadlineExceeded, IntegrityError
from banyankv.testing.scheduler import seeded_scheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from .cast import Add, Blob, Boom, Boss, Counter, Later, Pass, Twice, Watcher, Work

Script = Callable[[ActorSystem], Awaitable[None]]


async def cast_of(system: ActorSystem) -> None:
    counter = await system.spawn(Counter, name="counter")
    await system.spawn(lambda: Boss(counter), name="boss")
    await system.spawn(lambda: Watcher(counter), name="watcher")


def record(
    script: Script, *, dispatch: str, faults: FaultPlan | None = None, seed: int = 0
) -> bytes:
    """Run a script and return the journal of what it did."""
    journal = Journal()

    async def main() -> None:
        async with open_system(
            "t", dispatch=dispatch, journal=journal, faults=faults, seed=seed
        ) as system:
            await cast_of(system)
            await script(system)

    with seeded_scheduler(seed):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return bytes(journal)


async def turn(system: ActorSystem) -> None:
    """A bit of everything."""
    boss, counter = system.find("/boss"), system.find("/counter")
    await counter.ask(Add(2))
    counter.tell(Add(3), trace=Trace(trace_id="0" * 31 + "1", span_id=5))
    if system.dispatch == "direct":
        counter.call(Add(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(boss.ask, Pass("work", 2.0))
        nursery.start_soon(boss.ask, Twice(1))
        await trio.sleep(0.5)
        nursery.start_soon(counter.ask, Work(0.25))
        with pytest.raises(BanyanError):
            await boss.ask(Pass("refuse"))
    with pytest.raises(DeadlineExceeded):
        await counter.ask(Later(), deadline=trio.current_time() + 0.125)
    with trio.move_on_after(1):
        await counter.ask(Later())
    with pytest.raises(BanyanError):
        await counter.ask(Boom())
    await counter.ask(Blob(b"x" * 100))
    await counter.ask(Add(1), deadline=trio.current_time() + 100)
    counter.tell(Add(1), control=True)
    await trio.sleep(3)


def test_the_same_seed_gives_the_same_journal(dispatch: str) -> None:
    first = record(turn, dispatch=dispatch, seed=3)
    assert record(turn, dispatch=dispatch, seed=3) == first
    kinds = {entry.kind.value for entry in read_journal(first)}
    expected = {"ask", "tell", "control", "answered", "refused", "crashed", "left"}
    assert kinds - {"call"} == expected


def test_the_same_seed_under_faults_gives_the_same_journal(dispatch: str) -> None:
    plan = FaultPlan(
        seed=5,
        faults=(
            Fault(what=FaultKind.DELAY, receiver="/counter", message="Add", seconds=0.5, times=2),
            Fault(what=FaultKind.DUPLICATE, message="Work", probability=0.5, times=0),
            Fault(what=FaultKind.CRASH, receiver="/counter", message="Add", nth=5),
        ),
    )

    async def script(system: ActorSystem) -> None:
        boss, counter = system.find("/boss"), system.find("/counter")
        for n in range(4):
            await counter.ask(Add(n))
            try:
                await boss.ask(Twice(n))
            except BanyanError:
                await trio.sleep(1)
            await counter.ask(Work(0.1))

    first = record(script, dispatch=dispatch, faults=plan)
    assert record(script, dispatch=dispatch, faults=plan) == first


@settings(max_examples=15, deadline=None)
@given(
    dispatch=st.sampled_from(["direct", "mailbox"]),
    seed=st.integers(0, 5),
    scripts=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["add", "twice", "work", "later", "boom", "tell"]),
                st.integers(0, 3),
            ),
            max_size=5,
        ),
        max_size=3,
    ),
)
def test_any_run_is_written_the_same_byte_for_byte(
    dispatch: str, seed: int, scripts: list[list[tuple[str, int]]]
) -> None:
    async def script(system: ActorSystem) -> None:
        boss, counter = system.find("/boss"), system.find("/counter")

        async def client(number: int, steps: list[tuple[str, int]]) -> None:
            # nothing comes from outside at an instant at which anything else happens
            await trio.sleep((number + 1) * 0.001)
            for index, (what, n) in enumerate(steps):
                with trio.move_on_after(1 + n / 8), contextlib.suppress(BanyanError):
                    if what == "add":
                        await counter.ask(Add(n))
                    elif what == "twice":
                        await boss.ask(Twice(n))
                    elif what == "work":
                        await boss.ask(Pass("work", n / 4))
                    elif what == "later":
                        await counter.ask(Later())
                    elif what == "boom":
                        await counter.ask(Boom())
                    else:
                        counter.tell(Add(n))
                await trio.sleep((n + 1) / 16 + (number + 1) * 0.0001 + (index + 1) * 0.00001)

        async with trio.open_nursery() as nursery:
            for number, steps in enumerate(scripts):
                nursery.start_soon(client, number, steps)
        await trio.sleep(20)

    first = record(script, dispatch=dispatch, seed=seed)
    assert record(script, dispatch=dispatch, seed=seed) == first


def test_records_tell_who_sent_what(dispatch: str) -> None:
    async def script(system: ActorSystem) -> None:
        await system.find("/boss").ask(Twice(2), deadline=trio.current_time() + 1.5)

    rows = [
        (entry.kind.value, entry.sender, entry.receiver, entry.type.rsplit(".", 1)[-1], entry.body)
        for entry in read_journal(record(script, dispatch=dispatch))
    ]
    assert rows == [
        ("ask", "", "/boss", "Twice", {"n": 2}),
        ("ask", "/boss", "/counter", "Add", {"n": 2}),
        ("answered", "/counter", "/counter", "int", 2),
        ("ask", "/boss", "/counter", "Add", {"n": 2}),
        ("answered", "/counter", "/counter", "int", 4),
        ("answered", "/boss", "/boss", "tuple", [2, 4]),
    ]


def test_a_child_tasks_report_is_no_message_from_outside(dispatch: str) -> None:
    async def script(system: ActorSystem) -> None:
        await system.find("/counter").ask(Work(1.0))

    entries = read_journal(record(script, dispatch=dispatch))
    assert [(entry.sender, entry.at) for entry in entries if entry.kind.value == "tell"] == [
        ("/counter", 1_000_000)
    ]


def test_large_payloads_are_stored_once() -> None:
    payload = bytes(range(256)) * 4

    async def script(system: ActorSystem) -> None:
        for _ in range(3):
            assert await system.find("/counter").ask(Blob(payload)) == payload
        await system.find("/counter").ask(Blob(b"y" * 63))

    journal = record(script, dispatch="direct")
    assert journal.count(payload) == 1
    bodies = [entry.body for entry in read_journal(journal)]
    assert bodies == [{"data": payload}, payload] * 3 + [{"data": b"y" * 63}, b"y" * 63]


def test_the_format_of_version_1() -> None:
    async def script(system: ActorSystem) -> None:
        await system.find("/counter").ask(Add(7), trace=Trace(trace_id="ab" * 16, span_id=3))
        await system.find("/counter").ask(Blob(b"z" * 64))

    module = Add.__module__.encode()
    digest = hashlib.sha256(b"z" * 64).digest()

    def text(value: bytes) -> bytes:
        return (
            bytes([0xA0 | len(value)]) if len(value) < 32 else bytes([0xD9, len(value)])
        ) + value

    def frame(kind: bytes, body: bytes) -> bytes:
        return len(body).to_bytes(4, "big") + kind + body

    ext = b"\xc7\x20\x01" + digest
    trace = (
        b"\x83"
        + text(b"trace_id")
        + text(b"ab" * 16)
        + text(b"span_id")
        + b"\x03"
        + text(b"flags")
        + b"\x01"
    )
    golden = b"BKVJ\x01"
    golden += frame(
        b"R",
        b"\x9a\x01\x00"
        + text(b"ask")
        + text(b"")
        + text(b"/counter")
        + text(module + b".Add")
        + b"\x00\xff"
        + trace
        + b"\x81"
        + text(b"n")
        + b"\x07",
    )
    golden += frame(
        b"R",
        b"\x9a\x02\x00"
        + text(b"answered")
        + text(b"/counter")
        + text(b"/counter")
        + text(b"builtins.int")
        + b"\x01\xff\xc0\x07",
    )
    golden += frame(b"B", digest + b"z" * 64)
    golden += frame(
        b"R",
        b"\x9a\x03\x00"
        + text(b"ask")
        + text(b"")
        + text(b"/counter")
        + text(module + b".Blob")
        + b"\x00\xff\xc0\x81"
        + text(b"data")
        + ext,
    )
    golden += frame(
        b"R",
        b"\x9a\x04\x00"
        + text(b"answered")
        + text(b"/counter")
        + text(b"/counter")
        + text(b"builtins.bytes")
        + b"\x03\xff\xc0"
        + ext,
    )
    assert record(script, dispatch="direct") == golden


def test_what_is_no_journal_is_refused() -> None:
    async def script(system: ActorSystem) -> None:
        await system.find("/counter").ask(Blob(b"q" * 80))

    good = record(script, dispatch="direct")
    assert len(read_journal(good)) == 2
    bad = {
        "the magic is missing": b"nope" + good[4:],
        "version 1": good[:4] + b"\x09" + good[5:],
        "cut short": good[:-1],
        "damaged": good.replace(b"q" * 80, b"q" * 79 + b"r"),
    }
    for match, data in bad.items():
        with pytest.raises(IntegrityError, match=match):
            read_journal(data)
    first = good.index(b"B", 5) - 4
    length = int.from_bytes(good[first : first + 4], "big")
    with pytest.raises(IntegrityError, match="without having it"):
        read_journal(good[:first] + good[first + 5 + length :])


async def test_messages_must_be_plain_and_answers_may_be_opaque(dispatch: str) -> None:
    class Opaque(Message[None], frozen=True):
        value: object

    class Odd(Leaf):
        @handles(Add)
        def add(self, msg: Add) -> object:
            return object()

        @handles(Opaque)
        def opaque(self, msg: Opaque) -> None: ...

    file = io.BytesIO()
    journal = Journal(file)
    async with open_system("t", dispatch=dispatch, journal=journal) as system:
        odd = await system.spawn(Odd, name="odd")
        with pytest.raises(ConfigError, match="Opaque cannot be journalled"):
            await odd.ask(Opaque(object()))
        await odd.ask(Add())
        with pytest.raises(ConfigError, match=r"another one's|give each one its own"):
            async with open_system("u", journal=journal):
                pass
    with pytest.raises(ConfigError, match="in its file"):
        bytes(journal)
    assert [entry.type for entry in read_journal(file.getvalue())][-1] == "builtins.object"
    assert repr(journal) == "<Journal of 2 records>"


def test_the_scheduler_may_be_seeded_under_trios_own_clock() -> None:
    async def main() -> None:
        await trio.lowlevel.checkpoint()

    with seeded_scheduler(7):
        trio.run(main)
