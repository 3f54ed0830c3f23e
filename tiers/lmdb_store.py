"""An embedded store of L3 objects: LMDB in a folder, bounded in bytes.

One thread writes: it takes everything that waits, up to a limit, into one transaction (group
commit), and drops the least recently used objects in the same transaction. Reads run in worker
threads and copy out of the map. What is there, how large, and when it was last used is in memory
(`recency.py`). LMDB is told not to wait for the disk: a killed process loses nothing committed, and
after a power loss the store starts cold (`lmdb_folder.py`).
"""

from __future__ import annotations

import struct
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import lmdb
import trio

from ..errors import ConfigError, TierUnavailable
from .keys import KEY_BYTES
from .lmdb_folder import FORMAT, FORMAT_KEY, OBJECTS, RECORDS, Folder, missing_bytes
from .lmdb_writer import Job, Writer
from .recency import LARGEST_OBJECT, Pages, Recency
from .store import StoreSetAside, StoreStatistics
from .store_check import inspect

_MIN_BYTES = 1 << 20
_READ_KEYS = 1024
_READ_BYTES = 32 << 20
_READERS = 4


class LmdbStore:
    """A `Store` in a folder of this machine. Made by `open`, let go of by `aclose`.

    `max_bytes` bounds what its objects take on disk, whole pages counted. The file itself can be
    larger by the pages that recent writes replaced and by fragments; it does not shrink.
    """

    def __init__(self, folder: Folder, env: lmdb.Environment, max_bytes: int) -> None:
        self._folder = folder
        self._env = env
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._pages = Pages(env.stat()["psize"])
        self._recency = Recency(self._pages)
        with env.begin(write=True) as txn:
            self._objects = env.open_db(OBJECTS, txn=txn)
            self._records = env.open_db(RECORDS, txn=txn)
            txn.put(FORMAT_KEY, FORMAT)
        self._writer = Writer(
            env, (self._objects, self._records), self._recency, self._lock, max_bytes
        )
        self._limiter = trio.CapacityLimiter(_READERS)
        self._reading = 0
        self._refused = 0
        self._idle = threading.Condition(self._lock)
        self._closed = False

    @classmethod
    async def open(cls, path: str | Path, max_bytes: int) -> Self:
        """Open or make the store in folder `path`; what it holds above `max_bytes` is dropped.

        Data that cannot be trusted (see `lmdb_folder.py`) is set aside with a `StoreSetAside`
        warning, and the store starts empty. Raises `ConfigError` where the path or its data is no
        store of ours or another process has it open, `TierUnavailable` where the file system fails.
        Not cancellable once begun.
        """
        if max_bytes < _MIN_BYTES:
            raise ConfigError(f"a store needs max_bytes >= {_MIN_BYTES}, not {max_bytes}")
        return await trio.to_thread.run_sync(cls._open, Path(path), max_bytes)

    @classmethod
    def _open(cls, path: Path, max_bytes: int) -> Self:
        folder = Folder(path)
        try:
            reason = _distrust(folder)
            if reason:
                _set_aside(folder, reason)
            folder.mark()
            return cls._load(folder, max_bytes)
        except lmdb.Error as error:
            folder.release(clean=False)
            raise TierUnavailable(f"store {path}: {error}") from error
        except BaseException:
            folder.release(clean=False)
            raise

    @classmethod
    def _load(cls, folder: Folder, max_bytes: int) -> Self:
        store = cls(folder, _open_env(folder, max_bytes), max_bytes)
        try:
            whole = store._recall()
        except BaseException:
            store._env.close()
            raise
        if not whole:
            store._env.close()
            _set_aside(folder, "its list of objects does not match its objects")
            folder.mark()
            store = cls(folder, _open_env(folder, max_bytes), max_bytes)
        try:
            store._writer.start()
        except BaseException:
            store._env.close()
            raise
        return store

    def _recall(self) -> bool:
        """Load what is there; False where the records do not explain the objects."""
        try:
            with self._env.begin() as txn:
                logged = 0
                for _, record in txn.cursor(db=self._records):
                    self._recency.replay((record,))
                    logged += len(record)
                entries = txn.stat(self._objects)["entries"]
        except struct.error:
            return False
        self._writer.logged = logged
        return entries == len(self._recency)

    def __repr__(self) -> str:
        held = f"{len(self._recency)} objects, {self._recency.total}/{self._max_bytes} bytes"
        return f"<LmdbStore {self._folder.path} {'closed' if self._closed else held}>"

    # -- verbs ----------------------------------------------------------------------------------

    async def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """See `Store`. Answered from memory. A checkpoint."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        return [key in self._recency for key in keys]

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `Store`. A checkpoint; a cancelled call leaves at most one slice of reads running."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        found: list[bytes | None] = []
        for part in self._read_slices(keys):
            found += await trio.to_thread.run_sync(
                self._read, part, abandon_on_cancel=True, limiter=self._limiter
            )
        return found

    async def put(self, items: Sequence[tuple[bytes, bytes]]) -> list[bool]:
        """See `Store`. A checkpoint; True once committed.

        Refused is an object that is larger than the store. Raises `ConfigError` for a key that is
        not 32 bytes. Cancelled, what the writer has not begun is withdrawn.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        for key, _ in items:
            if len(key) != KEY_BYTES:
                raise ConfigError(f"a store's keys have {KEY_BYTES} bytes, not {len(key)}")
        costs = [self._pages.cost(len(data)) for _, data in items]
        fitting = [
            index
            for index, (_, data) in enumerate(items)
            if costs[index] <= self._max_bytes and len(data) <= LARGEST_OBJECT
        ]
        kept = [False] * len(items)
        for part in _parts(fitting, costs, self._writer.group_cost):
            puts = [items[index] for index in part]
            job = Job(puts=puts, cost=sum(costs[index] for index in part))
            for index, result in zip(part, await self._write(job), strict=True):
                kept[index] = result
        self._refused += kept.count(False)
        return kept

    async def delete(self, keys: Sequence[bytes]) -> list[bool]:
        """See `Store`. A checkpoint; cancelled, what the writer has not begun is withdrawn."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        return await self._write(Job(deletes=list(keys)))

    async def aclose(self) -> None:
        """See `Store`. Writes what waits, syncs to disk and lets another process have the folder.

        Not cancellable; a second call does nothing.
        """
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        await trio.to_thread.run_sync(self._close)

    def statistics(self) -> StoreStatistics:
        """See `Store`; `bytes` are those on disk, whole pages counted."""
        return StoreStatistics(
            objects=len(self._recency),
            bytes=self._recency.total,
            max_bytes=self._max_bytes,
            evicted_objects=self._writer.evicted,
            refused_objects=self._refused,
        )

    # -- in threads -----------------------------------------------------------------------------

    def _read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            # an abandoned read may come this late: the map must not be closed under it
            if self._closed:
                raise TierUnavailable(f"store {self._folder.path} is closed")
            self._reading += 1
        try:
            with self._env.begin(db=self._objects) as txn:
                found = [txn.get(key) if key in self._recency else None for key in keys]
        except lmdb.Error as error:
            raise TierUnavailable(f"store {self._folder.path}: {error}") from error
        finally:
            with self._lock:
                self._reading -= 1
                self._idle.notify_all()
        with self._lock:
            self._recency.touch(
                key for key, data in zip(keys, found, strict=True) if data is not None
            )
        return found

    def _close(self) -> None:
        failure = self._writer.stop()
        with self._lock:
            self._idle.wait_for(lambda: not self._reading)
        self._env.close()
        self._folder.release(clean=failure is None)
        if failure is not None:
            raise TierUnavailable(f"store {self._folder.path}: {failure}") from failure

    # -- helpers --------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise TierUnavailable(f"store {self._folder.path} is closed")

    def _read_slices(self, keys: Sequence[bytes]) -> list[list[bytes]]:
        slices: list[list[bytes]] = []
        size = _READ_BYTES
        for key in keys:
            if size >= _READ_BYTES or len(slices[-1]) >= _READ_KEYS:
                slices.append([])
                size = 0
            slices[-1].append(key)
            size += self._recency.length(key) or 0
        return slices

    async def _write(self, job: Job) -> list[bool]:
        self._check_open()
        self._writer.submit(job)
        try:
            await job.done.wait()
        except trio.Cancelled:
            job.withdrawn = True
            raise
        if job.error is not None:
            raise TierUnavailable(f"store {self._folder.path}: {job.error}") from job.error
        return job.results


def _parts(indexes: Sequence[int], costs: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Cut `indexes` so that each part costs at most `limit`, or is a single one."""
    part: list[int] = []
    cost = 0
    for index in indexes:
        if part and cost + costs[index] > limit:
            yield part
            part, cost = [], 0
        part.append(index)
        cost += costs[index]
    if part:
        yield part


