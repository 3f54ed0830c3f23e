"""The one thread that writes an LMDB store: group commits, the bound in bytes, a sync at times."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from operator import itemgetter

import lmdb
import trio

from ...errors import BanyanError, TierUnavailable
from .lmdb_folder import DATA
from .lmdb_open import Opened, is_full
from .recency import ENTRY_BYTES, RECORD_KEY_BYTES, pack_changes

_GROUP_BYTES = 64 << 20
_PIECE_BYTES = ENTRY_BYTES << 15
_SYNC_SECONDS = 30.0
_ROOM_TRIES = 8

_by_key = itemgetter(0)


class Job:
    """Objects to put or keys to delete, as one asker gave them; all of it in one transaction.

    After `done`, `results` has an answer for each, or `error` says why there is none. Set
    `withdrawn` when nobody waits any more: it is then not begun.
    """

    __slots__ = ("_token", "cost", "deletes", "done", "error", "puts", "results", "withdrawn")

    def __init__(
        self,
        puts: Sequence[tuple[bytes, bytes]] = (),
        deletes: Sequence[bytes] = (),
        cost: int = 0,
    ) -> None:
        self.puts = puts
        self.deletes = deletes
        self.cost = cost
        self.results: list[bool] = []
        self.error: Exception | None = None
        self.withdrawn = False
        self.done = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def finish(self) -> None:
        """Wake the asker, from the writer's thread."""
        # an asker whose event loop is over has no interest left
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.done.set)


