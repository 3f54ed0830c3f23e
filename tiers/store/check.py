"""Look into an L3 folder: what is there, for which models, and whether every byte of it is right.

Reading a damaged LMDB file can kill the process that reads it. Its pages are looked at first
(`lmdb_pages.py`), but not while a cache uses the store, so another process reads it in any case:
`python -m banyankv.tiers.store.check PATH` prints its report as JSON. That process writes nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import lmdb
import msgspec

from ...errors import ConfigError, TierUnavailable
from .files import Files, typed_errors
from .lmdb_folder import DATA, FORMAT, FORMAT_KEY, LOCK, OBJECTS, RECORDS, unclean
from .lmdb_open import LMDB_CONTRADICTIONS
from .lmdb_pages import Damaged, check_pages
from .objects import BadObject, decode

_LISTED = 100
_REFUSED = 3
_UNAVAILABLE = 4
_SLICE_OBJECTS = 1000
_SLICE_BYTES = 64 << 20


class BadEntry(msgspec.Struct, frozen=True):
    """One object that is not what it should be: its key in hexadecimal, and in what way."""

    key: str
    reason: str
    detail: str


class Content(msgspec.Struct, frozen=True):
    """The intact objects of one model (fingerprint in hexadecimal) and component."""

    model: str
    component: str
    objects: int
    bytes: int


class StoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder holds.

    `readable` is False where the data could not be read to its end; `problem` says why. `unclean`
    means that a process has the store open, or had and did not close it. `bad` lists the first
    `bad_objects` that are not intact, at most 100 of them. `oldest` and `newest` are when intact
    objects were written, seconds since 1970 (0 where there is none). `bytes` are those of intact
    objects, `file_bytes` those of the data file.
    """

    path: str
    readable: bool
    problem: str = ""
    unclean: bool = False
    file_bytes: int = 0
    objects: int = 0
    bytes: int = 0
    contents: tuple[Content, ...] = ()
    bad_objects: int = 0
    bad: tuple[BadEntry, ...] = ()
    oldest: int = 0
    newest: int = 0

    @property
    def sound(self) -> bool:
        """Whether everything in the store could be read and is intact."""
        return self.readable and not self.bad_objects


