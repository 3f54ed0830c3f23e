"""Open an LMDB folder so that nothing in it can kill this process, and load what it holds."""

from __future__ import annotations

import struct
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import lmdb

from ...errors import ConfigError, TierUnavailable
from .check import inspect
from .lmdb_folder import FORMAT, FORMAT_KEY, OBJECTS, RECORDS, Folder, missing_bytes
from .protocol import StoreSetAside
from .recency import Pages, Recency

_HEAD_ROOM = 256 << 20


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
        """Unmap the data and let another process have the folder."""
        self.env.close()
        self.folder.release(clean)


def open_folder(path: Path, max_bytes: int, readers: int) -> Opened:
    """Claim, check, map and load the store in `path`, which is made where there is none.

    Data that cannot be trusted is set aside, with a `StoreSetAside` warning. Raises `ConfigError`
    and `TierUnavailable` as `LmdbStore.open` says.
    """
    with ExitStack() as undo:
        folder = Folder(path)
        undo.callback(folder.release, clean=False)
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


_CONTRADICTIONS = (_Unexplained, struct.error, lmdb.CorruptedError, lmdb.PageNotFoundError)


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


def _load(folder: Folder, max_bytes: int, readers: int) -> Opened:
    fresh = not folder.data.exists()
    # twice what may be live, so that free pages are always to be found; it is address space only
    held = 0 if fresh else folder.data.stat().st_size
    map_size = 2 * max(max_bytes, held) + _HEAD_ROOM
    try:
        with ExitStack() as undo:
            env = lmdb.open(
                str(folder.path),
                map_size=map_size,
                max_dbs=2,
                sync=False,
                metasync=False,
                readahead=False,
                max_spare_txns=readers,
            )
            undo.callback(env.close)
            env.reader_check()
            if not fresh:
                _check_format(folder, env)
            with env.begin(write=True) as txn:
                objects = env.open_db(OBJECTS, txn=txn)
                records = env.open_db(RECORDS, txn=txn)
                txn.put(FORMAT_KEY, FORMAT)
            pages = Pages(env.stat()["psize"])
            recency = Recency(pages)
            logged = _recall(env, objects, records, recency)
            undo.pop_all()
    except (lmdb.InvalidError, lmdb.VersionMismatchError) as error:
        raise ConfigError(f"{folder.data} is not LMDB data that we can read: {error}") from error
    except (lmdb.CorruptedError, lmdb.PageNotFoundError):
        raise
    except lmdb.Error as error:
        raise TierUnavailable(f"store {folder.path}: {error}") from error
    return Opened(folder, env, objects, records, pages, recency, logged)


def _check_format(folder: Folder, env: lmdb.Environment) -> None:
    with env.begin() as txn:
        form = txn.get(FORMAT_KEY)
        # empty: killed before the first transaction
        known = form == FORMAT or (form is None and not txn.stat()["entries"])
    if not known:
        raise ConfigError(
            f"{folder.path} holds LMDB data that is no banyankv store of format "
            f"{FORMAT.decode()}; give the store a folder of its own"
        )


def _recall(
    env: lmdb.Environment, objects: lmdb._Database, records: lmdb._Database, recency: Recency
) -> int:
    """Load the records; how many bytes they have. Raises `_Unexplained`, `struct.error`."""
    logged = 0
    with env.begin() as txn:
        for _, record in txn.cursor(db=records):
            recency.replay((record,))
            logged += len(record)
        entries = txn.stat(objects)["entries"]
    if entries != len(recency):
        raise _Unexplained(f"{entries} objects, and a list of {len(recency)}")
    return logged
