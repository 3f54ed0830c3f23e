"""The L3 actor: replies, the breaker, deadlines, askers that leave, facts and statistics."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from banyankv.actors import Ref, open_system
from banyankv.actors.observer import Fact, Hop
from banyankv.errors import ConfigError, DeadlineExceeded, WouldWait
from banyankv.spec import ModelSpec, PagedSpec, SnapshotSpec, StateTensor
from banyankv.tiers.store.breaker import Breaker
from banyankv.tiers.store.l3 import StoreTier
from banyankv.tiers.store.memory import MemoryStore
from banyankv.tiers.store.messages import (
    Fetch,
    Outcomes,
    Probe,
    Probed,
    Save,
    StoreCall,
    StoreItem,
)
from banyankv.tiers.store.protocol import MissReason

MODEL = ModelSpec(
    name="m",
    page_size=4,
    components=(
        PagedSpec(name="full", dtype="uint8", head_dim=3),
        SnapshotSpec(states=(StateTensor("s", (5,), "uint8"),)),
    ),
)
PAGE_BYTES = {"full": 24, "mamba": 5}
A, B, C = (bytes([n]) * 32 for n in range(3))


class FakeL2:
    def __init__(self) -> None:
        self.pages = {
            (name, page): bytes([page]) * size
            for name, size in PAGE_BYTES.items()
            for page in range(4)
        }

    def gather(self, component: str, pages: bytes) -> bytes:
        return b"".join(self.pages[component, page] for (page,) in struct.iter_unpack("<i", pages))

    def scatter(self, component: str, pages: bytes, body: memoryview) -> None:
        size = PAGE_BYTES[component]
        for index, (page,) in enumerate(struct.iter_unpack("<i", pages)):
            self.pages[component, page] = bytes(body[index * size : (index + 1) * size])


class Sick(MemoryStore):
    """A store that fails or hangs when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = False
        self.hanging = False
        self.asked = 0
        self.blocked: trio.testing.MockClock | None = None

    async def _sickness(self) -> None:
        self.asked += 1
        if self.blocked is not None:
            self.blocked.jump(7.0)
            await trio.lowlevel.checkpoint()
            self.blocked.jump(7.0)
            await trio.lowlevel.checkpoint()
        if self.hanging:
            await trio.sleep_forever()
        if self.failing:
            raise OSError("unplugged")

    async def exists(self, keys: Sequence[bytes]) -> list[bool]:
        await self._sickness()
        return await super().exists(keys)

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await self._sickness()
        return await super().get(keys)

    async def put(self, items: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        await self._sickness()
        return await super().put(items)


class Facts:
    hops = False

    def __init__(self) -> None:
        self.calls: list[StoreCall] = []

    def fact(self, fact: Fact) -> None:
        if isinstance(fact, StoreCall):
            self.calls.append(fact)

    def hop(self, hop: Hop) -> None:
        raise AssertionError("nobody asked for hops")


class Bench:
    """An actor with everything around it that a test wants to look at."""

    def __init__(self, dispatch: str) -> None:
        self.dispatch = dispatch
        self.store = Sick()
        self.l2 = FakeL2()
        self.facts = Facts()
        self.breaker = Breaker(threshold=2, base=1.0)
        self.ref: Ref

    def make(self) -> StoreTier:
        return StoreTier(self.store, MODEL, self.l2, breaker=self.breaker, timeout=5.0, calls=2)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Bench]:
        async with open_system("test", dispatch=self.dispatch, observer=self.facts) as system:
            self.ref = await system.spawn(self.make, name="l3")
            yield self


@pytest.fixture
async def bench(dispatch: str) -> AsyncIterator[Bench]:
    async with Bench(dispatch).running() as bench:
        yield bench


async def passing(clock: trio.testing.MockClock, seconds: float) -> None:
    """Let time pass as it does where the event loop runs."""
    for _ in range(int(seconds * 64 / 5)):
        clock.jump(5 / 64)
        await trio.testing.wait_all_tasks_blocked()


def full(chain: bytes, start: int, end: int, *pages: int) -> StoreItem:
    return StoreItem("full", chain, start, end, struct.pack(f"<{len(pages)}i", *pages))


def state(chain: bytes, at: int, page: int) -> StoreItem:
    return StoreItem("mamba", chain, at, at, struct.pack("<i", page))


