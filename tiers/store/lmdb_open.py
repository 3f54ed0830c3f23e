"""Open an LMDB folder so that nothing in it can kill this process, and load what it holds."""

from __future__ import annotations

import errno
import os
import struct
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import lmdb

from ...errors import TierUnavailable
from .files import FREE_ROOM, typed_errors
from .lmdb_folder import DATA, FORMAT, FORMAT_KEY, LOCK, OBJECTS, RECORDS, Folder
from .lmdb_pages import Damaged, check_pages
from .protocol import StoreSetAside
from .recency import RECORD_KEY_BYTES, Pages, Recency

_HEAD_ROOM = 256 << 20
# the last one is what LMDB says when a write was cut short, as it is where a disk gets full
_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)))


class Opened(NamedTuple):
    """A claimed folder and its mapped data; `logged` is how many bytes the records have."""

    folder: Folder
    env: lmdb.Environment
    objects: lmdb._Database
    records: lmdb._Database
    pages: Pages
    recency: Recency
    logged: int

    def close(self, clean: bool) -> None:
        """Unmap the data and let another process have the folder. Raises `TierUnavailable`."""
        try:
            self.env.close()
        finally:
            self.folder.release(clean)


def is_full(error: lmdb.Error) -> bool:
    """Tell whether a write failed because the disk, or what we may use of it, is full."""
    # the system's error is there as text alone
    return any(text in str(error) for text in _FULL)


def open_folder(path: Path, max_bytes: int, readers: int) -> Opened:
    """Claim, check, map and load the store in `path`, which is made where there is none.

    Data that cannot be trusted is set aside, with a `StoreSetAside` warning. Raises `ConfigError`
    and `TierUnavailable` as `LmdbStore.open` says.
    """
    with typed_errors(path), ExitStack() as undo:
        folder = Folder(path)
        undo.callback(folder.release, clean=False)
        if not folder.files.has(DATA):
            undo.callback(folder.files.remove, DATA)
        reason = _distrust(folder)
        opened = None
        if not reason:
            folder.mark()
            try:
                opened = _load(folder, max_bytes, readers)
            except _CONTRADICTIONS as error:
                reason = f"what it holds contradicts itself ({error})"
        if opened is None:
            _set_aside(folder, reason)
            folder.mark()
            opened = _load(folder, max_bytes, readers)
        undo.pop_all()
        return opened


class _Unexplained(Exception):
    """The records name other objects than there are."""


LMDB_CONTRADICTIONS = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.IncompatibleError,
    # its pages were checked: data of somebody else was refused by then
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
)
"""What LMDB raises where data contradict each other."""

_CONTRADICTIONS = (_Unexplained, struct.error, *LMDB_CONTRADICTIONS)


def _distrust(folder: Folder) -> str:
    """Say why the data must be set aside before anything is mapped; "" where it may be."""
    folder.files.has(LOCK)  # refuses what is no file: LMDB would follow a link
    outlived_boot = folder.outlived_boot()
    if not folder.files.has(DATA):
        return ""
    if outlived_boot:
        return "the machine went down while it was written"
    data = folder.files.open(DATA, os.O_RDONLY)
    try:
        if os.fstat(data).st_size:  # else killed, or out of room, before the first page
            check_pages(data, folder.data)
    except Damaged as error:
        return f"its pages contradict each other: {error}"
    finally:
        os.close(data)
    return ""


def _set_aside(folder: Folder, reason: str) -> None:
    aside = folder.set_aside()
    warnings.warn(
        f"store {folder.path} was set aside as {aside.name}, because {reason}; it starts empty. "
        f"Delete that file when it is of no use to you.",
        StoreSetAside,
        stacklevel=2,
    )


def _load(folder: Folder, max_bytes: int, readers: int) -> Opened:
    # twice what may be live, so that free pages are always to be found; it is address space only
    held = folder.data.stat().st_size if folder.files.has(DATA) else 0
    map_size = 2 * max(max_bytes, held) + _HEAD_ROOM
    try:
        with ExitStack() as undo:
            env = lmdb.open(
                str(folder.path),
                map_size=map_size,
                mode=0o600,
                max_dbs=2,
                sync=False,
                metasync=False,
                readahead=False,
                max_spare_txns=readers,
            )
            undo.callback(env.close)
            env.reader_check()
            with env.begin(write=True) as txn:
                objects = env.open_db(OBJECTS, txn=txn)
                records = env.open_db(RECORDS, txn=txn)
                txn.put(FORMAT_KEY, FORMAT)
            pages = Pages(env.stat()["psize"])
            recency = Recency(pages)
            logged = _recall(env, objects, records, recency)
            undo.pop_all()
    except LMDB_CONTRADICTIONS:
        raise
    except lmdb.Error as error:
        advice = FREE_ROOM if is_full(error) else ""
        raise TierUnavailable(f"store {folder.path}: {error}{advice}") from error
    return Opened(folder, env, objects, records, pages, recency, logged)


def _recall(
    env: lmdb.Environment, objects: lmdb._Database, records: lmdb._Database, recency: Recency
) -> int:
    """Load the records; how many bytes they have. Raises `_Unexplained`, `struct.error`."""
    logged = 0
    with env.begin() as txn:
        for key, record in txn.cursor(db=records):
            if len(key) != RECORD_KEY_BYTES or key[0]:
                raise _Unexplained(f"a record has the key {key.hex()}")  # none is behind that one
            recency.replay((record,))
            logged += len(record)
        entries = txn.stat(objects)["entries"]
    if entries != len(recency):
        raise _Unexplained(f"{entries} objects, and a list of {len(recency)}")
    return logged
