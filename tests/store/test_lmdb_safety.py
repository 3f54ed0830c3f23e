"""What an LMDB folder goes through: kills, truncation, another boot, two writers, foreign files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import lmdb
import pytest
import trio
from banyankv.errors import ConfigError, TierUnavailable
from banyankv.tiers.store.check import inspect
from banyankv.tiers.store.lmdb_folder import ASIDE, DATA, OBJECTS, RECORDS
from banyankv.tiers.store.lmdb_store import LmdbStore
from banyankv.tiers.store.protocol import StoreSetAside

MIB = 1 << 20
PUT_FOR_EVER = """
import sys, trio
from banyankv.tiers.store.lmdb_store import LmdbStore

async def main(path):
    store = await LmdbStore.open(path, 1 << 24)
    number = 0
    while True:
        names = [n.to_bytes(4, "big") for n in range(number, number + 7)]
        await store.put([(name * 8, name * 1000) for name in names])
        number += 7
        print(number, flush=True)

trio.run(main, sys.argv[1])
"""
PUT_UNDER_A_FILE_LIMIT = """
import resource, sys, trio
from banyankv.tiers.store.lmdb_store import LmdbStore

async def main(path):
    store = await LmdbStore.open(path, 1 << 26)
    await store.put([(b"k" * 32, b"before")])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, -1))
    refused = await store.put([(b"l" * 32, bytes(4 << 20))])
    print(refused, await store.get([b"k" * 32, b"l" * 32]), store.statistics().refused_objects)
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    print(await store.put([(b"l" * 32, b"after")]))
    await store.aclose()

trio.run(main, sys.argv[1])
"""
READ_WITHOUT_LOOKING = """
import lmdb, sys
env = lmdb.open(sys.argv[1], readonly=True, max_dbs=2)
with env.begin(db=env.open_db(b"objects", create=False)) as txn:
    for key, value in txn.cursor():
        bytes(value)
