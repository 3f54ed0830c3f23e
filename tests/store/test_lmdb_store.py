"""The LMDB store as its tier uses it: answers per key, the bound, recency, cancellation."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

import lmdb
import pytest
import trio
import trio.testing
from banyankv.errors import ConfigError, TierUnavailable
from banyankv.tiers.store.lmdb_store import LmdbStore
from banyankv.tiers.store.lmdb_writer import Writer
from banyankv.tiers.store.recency import Pages
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MIB = 1 << 20
SIZE = 60_000
COST = Pages(4096).cost(SIZE)


def key(number: int) -> bytes:
    return number.to_bytes(4, "big") * 8


def content(number: int, length: int = SIZE) -> bytes:
    return number.to_bytes(4, "big") * (length // 4)


@asynccontextmanager
async def opened(path: Path, max_bytes: int = MIB) -> AsyncIterator[LmdbStore]:
    store = await LmdbStore.open(path, max_bytes)
    try:
        yield store
    finally:
        await store.aclose()


async def held(store: LmdbStore, numbers: range) -> list[int]:
    flags = await store.exists([key(n) for n in numbers])
    return [n for n, there in zip(numbers, flags, strict=True) if there]


async def test_each_verb_answers_for_each_key(tmp_path: Path) -> None:
    async with opened(tmp_path / "new" / "store") as store:
        assert await store.put([(key(1), b"one"), (key(2), b"")]) == [True, True]
        assert await store.exists([key(3), key(2), key(1)]) == [False, True, True]
        assert await store.get([key(3), key(2), key(1)]) == [None, b"", b"one"]
        assert await store.delete([key(2), key(3)]) == [True, False]
        assert await store.get([key(2)]) == [None]
        assert await store.get([]) == []
        assert await store.put([]) == []
        assert await store.delete([]) == []


async def test_a_put_replaces(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put([(key(1), content(1))])
        await store.put([(key(1), b"small"), (key(2), b"x"), (key(1), b"last")])
        assert await store.get([key(1)]) == [b"last"]
        assert store.statistics().objects == 2
        assert store.statistics().bytes < COST


async def test_the_least_recently_used_go_first_and_the_bound_holds(tmp_path: Path) -> None:
    room = MIB // COST
    async with opened(tmp_path) as store:
        for number in range(room):
            await store.put([(key(number), content(number))])
        assert store.statistics().evicted_objects == 0
        await store.get([key(0), key(2)])
        await store.exists([key(1)])  # is not a use
        for number in range(room, room + 3):
            await store.put([(key(number), content(number))])
            assert store.statistics().bytes <= MIB
        gone = {1, 3, 4}
        assert await held(store, range(room + 3)) == [n for n in range(room + 3) if n not in gone]
        assert store.statistics().evicted_objects == 3


async def test_one_batch_larger_than_the_store_leaves_its_end(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        assert all(await store.put([(key(n), content(n)) for n in range(100)]))
        assert store.statistics().bytes <= MIB
        assert await held(store, range(100)) == list(range(100 - MIB // COST, 100))


async def test_an_object_larger_than_the_store_is_refused_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        large = bytes(MIB)
        assert await store.put([(key(1), b"a"), (key(2), large), (key(3), b"c")]) == [
            True,
            False,
            True,
        ]
        assert await store.get([key(1), key(2), key(3)]) == [b"a", None, b"c"]
        assert store.statistics().refused_objects == 1


async def test_a_key_of_another_length_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with pytest.raises(ConfigError, match="32 bytes"):
            await store.put([(key(1), b"a"), (b"short", b"b")])
        assert await store.exists([key(1)]) == [False]


async def test_recency_survives_a_restart(tmp_path: Path) -> None:
    room = MIB // COST
    async with opened(tmp_path) as store:
        await store.put([(key(n), content(n)) for n in range(room)])
        await store.get([key(0)])
    async with opened(tmp_path) as store:
        assert store.statistics().bytes == room * COST
        assert await store.get([key(3)]) == [content(3)]
        await store.put([(key(90), content(90)), (key(91), content(91))])
        gone = {1, 2}
        assert await held(store, range(room)) == [n for n in range(room) if n not in gone]


async def test_a_smaller_bound_drops_the_oldest_at_open(tmp_path: Path) -> None:
    async with opened(tmp_path, 4 * MIB) as store:
        await store.put([(key(n), content(n)) for n in range(40)])
        assert store.statistics().objects == 40
    async with opened(tmp_path, MIB) as store:
        assert await held(store, range(40)) == list(range(40 - MIB // COST, 40))


async def test_a_bound_that_is_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_bytes"):
        await LmdbStore.open(tmp_path, 1000)


async def test_records_are_compacted_and_still_right(tmp_path: Path) -> None:
    with patch("banyankv.tiers.store.recency._SLACK_ENTRIES", 4):
        async with opened(tmp_path) as store:
            for number in range(50):
                await store.put([(key(number % 5), content(number, 400))])
                await store.get([key(0)])
            assert store._writer._logged < 40 * 36
        async with opened(tmp_path) as store:
            assert await held(store, range(6)) == [0, 1, 2, 3, 4]
            assert store._recency.snapshot()[-36:-4] == key(0)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.lists(
                st.tuples(st.integers(0, 9), st.sampled_from([10, 60_000, 200_000, 2_000_000])),
                max_size=5,
            ),
        ),
        st.tuples(st.sampled_from(["get", "delete"]), st.lists(st.integers(0, 9), max_size=4)),
        st.tuples(st.just("reopen"), st.just([])),
    ),
    max_size=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS)
async def test_a_store_is_a_bounded_dictionary(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, list]]
) -> None:
    path = tmp_path_factory.mktemp("store")
    pages = Pages(4096)
    model: OrderedDict[int, bytes] = OrderedDict()
    store = await LmdbStore.open(path, MIB)
    try:
        for verb, arguments in operations:
            if verb == "put":
                for number, length in arguments:
                    data = content(number, length)
                    fits = pages.cost(length) <= MIB
                    assert await store.put([(key(number), data)]) == [fits]
                    if fits:
                        model.pop(number, None)
                        model[number] = data
                        while sum(pages.cost(len(d)) for d in model.values()) > MIB:
                            model.popitem(last=False)
            elif verb == "get":
                answers = await store.get([key(n) for n in arguments])
                assert answers == [model.get(n) for n in arguments]
                for number in arguments:
                    if number in model:
                        model.move_to_end(number)
            elif verb == "delete":
                answers = await store.delete([key(n) for n in arguments])
                assert answers == [model.pop(n, None) is not None for n in arguments]
            else:
                await store.aclose()
                store = await LmdbStore.open(path, MIB)
            assert await held(store, range(10)) == sorted(model)
    finally:
        await store.aclose()


class Gate:
    """Holds the writer's thread at the start of a transaction until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self.groups: list[int] = []
        self._transact = Writer._transact

    def patched(self) -> Callable[[Writer, list], None]:
        def transact(writer: Writer, jobs: list) -> None:
            if jobs:
                self.groups.append(len(jobs))
                self.reached.set()
                self.open.wait()
            self._transact(writer, jobs)

        return transact