async def test_save_probe_and_fetch(bench: Bench) -> None:
    saved = await bench.ref.ask(Save((full(A, 0, 8, 0, 1), state(A, 8, 2))))
    assert saved == Outcomes((None, None))
    probed = await bench.ref.ask(Probe((("full", A + B), ("mamba", B + A), ("full", b""))))
    assert probed == Probed((b"\1\0", b"\0\1", b""))
    fetched = await bench.ref.ask(
        Fetch((full(A, 0, 8, 11, 10), full(B, 0, 4, 12), state(A, 8, 13)))
    )
    assert fetched == Outcomes((None, MissReason.MISSING, None))
    assert bench.l2.pages["full", 11] == b"\0" * 24
    assert bench.l2.pages["full", 10] == b"\1" * 24
    assert bench.l2.pages["mamba", 13] == b"\2" * 5
    assert ("full", 12) not in bench.l2.pages


async def test_empty_messages_are_answered(bench: Bench) -> None:
    assert await bench.ref.ask(Save(())) == Outcomes(())
    assert await bench.ref.ask(Fetch(())) == Outcomes(())
    assert await bench.ref.ask(Probe(())) == Probed(())


async def test_calls_are_counted_and_reported(bench: Bench) -> None:
    await bench.ref.ask(Save((full(A, 0, 8, 0, 1),)))
    await bench.ref.ask(Fetch((full(A, 0, 8, 4, 5), full(B, 0, 4, 6))))
    await bench.ref.ask(Probe((("full", A + B + C),)))
    statistics = bench.ref.actor.glance()
    assert statistics.calls == (("fetch", 1), ("probe", 1), ("save", 1))
    assert statistics.keys == (("fetch", 2), ("probe", 3), ("save", 1))
    assert statistics.hits == (("fetch", 1), ("probe", 1), ("save", 1))
    assert statistics.bytes == (("fetch", 48), ("probe", 0), ("save", 48))
    assert statistics.misses == (("fetch", "missing", 1), ("probe", "missing", 2))
    assert (statistics.in_flight, statistics.breaker) == (0, "closed")
    assert statistics.store.objects == 1
    assert [(f.verb, f.keys, f.hits, f.bytes, f.outcome, f.error) for f in bench.facts.calls] == [
        ("save", 1, 1, 48, "ok", ""),
        ("fetch", 2, 1, 48, "missing", ""),
        ("probe", 3, 1, 0, "missing", ""),
    ]
    assert all(f.started <= f.ended for f in bench.facts.calls)


async def test_what_cannot_be_meant_is_refused_before_the_store_is_asked(bench: Bench) -> None:
    for message in (
        Probe((("swa", A),)),
        Fetch((full(A, 0, 8, 0),)),
        Save((full(A, 0, 4, 0), full(b"", 0, 4, 0))),
    ):
        with pytest.raises(ConfigError):
            await bench.ref.ask(message)
    assert bench.store.asked == 0
    assert bench.ref.actor.glance().calls == ()


async def test_a_failing_store_opens_the_breaker_until_a_trial_succeeds(
    bench: Bench, mock_clock: trio.testing.MockClock
) -> None:
    bench.store.failing = True
    failed = Outcomes((MissReason.STORE_FAILED,) * 2)
    items = (full(A, 0, 4, 0), full(B, 0, 4, 1))
    assert await bench.ref.ask(Save(items)) == failed
    assert await bench.ref.ask(Fetch(items)) == failed
    assert bench.facts.calls[-1].error == "OSError: unplugged"
    assert bench.store.asked == 2

    refused = Outcomes((MissReason.BREAKER_OPEN,) * 2)
    assert await bench.ref.ask(Save(items)) == refused
    assert await bench.ref.ask(Fetch(items)) == refused
    assert await bench.ref.ask(Probe((("full", A + B), ("mamba", C)))) == Probed(
        (b"\0\0", b"\0"), MissReason.BREAKER_OPEN
    )
    assert bench.store.asked == 2
    assert bench.ref.actor.glance().breaker == "open"

    mock_clock.jump(1.0)
    assert bench.ref.actor.glance().breaker == "half_open"
    bench.store.failing = False
    assert await bench.ref.ask(Probe((("full", A),))) == Probed((b"\0",))
    assert await bench.ref.ask(Save(items)) == Outcomes((None, None))
    statistics = bench.ref.actor.glance()
    assert (statistics.breaker, statistics.breaker_opened) == ("closed", 1)
    assert ("probe", "breaker_open", 3) in statistics.misses


async def test_a_bad_object_does_not_open_the_breaker(bench: Bench) -> None:
    for _ in range(5):
        await bench.ref.ask(Save((full(A, 0, 4, 0),)))
        (key,) = bench.store.objects
        bench.store.objects[key] = bench.store.objects[key][:-1] + b"!"
        assert await bench.ref.ask(Fetch((full(A, 0, 4, 9),))) == Outcomes((MissReason.CHECKSUM,))
    assert bench.breaker.opened == 0
    assert ("full", 9) not in bench.l2.pages


