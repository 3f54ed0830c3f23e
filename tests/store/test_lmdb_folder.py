"""The folder of a store: who has it, what may be in it, and what a failure leaves behind."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from banyankv import CacheConfig, ModelSpec, PagedSpec, StoreConfig, open_cache
from banyankv.errors import ConfigError, TierUnavailable
from banyankv.tiers.store.check import inspect
from banyankv.tiers.store.lmdb_folder import Folder
from banyankv.tiers.store.lmdb_store import LmdbStore
from banyankv.tiers.store.protocol import StoreNotKept, StoreSetAside

MIB = 1 << 20
FILES = ["owner.lock", "unclean", "lock.mdb", "data.mdb"]
OPEN_ON_A_FULL_DISK = """
import resource, sys, trio
from banyankv.errors import TierUnavailable
from banyankv.tiers.store.lmdb_store import LmdbStore

async def main(path):
    with open(path + "/lock.mdb", "wb") as lock:
        lock.write(bytes(16384))  # so that it is LMDB that finds no room
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    for room in (0, 1, 100, 5000, 8192):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        try:
            await LmdbStore.open(path, 1 << 20)
        except TierUnavailable as error:
            print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    store = await LmdbStore.open(path, 1 << 20)
    print(await store.put([(b"k" * 32, b"x")]))
    await store.aclose()

trio.run(main, sys.argv[1])
"""
OPEN_AND_DIE = """
import os, signal, sys, trio
from pathlib import Path
from banyankv.tiers.store.lmdb_store import LmdbStore

path = Path(sys.argv[1])

def die_after(lines):
    def trace(frame, event, argument):
        nonlocal lines
        if not frame.f_code.co_filename.endswith(("files.py", "lmdb_folder.py")):
            return None
        lines -= event == "line"
        if lines < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    LmdbStore._open(path, 1 << 24)
    os._exit(0)

async def count():
    store = await LmdbStore.open(path, 1 << 24)
    await store.aclose()
    return store.statistics().objects

for lines in range(1000):
    child = os.fork()
    if not child:
        die_after(lines)
    died = os.waitpid(child, 0)[1] & 127 == signal.SIGKILL
    assert trio.run(count) == 20, lines
    if not died:
        break