async def test_what_waits_is_committed_together_and_a_withdrawn_put_is_not_begun(
    tmp_path: Path,
) -> None:
    gate = Gate()
    with patch.object(Writer, "_transact", gate.patched()):
        async with opened(tmp_path) as store:
            with trio.CancelScope() as withdrawn:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(store.put, [(key(1), b"first")])
                    await trio.to_thread.run_sync(gate.reached.wait)
                    for number in (2, 3):
                        nursery.start_soon(store.put, [(key(number), b"waits")])

                    async def regretted() -> None:
                        with withdrawn_scope:
                            await store.put([(key(4), b"withdrawn")])

                    withdrawn_scope = trio.CancelScope()
                    nursery.start_soon(regretted)
                    await trio.testing.wait_all_tasks_blocked()
                    withdrawn_scope.cancel()
                    await trio.testing.wait_all_tasks_blocked()
                    assert withdrawn_scope.cancelled_caught
                    gate.open.set()
            assert not withdrawn.cancelled_caught
            assert gate.groups == [1, 2]
            assert await held(store, range(6)) == [1, 2, 3]


async def test_the_event_loop_goes_on_while_the_writer_syncs(tmp_path: Path) -> None:
    syncing, go = threading.Event(), threading.Event()
    sync = Writer._sync

    def slow(writer: Writer) -> None:
        syncing.set()
        go.wait()
        sync(writer)

    with (
        patch("banyankv.tiers.store.lmdb_writer._SYNC_SECONDS", 0.0),
        patch.object(Writer, "_sync", slow),
    ):
        async with opened(tmp_path) as store:
            await store.put([(key(1), b"x")])
            await trio.to_thread.run_sync(syncing.wait)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.put, [(key(2), b"y")])
                await trio.testing.wait_all_tasks_blocked()
                assert await store.get([key(1), key(2)]) == [b"x", None]
                go.set()
            assert await store.get([key(2)]) == [b"y"]