def inspect(path: str | Path, timeout: float = 3600.0) -> StoreReport:
    """Read and verify every object of the store in `path`; blocks, up to `timeout` seconds.

    Raises `ConfigError` where `path` holds no store of ours, and `TierUnavailable` where the
    process that reads could not be run. Damaged data is no error but the report.
    """
    path = Path(path)
    with typed_errors(path), _opened(path) as (files, data):
        damaged = StoreReport(
            path=str(path),
            readable=False,
            unclean=unclean(files),
            file_bytes=os.fstat(data).st_size,
        )
    command = [sys.executable, "-m", __name__, str(path)]
    # the child must find this package where this process found it
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        child = subprocess.run(  # noqa: S603 - our own interpreter and module
            command, env=environment, capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return msgspec.structs.replace(
            damaged, problem=f"reading it was not over after {timeout:g} seconds"
        )
    except OSError as error:
        raise TierUnavailable(f"store {path}: cannot start {command[0]}: {error}") from error
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        return msgspec.structs.replace(
            damaged, problem=f"reading it killed the process that tried, with {name}"
        )
    if child.returncode == _REFUSED:
        raise ConfigError(child.stdout.decode(errors="replace").strip())
    if child.returncode == _UNAVAILABLE:
        raise TierUnavailable(child.stdout.decode(errors="replace").strip())
    if child.returncode:
        raise TierUnavailable(
            f"store {path}: the process that reads it ended with code {child.returncode}: "
            f"{child.stderr.decode(errors='replace').strip()[-500:]}"
        )
    return msgspec.json.decode(child.stdout, type=StoreReport)


@contextmanager
def _opened(path: Path) -> Generator[tuple[Files, int]]:
    """Open the folder and its data file. Raises `ConfigError` where that is no store, and `OSError`."""
    try:
        files = Files(path)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{path} holds no store: it is no folder") from None
    with ExitStack() as undo:
        undo.callback(files.close)
        files.has(LOCK)  # refuses what is no file: LMDB would follow a link
        try:
            data = files.open(DATA, os.O_RDONLY)
        except FileNotFoundError:
            raise ConfigError(f"{path} holds no store: there is no {DATA} in it") from None
        undo.callback(os.close, data)
        yield files, data


class _Tally:
    """What was found so far."""

    def __init__(self) -> None:
        self.objects = 0
        self.bytes = 0
        self.groups: Counter[tuple[str, str]] = Counter()
        self.group_bytes: Counter[tuple[str, str]] = Counter()
        self.bad_objects = 0
        self.bad: list[BadEntry] = []
        self.oldest = self.newest = 0

    def count(self, key: bytes, data: memoryview) -> None:
        """Verify one object and count it."""
        self.objects += 1
        try:
            header, _ = decode(data)
        except BadObject as error:
            self.bad_objects += 1
            if len(self.bad) < _LISTED:
                self.bad.append(BadEntry(key.hex(), error.reason.value, str(error)))
            return
        group = (header.fingerprint.hex(), header.component)
        self.groups[group] += 1
        self.group_bytes[group] += len(data)
        self.bytes += len(data)
        self.oldest = min(self.oldest or header.written, header.written)
        self.newest = max(self.newest, header.written)

    def contents(self) -> tuple[Content, ...]:
        """Tell the intact objects by model and component, in order."""
        return tuple(
            Content(*group, self.groups[group], self.group_bytes[group])
            for group in sorted(self.groups)
        )


_GROWTH = 1 << 34
"""Bytes of address space for what a process that uses the store may add while it is read."""


def _walk(path: Path) -> StoreReport:
    """Read and verify everything, in this process, which it may kill.

    Raises `ConfigError` and `TierUnavailable`.
    """
    tally = _Tally()
    problem = ""
    with typed_errors(path), _opened(path) as (files, data):
        in_use = False
        try:
            in_use = _check_unless_in_use(files, data)
            with lmdb.open(
                str(path),
                map_size=2 * os.fstat(data).st_size + _GROWTH,
                mode=0o600,
                readonly=True,
                create=False,
                max_dbs=2,
                readahead=False,
            ) as env:
                _read(env, path, tally)
        except Damaged as error:
            problem = f"its pages contradict each other: {error}"
        except LMDB_CONTRADICTIONS as error:
            problem = f"LMDB says: {error}"
        except lmdb.Error as error:
            raise TierUnavailable(f"store {path}: {error}") from error
        size = os.fstat(data).st_size
    return StoreReport(
        path=str(path),
        readable=not problem,
        problem=problem,
        unclean=in_use,
        file_bytes=size,
        objects=tally.objects,
        bytes=tally.bytes,
        contents=tally.contents(),
        bad_objects=tally.bad_objects,
        bad=tuple(tally.bad),
        oldest=tally.oldest,
        newest=tally.newest,
    )


def _check_unless_in_use(files: Files, data: int) -> bool:
    """Check the pages of a store that no process uses; tell whether one does.

    Whoever writes meanwhile makes sound pages look damaged, also where a cache opens, or comes and
    goes, while they are read.
    """
    while not unclean(files):
        written = os.fstat(data).st_mtime_ns
        try:
            check_pages(data, files.path / DATA)
        except Damaged:
            if os.fstat(data).st_mtime_ns == written and not unclean(files):
                raise
        else:
            return False
    return True


def _read(env: lmdb.Environment, path: Path, tally: _Tally) -> None:
    with env.begin() as txn:
        if txn.get(FORMAT_KEY) != FORMAT:
            raise ConfigError(f"{path / DATA} is no banyankv store of format {FORMAT.decode()}")
    objects = env.open_db(OBJECTS, create=False)
    records = env.open_db(RECORDS, create=False)
    after: bytes | None = b""
    while after is not None:
        after = _slice(env, objects, after, tally)
    with env.begin() as txn:
        for _ in txn.cursor(db=records):
            pass  # to have read it is all


def _slice(
    env: lmdb.Environment, objects: lmdb._Database, after: bytes, tally: _Tally
) -> bytes | None:
    """Read objects from `after` on; where to go on, None at the end.

    In slices, because a reader keeps a writer from using the pages that it frees.
    """
    size = count = 0
    with env.begin(buffers=True) as txn, txn.cursor(db=objects) as cursor:
        if not cursor.set_range(after):
            return None
        for key, data in cursor:
            if count >= _SLICE_OBJECTS or size >= _SLICE_BYTES:
                return bytes(key)
            tally.count(bytes(key), data)
            count += 1
            size += len(data)
    return None


def main() -> int:
    """Print the report of the folder that is named on the command line, as JSON."""
    try:
        report = _walk(Path(sys.argv[1]))
    except (ConfigError, TierUnavailable) as error:
        sys.stdout.write(str(error))
        return _REFUSED if isinstance(error, ConfigError) else _UNAVAILABLE
    sys.stdout.buffer.write(msgspec.json.encode(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