def _distrust(folder: Folder) -> str:
    """Say why the data must be set aside before anything is mapped; "" where it may be."""
    if not folder.data.exists():
        return ""
    if folder.outlived_boot():
        return "the machine went down while it was written"
    missing = missing_bytes(folder.data)
    if missing:
        report = inspect(folder.path)
        if not report.readable:
            return f"it is {missing} bytes shorter than it must be ({report.problem})"
    return ""


def _set_aside(folder: Folder, reason: str) -> None:
    aside = folder.set_aside()
    warnings.warn(
        f"store {folder.path} was set aside as {aside.name}, because {reason}; it starts empty. "
        f"Delete that file when it is of no use to you.",
        StoreSetAside,
        stacklevel=2,
    )


def _open_env(folder: Folder, max_bytes: int) -> lmdb.Environment:
    """Map the data: at most `max_bytes` of it live, so that free pages are always to be found."""
    fresh = not folder.data.exists()
    held = 0 if fresh else folder.data.stat().st_size
    try:
        env = lmdb.open(
            str(folder.path),
            map_size=2 * max(max_bytes, held) + (256 << 20),
            max_dbs=2,
            sync=False,
            metasync=False,
            readahead=False,
            max_spare_txns=_READERS,
        )
        env.reader_check()
        if not fresh:
            with env.begin() as txn:
                form = txn.get(FORMAT_KEY)
                known = form == FORMAT or (form is None and not txn.stat()["entries"])
            if not known:
                env.close()
                raise ConfigError(
                    f"{folder.path} holds LMDB data that is no banyankv store of format "
                    f"{FORMAT.decode()}; give the store a folder of its own"
                )
    except (lmdb.InvalidError, lmdb.VersionMismatchError) as error:
        raise ConfigError(f"{folder.data} is not LMDB data that we can read: {error}") from error
    except (lmdb.Error, OSError) as error:
        raise TierUnavailable(f"store {folder.path}: {error}") from error
    return env
