"""Damaged data cannot kill the process that opens it: flipped bits, wherever they are."""

from __future__ import annotations

import errno
import os
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from banyankv.tiers.store import check
from banyankv.tiers.store.check import inspect
from banyankv.tiers.store.lmdb_folder import DATA, FORMAT_KEY, OBJECTS, RECORDS
from banyankv.tiers.store.lmdb_pages import Damaged, check_pages
from banyankv.tiers.store.lmdb_store import LmdbStore
from banyankv.tiers.store.objects import Header, encode
from banyankv.tiers.store.protocol import StoreSetAside

MIB = 1 << 20
PAGE = 4096
BRANCH, LEAF, RUN, META = 1, 2, 4, 8
OPEN_AND_USE = """
import os, sys, traceback, trio, warnings
from pathlib import Path
from banyankv.tiers.store.lmdb_store import LmdbStore
from banyankv.tiers.store.objects import BadObject, decode

async def use(path):
    store = await LmdbStore.open(path, 1 << 21)  # kept or set aside, and never refused
    keys = [n.to_bytes(4, "big") * 8 for n in range(150)]
    right = {key: before[key] for key in keys}
    for turn in range(2):
        for key, data in zip(keys, await store.get(keys)):
            if data is not None and data != right[key]:
                try:
                    decode(data)
                except BadObject:
                    continue
                os._exit(3)
        await store.put([(key, right[key]) for key in keys[turn::2]])
        await store.delete(keys[::3])
    await store.aclose()

warnings.simplefilter("ignore")
before = eval(Path(sys.argv[1]).read_text())
for path in sys.argv[2:]:
    child = os.fork()
    if not child:
        try:
            trio.run(use, path)
            trio.run(use, path)  # nor is what the first time made of it
        except BaseException:
            traceback.print_exc()
            os._exit(4)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        print(path, "signal", status & 127, "code", status >> 8)
"""


def key(number: int) -> bytes:
    return number.to_bytes(4, "big") * 8


def an_object(number: int) -> bytes:
    body = random.Random(number).randbytes((50, 1500, 9000, 20_000)[number % 4])
    return encode(Header("full", b"A" * 16, key(number), 0, 256, 16, 1000), body)


async def fill(path: Path) -> dict[bytes, bytes]:
    """Make a store of branch pages, leaves, runs and free pages; give its objects and others."""
    objects = {key(n): an_object(n) for n in range(150)}
    for first in (0, 50, 0):
        store = await LmdbStore.open(path, 2 * MIB)
        for n in range(first, first + 90):
            await store.put([(key(n), objects[key(n)])])
        await store.delete([key(n) for n in range(first, first + 90, 7)])
        await store.aclose()
    return objects


def places(data: bytes, rng: random.Random) -> list[int]:
    """Name bytes that LMDB follows: in headers, pointers, nodes and keys of all kinds of pages."""
    chosen: list[int] = []
    for page in range(0, len(data), PAGE):
        number, kind = int.from_bytes(data[page : page + 8], "little"), data[page + 10]
        if number * PAGE != page or kind not in (BRANCH, LEAF, RUN, META):
            continue  # inside of a run
        if kind == META:
            chosen += [page + rng.randrange(152) for _ in range(20)]
        chosen += [page + rng.randrange(16) for _ in range(2)]
        if kind in (BRANCH, LEAF):
            lower = int.from_bytes(data[page + 12 : page + 14], "little")
            for at in range(page + 16, page + lower, 2):
                node = page + int.from_bytes(data[at : at + 2], "little")
                chosen += [at + rng.randrange(2), node + rng.randrange(8), node + rng.randrange(50)]
    return [at for at in chosen if at < len(data)]


async def test_no_flipped_bit_kills_or_gives_wrong_bytes(tmp_path: Path) -> None:
    objects = await fill(tmp_path / "store")
    (tmp_path / "objects").write_text(repr(objects))
    data = (tmp_path / "store" / DATA).read_bytes()
    rng = random.Random(1)
    folders: list[Path] = []
    for number, at in enumerate(rng.sample(places(data, rng), 60)):
        folder = tmp_path / f"{number} {at // PAGE} {at % PAGE}"
        folder.mkdir()
        flipped = bytearray(data)
        flipped[at] ^= 1 << rng.randrange(8)
        (folder / DATA).write_bytes(flipped)
        folders.append(folder)
    command = [sys.executable, "-c", OPEN_AND_USE, str(tmp_path / "objects"), *map(str, folders)]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (0, "", "")