async def test_a_hanging_store_is_given_up_after_the_timeout(
    bench: Bench, mock_clock: trio.testing.MockClock
) -> None:
    bench.store.hanging = True
    for expected in (1, 2):
        answers: list[Probed] = []
        async with trio.open_nursery() as nursery:

            async def probe(answers: list[Probed] = answers) -> None:
                answers.append(await bench.ref.ask(Probe((("full", A),))))

            nursery.start_soon(probe)
            await trio.testing.wait_all_tasks_blocked()
            await passing(mock_clock, 4.9)
            assert answers == []
            await passing(mock_clock, 0.2)
        assert answers == [Probed((b"\0",), MissReason.TIMEOUT)]
        assert bench.store.asked == expected
    assert bench.breaker.opened == 1


async def test_time_in_which_the_event_loop_is_blocked_does_not_count(
    bench: Bench, mock_clock: trio.testing.MockClock
) -> None:
    """The store answers at once, and nobody looks: each forward takes longer than the timeout."""
    bench.store.blocked = mock_clock
    items = (full(A, 0, 4, 0), full(B, 0, 4, 1))
    assert await bench.ref.ask(Save(items)) == Outcomes((None, None))
    assert await bench.ref.ask(Probe((("full", A + B),))) == Probed((b"\1\1",))
    assert await bench.ref.ask(Fetch(items)) == Outcomes((None, None))
    assert bench.breaker.opened == 0


@pytest.mark.parametrize(("first", "opened"), [(4.0, 0), (2.0, 1)])
async def test_a_call_counts_against_the_store_only_if_it_had_it_for_half_of_the_time(
    bench: Bench, mock_clock: trio.testing.MockClock, first: float, opened: int
) -> None:
    bench.store.hanging = True
    timeout = Outcomes((MissReason.TIMEOUT,))
    async with trio.open_nursery() as nursery:

        async def fetch() -> None:
            assert await bench.ref.ask(Fetch((full(A, 0, 4, 9),))) == timeout

        # two calls have the slots for a while, then two more that have waited for them since
        with trio.CancelScope() as early:
            async with trio.open_nursery() as two:
                for _ in range(2):
                    two.start_soon(bench.ref.ask, Probe((("full", A),)))
                await trio.testing.wait_all_tasks_blocked()
                for _ in range(2):
                    nursery.start_soon(fetch)
                await trio.testing.wait_all_tasks_blocked()
                assert bench.store.asked == 2
                await passing(mock_clock, first)
                early.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert bench.store.asked == 4
        await passing(mock_clock, 5.0 - first + 0.2)
    assert bench.breaker.opened == opened


async def test_few_calls_are_at_the_store_at_once_and_the_actor_stays_free(
    bench: Bench, mock_clock: trio.testing.MockClock
) -> None:
    bench.store.hanging = True
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(bench.ref.ask, Probe((("full", A),)))
        await trio.testing.wait_all_tasks_blocked()
        assert bench.store.asked == 2
        assert bench.ref.actor.glance().in_flight == 3
        bench.store.hanging = False
        await passing(mock_clock, 5.0)
    assert bench.ref.actor.glance().in_flight == 0


async def test_a_call_whose_asker_left_ends_and_its_trial_is_free_again(
    bench: Bench, mock_clock: trio.testing.MockClock
) -> None:
    bench.store.failing = True
    for _ in range(2):
        await bench.ref.ask(Probe((("full", A),)))
    mock_clock.jump(1.0)
    bench.store.failing, bench.store.hanging = False, True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.ref.ask, Probe((("full", A),)))
        await trio.testing.wait_all_tasks_blocked()
        assert bench.ref.actor.glance().in_flight == 1
        nursery.cancel_scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    statistics = bench.ref.actor.glance()
    assert (statistics.in_flight, statistics.breaker) == (0, "half_open")


async def test_an_asker_whose_envelope_ran_out_ends_the_call(
    bench: Bench, mock_clock: trio.testing.MockClock
) -> None:
    bench.store.hanging = True
    async with trio.open_nursery() as nursery:

        async def probe() -> None:
            with pytest.raises(DeadlineExceeded):
                await bench.ref.ask(Probe((("full", A),)), deadline=trio.current_time() + 1.0)

        nursery.start_soon(probe)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(1.0)
    await trio.testing.wait_all_tasks_blocked()
    assert bench.ref.actor.glance().in_flight == 0


async def test_a_call_cannot_be_answered_in_the_callers_stack(bench: Bench) -> None:
    with pytest.raises(WouldWait):
        bench.ref.call(Probe((("full", A),)))


async def test_stopping_ends_what_is_under_way(dispatch: str) -> None:
    bench = Bench(dispatch)
    bench.store.hanging = True
    async with trio.open_nursery() as nursery, bench.running():
        nursery.start_soon(bench.ref.ask, Probe((("full", A),)))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