async def test_closing_is_not_cut_short_by_cancellation(tmp_path: Path) -> None:
    store = await LmdbStore.open(tmp_path, MIB)
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.aclose()
    await (await LmdbStore.open(tmp_path, MIB)).aclose()


async def test_a_cancelled_read_returns_at_once_and_close_waits_for_its_thread(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        await store.put([(key(1), b"x")])
        reached, go = threading.Event(), threading.Event()
        read = store._recency.__class__.__contains__

        def slow(recency: object, wanted: bytes) -> bool:
            reached.set()
            go.wait()
            return read(recency, wanted)  # type: ignore[arg-type]

        async with trio.open_nursery() as nursery:
            with patch.object(store._recency.__class__, "__contains__", slow):
                scope = trio.CancelScope()

                async def reader() -> None:
                    with scope:
                        await store.get([key(1)])

                nursery.start_soon(reader)
                await trio.to_thread.run_sync(reached.wait)
                scope.cancel()
                await trio.testing.wait_all_tasks_blocked()
                assert scope.cancelled_caught
                nursery.start_soon(store.aclose)
                await trio.testing.wait_all_tasks_blocked()
                assert store._reading == 1
                go.set()
        assert store._reading == 0


async def test_a_failing_transaction_fails_its_askers_and_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put([(key(1), b"kept")])
        with (
            patch.object(Writer, "_record", side_effect=lmdb.PanicError("MDB_PANIC")),
            pytest.raises(TierUnavailable, match="MDB_PANIC"),
        ):
            await store.put([(key(1), b"lost"), (key(2), b"lost")])
        assert await store.get([key(1), key(2)]) == [b"kept", None]
        assert await store.put([(key(2), b"again")]) == [True]
    async with opened(tmp_path) as store:
        assert await store.get([key(1), key(2)]) == [b"kept", b"again"]


async def test_a_full_map_makes_room_or_refuses_but_never_escapes(tmp_path: Path) -> None:
    transact = Writer._transact
    full = [3]

    def sometimes(writer: Writer, jobs: list) -> None:
        if jobs and full[0]:
            full[0] -= 1
            raise lmdb.MapFullError("map full")
        transact(writer, jobs)

    async with opened(tmp_path) as store:
        await store.put([(key(n), content(n)) for n in range(MIB // COST)])
        with patch.object(Writer, "_transact", sometimes):
            assert await store.put([(key(90), b"new")]) == [True]
            assert store.statistics().evicted_objects == 6
            assert await held(store, range(8)) == [6, 7]
            full[0], store._writer._dirty = 1000, False
            assert await store.put([(key(91), b"new")]) == [False]
            assert store._writer._dirty  # what made room must reach the disk as well
        assert await store.put([(key(91), b"new")]) == [True]


async def test_a_closed_store_is_unavailable(tmp_path: Path) -> None:
    store = await LmdbStore.open(tmp_path, MIB)
    await store.aclose()
    await store.aclose()
    for call in (
        store.exists([key(1)]),
        store.get([key(1)]),
        store.put([(key(1), b"")]),
        store.delete([key(1)]),
    ):
        with pytest.raises(TierUnavailable, match="closed"):
            await call
    assert "closed" in repr(store)