"""


def key(number: int) -> bytes:
    return number.to_bytes(4, "big") * 8


async def fill(path: Path, objects: int = 200) -> None:
    store = await LmdbStore.open(path, 4 * MIB)
    await store.put([(key(n), n.to_bytes(4, "big") * 1000) for n in range(objects)])
    await store.aclose()


@contextmanager
def child(program: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_a_killed_process_loses_nothing_committed(tmp_path: Path) -> None:
    with child(PUT_FOR_EVER, tmp_path) as process:
        assert process.stdout is not None
        committed = 0
        while committed < 700:
            committed = int(process.stdout.readline())
        with pytest.raises(ConfigError, match=f"in use by process {process.pid}"):
            await LmdbStore.open(tmp_path, 1 << 24)
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate()
        committed = int((rest.split() or [committed])[-1])
    assert (tmp_path / "unclean").exists()
    store = await LmdbStore.open(tmp_path, 1 << 24)
    numbers = range(committed)
    assert await store.get([key(n) for n in numbers]) == [
        n.to_bytes(4, "big") * 1000 for n in numbers
    ]
    await store.aclose()
    assert not (tmp_path / "unclean").exists()


async def test_two_stores_of_one_process_are_refused_too(tmp_path: Path) -> None:
    store = await LmdbStore.open(tmp_path, MIB)
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
        await LmdbStore.open(tmp_path, MIB)
    await store.aclose()
    await (await LmdbStore.open(tmp_path, MIB)).aclose()


async def test_a_truncated_file_kills_who_maps_it_but_not_us(tmp_path: Path) -> None:
    await fill(tmp_path)
    data = tmp_path / DATA
    os.truncate(data, data.stat().st_size // 2)
    with child(READ_WITHOUT_LOOKING, tmp_path) as process:
        assert await trio.to_thread.run_sync(process.wait) == -signal.SIGBUS
    report = inspect(tmp_path)
    assert not report.readable
    assert not report.sound
    assert "is not in the file" in report.problem
    with pytest.warns(StoreSetAside, match="is not in the file"):
        store = await LmdbStore.open(tmp_path, 4 * MIB)
    assert store.statistics().objects == 0
    assert (tmp_path / ASIDE).exists()
    assert await store.put([(key(1), b"x")]) == [True]
    await store.aclose()
    await (await LmdbStore.open(tmp_path, 4 * MIB)).aclose()


@pytest.mark.parametrize("length", [100, 4096])
async def test_a_file_without_its_meta_pages_is_set_aside(tmp_path: Path, length: int) -> None:
    await fill(tmp_path)
    os.truncate(tmp_path / DATA, length)
    with pytest.warns(StoreSetAside):
        store = await LmdbStore.open(tmp_path, 4 * MIB)
    assert store.statistics().objects == 0
    await store.aclose()


async def test_free_pages_that_the_file_does_not_have_are_no_damage(tmp_path: Path) -> None:
    store = await LmdbStore.open(tmp_path, 4 * MIB)
    for numbers in (range(40), range(40, 80)):
        await store.put([(key(n), bytes(20_000)) for n in numbers])
    await store.delete([key(n) for n in range(20, 80)])
    for n in range(3):
        await store.delete([key(n)])
    await store.aclose()
    data = tmp_path / DATA
    # the last two are free; LMDB, too, may promise pages that it never writes
    os.truncate(data, data.stat().st_size - 2 * 4096)
    assert inspect(tmp_path).sound is False  # objects are no banyankv objects
    assert inspect(tmp_path).problem == ""
    store = await LmdbStore.open(tmp_path, 4 * MIB)
    assert store.statistics().objects == 17
    assert all(await store.put([(key(n), b"x" * 20_000) for n in range(100)]))
    await store.aclose()
    assert inspect(tmp_path).objects == 100


async def test_after_another_boot_an_unclean_store_is_set_aside(tmp_path: Path) -> None:
    await fill(tmp_path)
    (tmp_path / "unclean").write_text("another-boot\n1\n")
    with pytest.warns(StoreSetAside, match="machine went down"):
        store = await LmdbStore.open(tmp_path, 4 * MIB)
    assert store.statistics().objects == 0
    await store.aclose()


async def test_after_another_boot_a_clean_store_is_warm(tmp_path: Path) -> None:
    await fill(tmp_path)
    with patch("banyankv.tiers.store.lmdb_folder.boot_id", lambda: "another-boot"):
        store = await LmdbStore.open(tmp_path, 4 * MIB)
        assert store.statistics().objects == 200
        await store.aclose()


async def test_without_a_boot_id_an_unclean_store_is_not_trusted(tmp_path: Path) -> None:
    await fill(tmp_path)
    (tmp_path / "unclean").write_text("\n1\n")
    with (
        patch("banyankv.tiers.store.lmdb_folder.boot_id", lambda: ""),
        pytest.warns(StoreSetAside, match="machine went down"),
    ):
        await (await LmdbStore.open(tmp_path, 4 * MIB)).aclose()


async def test_objects_that_the_records_do_not_explain_are_set_aside(tmp_path: Path) -> None:
    await fill(tmp_path)
    env = lmdb.open(str(tmp_path), max_dbs=2)
    with env.begin(write=True) as txn:
        txn.delete(key(1), db=env.open_db(OBJECTS, txn=txn))
    env.close()
    with pytest.warns(StoreSetAside, match="contradicts itself"):
        store = await LmdbStore.open(tmp_path, 4 * MIB)
    assert store.statistics().objects == 0
    assert await store.put([(key(1), b"x")]) == [True]
    await store.aclose()


async def test_a_torn_record_sets_the_store_aside(tmp_path: Path) -> None:
    await fill(tmp_path)
    env = lmdb.open(str(tmp_path), max_dbs=2)
    with env.begin(write=True) as txn:
        txn.put(b"\xff" * 8, b"torn", db=env.open_db(RECORDS, txn=txn))
    env.close()
    with pytest.warns(StoreSetAside, match="contradicts itself"):
        await (await LmdbStore.open(tmp_path, 4 * MIB)).aclose()


async def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(ConfigError, match="folder"):
        await LmdbStore.open(tmp_path / "file", MIB)
    with pytest.raises(ConfigError, match="folder"):
        await LmdbStore.open(tmp_path / "file" / "below", MIB)
    with pytest.raises(ConfigError, match="no store"):
        inspect(tmp_path / "file")


async def test_a_folder_that_cannot_be_made_is_unavailable() -> None:
    with pytest.raises(TierUnavailable):
        await LmdbStore.open("/proc/no-such-place/store", MIB)


@pytest.mark.parametrize("text", [b"not a database " * 100, b"\0" * 8192])
async def test_a_file_that_is_not_lmdb_is_left_alone(tmp_path: Path, text: bytes) -> None:
    (tmp_path / DATA).write_bytes(text)
    for _ in range(2):
        with pytest.raises(ConfigError, match="not an LMDB file"):
            await LmdbStore.open(tmp_path, MIB)
    with pytest.raises(ConfigError, match="not an LMDB file"):
        inspect(tmp_path)
    assert (tmp_path / DATA).read_bytes() == text


async def test_lmdb_data_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    env = lmdb.open(str(tmp_path))
    with env.begin(write=True) as txn:
        txn.put(b"theirs", b"data")
    env.close()
    before = (tmp_path / DATA).read_bytes()
    with pytest.raises(ConfigError, match="no banyankv store"):
        await LmdbStore.open(tmp_path, MIB)
    with pytest.raises(ConfigError, match="no banyankv store"):
        inspect(tmp_path)
    assert (tmp_path / DATA).read_bytes() == before


async def test_a_full_disk_refuses_what_is_put_and_the_store_goes_on(tmp_path: Path) -> None:
    with child(PUT_UNDER_A_FILE_LIMIT, tmp_path) as process:
        out, _ = await trio.to_thread.run_sync(process.communicate)
        assert process.returncode == 0
    assert out.splitlines() == ["[False] [b'before', None] 1", "[True]"]
    store = await LmdbStore.open(tmp_path, MIB)
    assert await store.get([b"k" * 32, b"l" * 32]) == [b"before", b"after"]
    await store.aclose()