@pytest.mark.parametrize("what", [b"k" * 32, (1).to_bytes(8, "big")])
async def test_a_flipped_length_sets_the_store_aside(tmp_path: Path, what: bytes) -> None:
    store = await LmdbStore.open(tmp_path, 16 * MIB)
    await store.put([(b"k" * 32, bytes(20_000))])
    await store.aclose()
    data = bytearray((tmp_path / DATA).read_bytes())
    node = len(what).to_bytes(2, "little") + what
    for at in range(len(data)):
        if data.startswith(node, at):
            data[at - 4] ^= 0x80  # eight MiB more
    (tmp_path / DATA).write_bytes(data)
    report = inspect(tmp_path)
    assert not report.readable
    assert "contradict each other: page" in report.problem
    with pytest.warns(StoreSetAside, match="contradict each other: page"):
        store = await LmdbStore.open(tmp_path, 16 * MIB)
    assert await store.get([b"k" * 32]) == [None]
    assert await store.put([(b"k" * 32, b"again")]) == [True]
    await store.aclose()


async def test_wrong_bytes_are_damage_and_never_another_error(tmp_path: Path) -> None:
    """Bytes of any value anywhere are damage or not seen, a file cut anywhere is damage."""
    await fill(tmp_path)
    data = (tmp_path / DATA).read_bytes()
    rng = random.Random(2)
    damaged = tmp_path / "damaged"

    def found(content: bytes) -> bool:
        damaged.write_bytes(content)
        file = os.open(damaged, os.O_RDONLY)
        try:
            check_pages(file, damaged)
        except Damaged:
            return True
        finally:
            os.close(file)
        return False

    assert not found(data)
    changed = 0
    for at in rng.sample(places(data, rng), 150):
        flipped = bytearray(data)
        width = rng.choice((1, 2, 4, 8))
        flipped[at : at + width] = rng.choice((b"\0", b"\xff", rng.randbytes(1))) * width
        changed += found(bytes(flipped))
    assert changed > 50
    # free pages at the end need not be there
    assert all(found(data[: rng.randrange(len(data) // 2)]) for _ in range(150))


def node(name: bytes, back: int, bit: int) -> Callable[[bytes], list[tuple[int, int]]]:
    """Choose a bit `back` bytes before the end of `name`, wherever that is the key of a node."""
    return lambda data: [
        (found.end() - back, bit)
        for found in re.finditer(re.escape(len(name).to_bytes(2, "little") + name), data)
    ]


BITS: dict[str, Callable[[bytes], list[tuple[int, int]]]] = {
    "the kind of the tree of objects": node(OBJECTS, len(OBJECTS) + 4, 1),
    "the kind of the tree of records": node(RECORDS, len(RECORDS) + 4, 1),
    "the name of the tree of objects": node(OBJECTS, 1, 0),
    "the name of the tree of records": node(RECORDS, 1, 0),
    "the name of the format": node(FORMAT_KEY, 1, 0),
    "the format": node(FORMAT_KEY, 0, 1),
    "the padding of the main tree": lambda _: [(90, 2), (PAGE + 90, 2)],
    **{
        f"{field} of meta page {page}": lambda _, at=page * PAGE + offset: [(at, 3)]
        for page in (0, 1)
        for field, offset in (("number", 0), ("magic", 16), ("version", 20), ("page size", 41))
    },
}


@pytest.mark.parametrize("name", BITS)
async def test_one_bit_sets_the_store_aside_and_never_refuses(tmp_path: Path, name: str) -> None:
    await (await LmdbStore.open(tmp_path, 2 * MIB)).aclose()
    data = bytearray((tmp_path / DATA).read_bytes())
    bits = BITS[name](data)
    assert bits
    for at, bit in bits:
        data[at] ^= 1 << bit
    (tmp_path / DATA).write_bytes(data)
    assert "contradict each other" in inspect(tmp_path).problem
    with pytest.warns(StoreSetAside, match="contradict each other"):
        store = await LmdbStore.open(tmp_path, 2 * MIB)
    assert await store.put([(key(1), b"x")]) == [True]
    await store.aclose()
    store = await LmdbStore.open(tmp_path, 2 * MIB)
    assert await store.get([key(1)]) == [b"x"]
    await store.aclose()


async def test_a_sector_that_cannot_be_read_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await LmdbStore.open(tmp_path, 2 * MIB)).aclose()
    read = os.pread

    def bad(file: int, size: int, at: int) -> bytes:
        if at >= 2 * PAGE:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file, size, at)

    monkeypatch.setattr(os, "pread", bad)
    assert "the disk cannot read" in check._walk(tmp_path).problem
    with pytest.warns(StoreSetAside, match="the disk cannot read"):
        store = await LmdbStore.open(tmp_path, 2 * MIB)
    assert await store.put([(key(1), b"x")]) == [True]
    await store.aclose()
