"""Damaged data cannot kill the process that opens it: flipped bits, wherever they are."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
import trio
from banyankv.errors import ConfigError
from banyankv.tiers.store.check import inspect
from banyankv.tiers.store.lmdb_folder import DATA
from banyankv.tiers.store.lmdb_pages import Damaged, look
from banyankv.tiers.store.lmdb_store import LmdbStore
from banyankv.tiers.store.objects import Header, encode
from banyankv.tiers.store.protocol import StoreSetAside

MIB = 1 << 20
PAGE = 4096
BRANCH, LEAF, RUN, META = 1, 2, 4, 8
OPEN_AND_USE = """
import os, sys, trio, warnings
from pathlib import Path
from banyankv.errors import BanyanError
from banyankv.tiers.store.lmdb_store import LmdbStore
from banyankv.tiers.store.objects import BadObject, decode

async def use(path):
    store = await LmdbStore.open(path, 1 << 21)
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
        except BanyanError:
            pass
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


async def test_looking_never_fails_otherwise(tmp_path: Path) -> None:
    """Bytes of any value anywhere, and a file cut anywhere, are damage, or not seen, or not LMDB's."""
    await fill(tmp_path)
    data = (tmp_path / DATA).read_bytes()
    rng = random.Random(2)
    found = 0
    for at in rng.sample(places(data, rng), 300):
        flipped = bytearray(data)
        width = rng.choice((1, 2, 4, 8))
        flipped[at : at + width] = rng.choice((b"\0", b"\xff", rng.randbytes(1))) * width
        damaged = tmp_path / "damaged"
        damaged.write_bytes(flipped[: rng.choice((len(flipped), rng.randrange(len(flipped))))])
        file = os.open(damaged, os.O_RDONLY)
        try:
            look(file, damaged)
        except (Damaged, ConfigError):
            found += 1
        finally:
            os.close(file)
    assert found > 150
