"""Objects between a store and pages: what is verified, what is deleted, what is never touched."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing
from banyankv.errors import ConfigError, IntegrityError
from banyankv.spec import ModelSpec, PagedSpec, SnapshotSpec, StateTensor
from banyankv.tiers.store.keys import KeyMaker
from banyankv.tiers.store.memory import MemoryStore
from banyankv.tiers.store.messages import StoreItem
from banyankv.tiers.store.objects import Header, decode, encode
from banyankv.tiers.store.protocol import MissReason
from banyankv.tiers.store.store_io import Progress, StoreFailed, StoreIO

PAGE = 4
MODEL = ModelSpec(
    name="m",
    page_size=PAGE,
    components=(
        PagedSpec(name="full", dtype="uint8", head_dim=3),
        SnapshotSpec(states=(StateTensor("s", (5,), "uint8"),)),
    ),
)
PAGE_BYTES = {"full": 2 * 3 * PAGE, "mamba": 5}
CHAINS = [bytes([n]) * 32 for n in range(250)]


def ids(*pages: int) -> bytes:
    return struct.pack(f"<{len(pages)}i", *pages)


def full(chain: bytes, start: int, end: int, *pages: int) -> StoreItem:
    return StoreItem("full", chain, start, end, ids(*pages))


def state(chain: bytes, at: int, page: int) -> StoreItem:
    return StoreItem("mamba", chain, at, at, ids(page))


@dataclass
class FakeL2:
    """L2 pages as a dictionary of bytes."""

    pages: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def put(self, component: str, page: int) -> bytes:
        self.pages[component, page] = bytes([page % 251]) * PAGE_BYTES[component]
        return self.pages[component, page]

    def gather(self, component: str, pages: bytes) -> bytes:
        return b"".join(self.pages[component, page] for (page,) in struct.iter_unpack("<i", pages))

    def scatter(self, component: str, pages: bytes, body: memoryview) -> None:
        size = PAGE_BYTES[component]
        assert len(body) == len(pages) // 4 * size
        for index, (page,) in enumerate(struct.iter_unpack("<i", pages)):
            self.pages[component, page] = bytes(body[index * size : (index + 1) * size])


def an_io(
    store: object, l2: FakeL2, *, model: ModelSpec = MODEL, layout: str = "l", shard: str = "0/1"
) -> StoreIO:
    return StoreIO(store, model, l2, layout, shard)  # type: ignore[arg-type]


async def fetched(io: StoreIO, *items: StoreItem) -> list[MissReason | None]:
    progress = Progress()
    await io.fetch(items, progress)
    return progress.outcomes


async def saved(io: StoreIO, *items: StoreItem) -> list[MissReason | None]:
    progress = Progress()
    await io.save(items, progress)
    return progress.outcomes


@pytest.fixture
def l2() -> FakeL2:
    l2 = FakeL2()
    for page in range(4):
        l2.put("full", page)
        l2.put("mamba", page)
    return l2


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def test_what_is_saved_is_found_and_fetched_into_other_pages(
    store: MemoryStore, l2: FakeL2
) -> None:
    io = an_io(store, l2)
    a, b = CHAINS[:2]
    progress = Progress()
    await io.save((full(a, 8, 16, 0, 1), state(b, 16, 2)), progress)
    assert progress.outcomes == [None, None]
    assert progress.moved == 2 * PAGE_BYTES["full"] + PAGE_BYTES["mamba"]
    progress = Progress()
    await io.probe((("full", a + b), ("mamba", b)), progress)
    assert bytes(progress.flags) == bytes([1, 0, 1])
    progress = Progress()
    await io.fetch((full(a, 8, 16, 11, 10), state(b, 16, 12), full(b, 16, 20, 13)), progress)
    assert progress.outcomes == [None, None, MissReason.MISSING]
    assert progress.moved == 2 * PAGE_BYTES["full"] + PAGE_BYTES["mamba"]
    assert l2.pages["full", 11] == l2.pages["full", 0]
    assert l2.pages["full", 10] == l2.pages["full", 1]
    assert l2.pages["mamba", 12] == l2.pages["mamba", 2]
    assert ("full", 13) not in l2.pages


async def test_the_key_is_that_of_model_component_layout_and_shard(
    store: MemoryStore, l2: FakeL2
) -> None:
    await saved(an_io(store, l2, layout="x", shard="1/2"), full(CHAINS[0], 0, 4, 0))
    assert list(store.objects) == [KeyMaker(MODEL.fingerprint(), "x", "1/2").key("full", CHAINS[0])]
    (data,) = store.objects.values()
    header, body = decode(data)
    assert header.fingerprint == MODEL.fingerprint()[:16]
    assert header.written > 1_700_000_000
    assert bytes(body) == l2.pages["full", 0]
    for other in (an_io(store, l2, layout="y", shard="1/2"), an_io(store, l2, layout="x")):
        assert await fetched(other, full(CHAINS[0], 0, 4, 9)) == [MissReason.MISSING]


async def test_a_part_of_an_object_can_be_fetched(store: MemoryStore, l2: FakeL2) -> None:
    io = an_io(store, l2)
    await saved(io, full(CHAINS[0], 0, 16, 0, 1, 2, 3))
    assert await fetched(io, full(CHAINS[0], 8, 16, 20, 21)) == [None]
    assert l2.pages["full", 20] == l2.pages["full", 2]
    assert l2.pages["full", 21] == l2.pages["full", 3]


async def test_a_shorter_object_is_a_miss_and_stays(store: MemoryStore, l2: FakeL2) -> None:
    io = an_io(store, l2)
    await saved(io, full(CHAINS[0], 8, 16, 0, 1))
    assert await fetched(io, full(CHAINS[0], 0, 16, 20, 21, 22, 23)) == [MissReason.RANGE]
    assert len(store.objects) == 1
    assert ("full", 20) not in l2.pages


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda data: data[:-1], MissReason.SHORT),
        (lambda data: data[:10], MissReason.SHORT),
        (lambda data: b"", MissReason.SHORT),
        (lambda data: b"????" + data[4:], MissReason.NO_OBJECT),
        (lambda data: data[:4] + b"\7" + data[5:], MissReason.VERSION),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), MissReason.CHECKSUM),
    ],
)
async def test_a_bad_object_is_a_miss_with_its_reason_and_is_deleted(
    store: MemoryStore, l2: FakeL2, spoil: object, reason: MissReason
) -> None:
    io = an_io(store, l2)
    await saved(io, full(CHAINS[0], 0, 4, 0), full(CHAINS[1], 0, 4, 1))
    first = next(iter(store.objects))
    store.objects[first] = spoil(store.objects[first])  # type: ignore[operator]
    outcomes = await fetched(io, full(CHAINS[0], 0, 4, 20), full(CHAINS[1], 0, 4, 21))
    assert outcomes == [reason, None]
    assert ("full", 20) not in l2.pages
    assert first not in store.objects
    assert len(store.objects) == 1


async def test_an_object_under_a_foreign_key_is_never_served(
    store: MemoryStore, l2: FakeL2
) -> None:
    io = an_io(store, l2)
    other = an_io(store, l2, model=ModelSpec(name="n", page_size=4, components=MODEL.components))
    key = KeyMaker(MODEL.fingerprint(), "l", "0/1").key("full", CHAINS[0])

    async def planted(io: StoreIO, item: StoreItem) -> list[MissReason | None]:
        store.objects.clear()
        await saved(io, item)
        store.objects = {key: next(iter(store.objects.values()))}
        return await fetched(an_io(store, l2), full(CHAINS[0], 0, 4, 20))

    assert await planted(other, full(CHAINS[0], 0, 4, 0)) == [MissReason.FOREIGN_MODEL]
    assert await planted(io, full(CHAINS[1], 0, 4, 0)) == [MissReason.FOREIGN_CHAIN]
    assert await planted(io, state(CHAINS[0], 4, 0)) == [MissReason.FOREIGN_COMPONENT]
    assert await planted(io, full(CHAINS[0], 4, 8, 0)) == [MissReason.RANGE]
    assert ("full", 20) not in l2.pages


async def test_a_body_of_another_length_than_its_pages_is_a_miss(
    store: MemoryStore, l2: FakeL2
) -> None:
    key = KeyMaker(MODEL.fingerprint(), "l", "0/1").key("full", CHAINS[0])
    header = Header("full", MODEL.fingerprint()[:16], CHAINS[0], 0, 4, PAGE, 0)
    store.objects[key] = encode(header, bytes(PAGE_BYTES["full"] + 1))
    assert await fetched(an_io(store, l2), full(CHAINS[0], 0, 4, 20)) == [MissReason.SHORT]
    assert ("full", 20) not in l2.pages


async def test_pages_that_give_too_few_bytes_are_not_saved(store: MemoryStore, l2: FakeL2) -> None:
    l2.pages["full", 0] = l2.pages["full", 0][:-1]
    with pytest.raises(IntegrityError, match="L2 'full'"):
        await saved(an_io(store, l2), full(CHAINS[1], 0, 4, 1), full(CHAINS[0], 0, 4, 0))
    assert store.objects == {}


async def test_items_of_several_components_keep_their_own_bytes(
    store: MemoryStore, l2: FakeL2
) -> None:
    io = an_io(store, l2)
    await saved(
        io,
        full(CHAINS[0], 0, 8, 3, 1),
        state(CHAINS[0], 8, 2),
        full(CHAINS[1], 8, 12, 0),
        state(CHAINS[1], 12, 3),
    )
    await fetched(
        io,
        state(CHAINS[1], 12, 13),
        full(CHAINS[1], 8, 12, 20),
        full(CHAINS[0], 0, 8, 23, 21),
        state(CHAINS[0], 8, 12),
    )
    for new, old in {20: 0, 23: 3, 21: 1}.items():
        assert l2.pages["full", new] == l2.pages["full", old]
    for new, old in {12: 2, 13: 3}.items():
        assert l2.pages["mamba", new] == l2.pages["mamba", old]


class Odd(MemoryStore):
    """Answers for one key less, or more, than was asked."""

    def __init__(self, verb: str, change: int) -> None:
        super().__init__()
        self._verb, self._change = verb, change

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name not in ("exists", "get", "put", "delete") or name != self._verb:
            return found

        async def odd(what: Sequence[object]) -> list[object]:
            answers = await found(what)
            return answers[:-1] if self._change < 0 else [*answers, answers[-1]]

        return odd


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("verb", ["exists", "get", "put"])
async def test_an_answer_for_another_number_of_keys_is_the_stores_failure(
    l2: FakeL2, verb: str, change: int
) -> None:
    io = an_io(Odd(verb, change), l2)
    progress = Progress()
    items = (full(CHAINS[0], 0, 4, 0),)
    call = {
        "exists": lambda: io.probe((("full", CHAINS[0]),), progress),
        "get": lambda: io.fetch(items, progress),
        "put": lambda: io.save(items, progress),
    }[verb]
    before = dict(l2.pages)
    with pytest.raises(StoreFailed, match="1 keys were asked") as caught:
        await call()
    assert caught.value.reason is MissReason.CARDINALITY
    assert progress.outcomes == []
    assert progress.flags == b""
    assert l2.pages == before


async def test_whatever_a_store_raises_is_its_failure(l2: FakeL2) -> None:
    class Broken(MemoryStore):
        async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
            raise RuntimeError("out of order")

    with pytest.raises(StoreFailed, match="RuntimeError: out of order") as caught:
        await fetched(an_io(Broken(), l2), full(CHAINS[0], 0, 4, 0))
    assert caught.value.reason is MissReason.STORE_FAILED


async def test_what_was_done_before_a_failure_is_known(l2: FakeL2) -> None:
    class Tires(MemoryStore):
        calls = 0

        async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
            self.calls += 1
            if self.calls == 2:
                raise RuntimeError("tired")
            return await super().get(keys)

    io = an_io(Tires(), l2)
    items = [full(chain, 0, 4, 0) for chain in CHAINS] * 2
    await saved(io, *items)
    progress = Progress()
    with pytest.raises(StoreFailed):
        await io.fetch(items, progress)
    assert progress.outcomes == [None] * 256


async def test_a_cancelled_fetch_is_over_only_when_it_touches_no_page(l2: FakeL2) -> None:
    io = an_io(MemoryStore(), l2)
    await saved(io, full(CHAINS[0], 0, 4, 0))
    entered, go = threading.Event(), threading.Event()
    scatter = l2.scatter

    def slow(component: str, pages: bytes, body: memoryview) -> None:
        entered.set()
        go.wait()
        scatter(component, pages, body)

    l2.scatter = slow  # type: ignore[method-assign]
    ended = []
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def fetcher() -> None:
            with scope:
                await fetched(io, full(CHAINS[0], 0, 4, 20))
            ended.append(("full", 20) in l2.pages)

        nursery.start_soon(fetcher)
        await trio.to_thread.run_sync(entered.wait)
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert ended == []
        go.set()
    assert ended == [True]


async def test_many_items_go_in_parts(l2: FakeL2) -> None:
    sizes = []

    class Counting(MemoryStore):
        async def put(self, items: Sequence[tuple[bytes, bytes]]) -> list[bool]:
            sizes.append(len(items))
            return await super().put(items)

    outcomes = await saved(an_io(Counting(), l2), *[full(CHAINS[0], 0, 4, 0)] * 600)
    assert outcomes == [None] * 600
    assert sizes == [256, 256, 88]


@pytest.mark.parametrize(
    "item",
    [
        StoreItem("swa", CHAINS[0], 0, 4, ids(0)),
        StoreItem("full", b"short", 0, 4, ids(0)),
        StoreItem("full", CHAINS[0], 0, 4, ids(0, 1)),
        StoreItem("full", CHAINS[0], 0, 4, ids(0)[:3]),
        StoreItem("full", CHAINS[0], 0, 0, b""),
        StoreItem("full", CHAINS[0], 0, 6, ids(0)),
        StoreItem("full", CHAINS[0], 8, 4, ids(0)),
        StoreItem("full", CHAINS[0], -4, 4, ids(0, 1)),
        StoreItem("mamba", CHAINS[0], 0, 4, ids(0)),
        StoreItem("mamba", CHAINS[0], 4, 4, b""),
    ],
)
def test_an_item_that_cannot_be_meant_is_refused(l2: FakeL2, item: StoreItem) -> None:
    with pytest.raises(ConfigError):
        an_io(MemoryStore(), l2).check_items((item,))


def test_a_probe_that_cannot_be_meant_is_refused(l2: FakeL2) -> None:
    io = an_io(MemoryStore(), l2)
    with pytest.raises(ConfigError, match="32 bytes"):
        io.check_wanted((("full", b"short"),))
    with pytest.raises(ConfigError, match="no component"):
        io.check_wanted((("swa", CHAINS[0]),))