class Writer:
    """Writes an opened folder in a thread of its own, from `start` to `stop`.

    Keeps the list of objects in step with what is committed, under `lock`. `evicted` counts them.
    """

    def __init__(self, opened: Opened, lock: threading.Lock, max_bytes: int) -> None:
        self._folder = opened.folder
        self._env = opened.env
        self._objects = opened.objects
        self._records = opened.records
        self._recency = opened.recency
        self._logged = opened.logged
        self._lock = lock
        self._max_bytes = max_bytes
        self.group_cost = min(_GROUP_BYTES, max_bytes // 4)
        self.evicted = 0
        self._jobs: deque[Job] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._synced = time.monotonic()
        self._dirty = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="banyankv-store-writer", daemon=True)

    def start(self) -> None:
        """Begin; drops what is above the bound first. Raises as `_transact` does."""
        self._transact(())
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job, in order. Never waits: who asks bounds what it asks for."""
        with self._wake:
            self._jobs.append(job)
            self._wake.notify()

    def stop(self) -> Exception | None:
        """Write what is queued, sync, and end the thread; the error that kept data off the disk."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()
        try:
            self._transact(())
        except (lmdb.Error, OSError, BanyanError) as error:
            self._failure = error
        self._sync()
        return self._failure

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            jobs, stopping = self._next()
            waiting = [job for job in jobs if not job.withdrawn]
            if waiting:
                self._commit(waiting)
            elif stopping and not jobs:
                return
            if self._dirty and time.monotonic() - self._synced >= _SYNC_SECONDS:
                self._sync()

    def _next(self) -> tuple[list[Job], bool]:
        """Wait for jobs, or until a sync is due; take as many as go into one transaction."""
        with self._wake:
            self._wake.wait_for(
                lambda: self._jobs or self._stopping, _SYNC_SECONDS if self._dirty else None
            )
            taken: list[Job] = []
            cost = 0
            while self._jobs and (not taken or cost + self._jobs[0].cost <= self.group_cost):
                cost += self._jobs[0].cost
                taken.append(self._jobs.popleft())
            return taken, self._stopping

    def _commit(self, jobs: Sequence[Job]) -> None:
        try:
            for _ in range(_ROOM_TRIES):
                try:
                    self._transact(jobs)
                    break
                except lmdb.MapFullError:
                    # free pages there are, but not enough in one place
                    self._make_room()
            else:
                _refuse(jobs)
        except Exception as error:  # noqa: BLE001 - whatever it is, the askers must not wait for ever
            if isinstance(error, lmdb.Error) and is_full(error):
                _refuse(jobs)  # no failure of the store: what it has can be read
            else:
                for job in jobs:
                    job.error = error
        for job in jobs:
            job.finish()

    def _transact(self, jobs: Sequence[Job]) -> None:
        """Do jobs, keep the bound and write a record, all in one transaction.

        Raises what LMDB raises, and `TierUnavailable` where there is no file any more.
        """
        if not self._folder.files.has(DATA):
            raise TierUnavailable("its data was removed while it was open; what it held is lost")
        objects = self._objects
        changes: dict[bytes, int | None] = {}
        results: list[list[bool]] = []
        with self._env.begin(write=True) as txn:
            for job in jobs:
                answers: list[bool] = []
                for key in job.deletes:
                    there = txn.delete(key, db=objects)
                    if there:
                        changes.pop(key, None)
                        changes[key] = None
                    answers.append(there)
                for key, data in job.puts:
                    changes.pop(key, None)
                    changes[key] = len(data)
                # neighbours in the tree one after the other; of equal keys the last stays last
                for key, data in sorted(job.puts, key=_by_key):
                    txn.put(key, data, db=objects)
                results.append(answers + [True] * len(job.puts))
            with self._lock:
                growth = self._recency.change(changes)
                victims = self._recency.victims(growth, self._max_bytes, changes)
            self._drop(txn, victims, changes)
            logged = self._record(txn, changes)
        self._committed(changes, logged, len(victims))
        for job, answers in zip(jobs, results, strict=True):
            job.results = answers

    def _make_room(self) -> None:
        """Drop old objects beyond need, twice: pages freed now serve from the next but one."""
        for _ in range(2):
            changes: dict[bytes, int | None] = {}
            with self._env.begin(write=True) as txn:
                with self._lock:
                    victims = self._recency.victims(
                        self._max_bytes // 32, self._recency.total, changes
                    )
                self._drop(txn, victims, changes)
                logged = self._record(txn, changes)
            self._committed(changes, logged, len(victims))

    def _committed(self, changes: dict[bytes, int | None], logged: int, evicted: int) -> None:
        """Take over what a transaction has done, once it is committed."""
        with self._lock:
            self._recency.apply(changes)
        self._logged = logged
        self.evicted += evicted
        self._dirty = self._dirty or bool(changes)

    def _drop(
        self, txn: lmdb.Transaction, victims: Sequence[bytes], changes: dict[bytes, int | None]
    ) -> None:
        for key in victims:
            txn.delete(key, db=self._objects)
            changes[key] = None

    def _record(self, txn: lmdb.Transaction, changes: dict[bytes, int | None]) -> int:
        """Write the uses since the last time and `changes`; say how long all records are now."""
        logged = self._logged
        with self._lock:
            snapshot = self._recency.snapshot() if self._recency.wants_snapshot(logged) else b""
            uses = self._recency.take_uses()
        if snapshot:
            txn.drop(self._records, delete=False)
            logged = 0
        # pieces, so that a long record needs no long run of free pages
        for record in (snapshot, uses + pack_changes(changes)):
            for offset in range(0, len(record), _PIECE_BYTES):
                self._append(txn, record[offset : offset + _PIECE_BYTES])
            logged += len(record)
        return logged

    def _append(self, txn: lmdb.Transaction, record: bytes) -> None:
        with txn.cursor(db=self._records) as cursor:
            last = int.from_bytes(cursor.key(), "big") if cursor.last() else 0
            cursor.put((last + 1).to_bytes(RECORD_KEY_BYTES, "big"), record, append=True)

    def _sync(self) -> None:
        try:
            self._env.sync(True)
        except lmdb.Error as error:
            self._failure = error
        self._synced = time.monotonic()
        self._dirty = False


def _refuse(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.results = [False] * (len(job.puts) + len(job.deletes))
