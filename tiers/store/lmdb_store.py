"""An embedded store of L3 objects: LMDB in a folder, bounded in bytes.

One thread writes: it takes everything that waits, up to a limit, into one transaction (group
commit), and drops the least recently used objects in the same transaction. Reads run in worker
threads and copy out of the map. What is there, how large, and when it was last used is in memory
(`recency.py`). LMDB is told not to wait for the disk: a killed process loses nothing committed, and
after a power loss the store starts cold (`lmdb_folder.py`).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import lmdb
import trio

from ...errors import ConfigError, TierUnavailable
from .keys import KEY_BYTES
from .lmdb_open import Opened, open_folder
from .lmdb_writer import Job, Writer
from .protocol import StoreNotKept, StoreStatistics
from .recency import LARGEST_OBJECT

_MIN_BYTES = 1 << 20
_READ_KEYS = 1024
_READ_BYTES = 32 << 20
_READERS = 4


class LmdbStore:
    """A `Store` in a folder of this machine. Made by `open`, let go of by `aclose`.

    `max_bytes` bounds what its objects take on disk, whole pages counted. The file itself can be
    larger by the pages that recent writes replaced and by fragments; it does not shrink.
    """

    def __init__(self, opened: Opened, max_bytes: int) -> None:
        self._opened = opened
        self._path = opened.folder.path
        self._max_bytes = max_bytes
        self._pages = opened.pages
        self._recency = opened.recency
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._writer = Writer(opened, self._lock, max_bytes)
        self._limiter = trio.CapacityLimiter(_READERS)
        self._reading = 0
        self._refused = 0
        self._closed = False

    @classmethod
    async def open(cls, path: str | Path, max_bytes: int) -> Self:
        """Open or make the store in folder `path`; what it holds above `max_bytes` is dropped.

        Data that cannot be trusted (see `lmdb_folder.py`) is set aside with a `StoreSetAside`
        warning, and the store starts empty. Raises `ConfigError` where the path or its data is no
        store of ours or another process has it open, `TierUnavailable` where the file system fails.
        Not cancellable once begun.
        """
        if not str(path):
            raise ConfigError("a store needs a folder of its own; its path must not be empty")
        if max_bytes < _MIN_BYTES:
            raise ConfigError(f"a store needs max_bytes >= {_MIN_BYTES}, not {max_bytes}")
        return await trio.to_thread.run_sync(cls._open, Path(path), max_bytes)

    @classmethod
    def _open(cls, path: Path, max_bytes: int) -> Self:
        opened = open_folder(path, max_bytes, _READERS)
        with ExitStack() as undo:
            undo.callback(opened.close, clean=False)
            try:
                store = cls(opened, max_bytes)
                store._writer.start()
            except lmdb.Error as error:
                raise TierUnavailable(f"store {path}: {error}") from error
            undo.pop_all()
        return store

    def __repr__(self) -> str:
        held = f"{len(self._recency)} objects, {self._recency.total}/{self._max_bytes} bytes"
        return f"<LmdbStore {self._path} {'closed' if self._closed else held}>"

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

        Warns with `StoreNotKept` where the disk did not take it all: whoever closes has no use for an
        error any more. Not cancellable; a second call does nothing.
        """
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        failure: Exception | None = None
        with trio.CancelScope(shield=True):
            failure = await trio.to_thread.run_sync(self._close)
        if failure is not None:
            warnings.warn(f"store {self._path}: {failure}", StoreNotKept, stacklevel=2)

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
                raise TierUnavailable(f"store {self._path} is closed")
            self._reading += 1
        try:
            with self._opened.env.begin(db=self._opened.objects) as txn:
                found = [txn.get(key) if key in self._recency else None for key in keys]
        except lmdb.Error as error:
            raise TierUnavailable(f"store {self._path}: {error}") from error
        finally:
            with self._lock:
                self._reading -= 1
                self._idle.notify_all()
        with self._lock:
            self._recency.touch(
                key for key, data in zip(keys, found, strict=True) if data is not None
            )
        return found

    def _close(self) -> Exception | None:
        failure = self._writer.stop()
        with self._lock:
            self._idle.wait_for(lambda: not self._reading)
        try:
            self._opened.close(clean=failure is None)
        except TierUnavailable as error:
            failure = failure or error
        return failure

    # -- helpers --------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise TierUnavailable(f"store {self._path} is closed")

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
            raise TierUnavailable(f"store {self._path}: {job.error}") from job.error
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