print(lines)
"""


async def fill(path: Path) -> None:
    store = await LmdbStore.open(path, 16 * MIB)
    await store.put([(bytes([n]) * 32, bytes(4000)) for n in range(20)])
    await store.aclose()


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


async def test_what_we_make_is_for_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "store"
    store = await LmdbStore.open(folder, MIB)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == dict.fromkeys(FILES, 0o600)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    await store.aclose()


@pytest.mark.parametrize("name", FILES)
async def test_no_file_is_opened_through_a_link(tmp_path: Path, name: str) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "store"
    victim.write_text("mine")
    folder.mkdir()
    (folder / name).symlink_to(victim)
    with pytest.raises(ConfigError, match=f"{name} is no regular file; remove it"):
        await LmdbStore.open(folder, MIB)
    (folder / name).unlink()
    await fill(folder)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "nothing yet")
    with pytest.raises(ConfigError, match=f"{name} is no regular file; remove it"):
        await LmdbStore.open(folder, MIB)
    if name != "owner.lock":  # which a check does not open
        with pytest.raises(ConfigError, match=f"{name} is no regular file; remove it"):
            inspect(folder)
    assert victim.read_text() == "mine"
    assert not (tmp_path / "nothing yet").exists()


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
@pytest.mark.parametrize("name", FILES)
async def test_what_is_no_file_is_refused_at_once(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / name)
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"{name} is no regular file; remove it"):
            await LmdbStore.open(tmp_path, MIB)
    if name == "data.mdb":
        with pytest.raises(ConfigError, match="data.mdb is no regular file; remove it"):
            inspect(tmp_path)
    (tmp_path / name).rmdir() if make is Path.mkdir else (tmp_path / name).unlink()
    await fill(tmp_path)


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 300])
async def test_what_cannot_be_a_path_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="store"):
        await LmdbStore.open(path, MIB)


async def test_a_fifo_is_no_store(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="folder"):
        await LmdbStore.open(tmp_path / "fifo", MIB)


@pytest.mark.parametrize("marker", [b"\xff\xfe\n1\n", b"", b"\x80" * 1000])
async def test_a_marker_that_says_nothing_sets_aside(tmp_path: Path, marker: bytes) -> None:
    await fill(tmp_path)
    (tmp_path / "unclean").write_bytes(marker)
    with pytest.warns(StoreSetAside, match="machine went down"):
        await (await LmdbStore.open(tmp_path, MIB)).aclose()


async def test_a_forked_child_does_not_keep_the_folder(tmp_path: Path) -> None:
    store = await LmdbStore.open(tmp_path, MIB)
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.read(told, 1)
        os._exit(0)
    try:
        await store.aclose()
        await fill(tmp_path)
    finally:
        os.write(tell, b"x")
        await trio.to_thread.run_sync(os.waitpid, child, 0)
        os.close(told)
        os.close(tell)


def test_a_forked_child_outlives_its_parent_without_the_folder(tmp_path: Path) -> None:
    (told, tell), (ready, is_ready) = os.pipe(), os.pipe()
    parent = os.fork()
    if not parent:
        folder = Folder(tmp_path)
        if not os.fork():
            os.write(is_ready, b"x")
            os.read(told, 1)
        os._exit(folder.path != tmp_path)
    try:
        os.waitpid(parent, 0)
        os.read(ready, 1)
        Folder(tmp_path).release(clean=True)
    finally:
        os.write(tell, b"x")
        for end in (told, tell, ready, is_ready):
            os.close(end)


def test_a_child_that_lets_go_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.mark()
    child = os.fork()
    if not child:
        folder.release(clean=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(ConfigError, match="in use"):
        Folder(tmp_path)
    assert (tmp_path / "unclean").exists()
    folder.release(clean=True)
    Folder(tmp_path).release(clean=True)


async def test_a_full_disk_at_open_leaves_nothing_behind(tmp_path: Path) -> None:
    done = await trio.to_thread.run_sync(run, OPEN_ON_A_FULL_DISK, tmp_path)
    *errors, last = done.stdout.splitlines()
    assert (done.returncode, last, done.stderr) == (0, "[True]", "")
    assert len(errors) == 5
    assert all("free room on that disk" in error for error in errors)
    store = await LmdbStore.open(tmp_path, MIB)
    assert await store.get([b"k" * 32]) == [b"x"]
    await store.aclose()


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


async def test_a_failing_start_lets_go_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Exception):
        pass

    def broken(*_: object) -> None:
        raise Broken

    before = descriptors()
    for name in ("lmdb_store.Writer.start", "lmdb_open._recall", "lmdb_open._distrust"):
        with monkeypatch.context() as patched:
            patched.setattr(f"banyankv.tiers.store.{name}", broken)
            with pytest.raises(Broken):
                await LmdbStore.open(tmp_path, MIB)
    assert descriptors() == before
    await fill(tmp_path)


async def test_a_process_killed_anywhere_while_it_opens_loses_nothing(tmp_path: Path) -> None:
    await fill(tmp_path)
    done = await trio.to_thread.run_sync(run, OPEN_AND_DIE, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 60


@pytest.mark.parametrize("again", [False, True])
async def test_a_folder_that_is_removed_while_it_is_open(tmp_path: Path, again: bool) -> None:
    folder = tmp_path / "store"
    store = await LmdbStore.open(folder, MIB)
    await store.put([(b"k" * 32, b"x")])
    shutil.rmtree(folder)
    if again:
        await fill(folder)
    assert await store.get([b"k" * 32]) == [b"x"]
    with pytest.raises(TierUnavailable, match="was removed while it was open"):
        await store.put([(b"l" * 32, b"x")])
    with pytest.warns(StoreNotKept, match="was removed while it was open"):
        await store.aclose()
    if again:
        store = await LmdbStore.open(folder, MIB)
        assert store.statistics().objects == 20
        await store.aclose()
    else:
        assert not folder.exists()


async def test_a_cache_serves_on_without_a_store_that_is_removed(tmp_path: Path) -> None:
    model = ModelSpec(name="m", page_size=16, components=(PagedSpec(name="full"),))
    store = StoreConfig(path=str(tmp_path / "store"), max_bytes=MIB)
    config = CacheConfig(model=model, l1={"full": 40}, l2={"full": 40}, store=store)

    async def serve() -> None:
        async with open_cache(config) as cache:
            shutil.rmtree(tmp_path / "store")
            for _ in range(2):
                async with await cache.acquire(range(512)) as lease:
                    await lease.extend(512 - lease.length)
                    await lease.publish(512)
                await cache.settle()
            assert lease.length >= 496
            await cache.check()

    with pytest.warns(StoreNotKept):
        await serve()
