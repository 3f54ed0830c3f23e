"""The folder of an LMDB store: who may write it, and whether its data may be mapped.

* One process owns the folder as writer: an advisory lock that dies with the process. A child that
  it forks does not have the lock.
* A marker with the boot's id says that a writer is, or was, at work. Another boot's marker means
  that the machine went down under it. What had reached the disk is then unknown: the data is set
  aside and the store starts cold.
* What else may be wrong with the data is seen in its pages (`lmdb_pages.py`).

A killed process (same boot) loses nothing: its committed pages are in the kernel's page cache.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from contextlib import ExitStack
from pathlib import Path

from ...errors import ConfigError
from .files import Files, typed_errors

DATA = "data.mdb"
LOCK = "lock.mdb"
ASIDE = "set-aside.mdb"
FORMAT_KEY = b"banyankv-store"
FORMAT = b"1"
OBJECTS = b"objects"
RECORDS = b"recency"
_OWNER = "owner.lock"
_MARKER = "unclean"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_LOCK_BYTES = 16384


class Folder:
    """One store's folder, claimed by this process until `release`.

    Raises `ConfigError` where the path cannot be a store or another process has it, and
    `TierUnavailable` where the file system does not let us; nothing is kept then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with typed_errors(path), ExitStack() as undo:
            self.files = Files(path, make=True)
            undo.callback(self.files.close)
            self._lock = self.files.open(_OWNER, os.O_RDWR | os.O_CREAT)
            undo.callback(os.close, self._lock)
            self._take_lock()
            undo.pop_all()
        _claimed.add(self)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
            raise ConfigError(
                f"store {self.path} is in use by process {owner or '?'}; close it there, or give "
                f"this cache a folder of its own"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    @property
    def data(self) -> Path:
        """The file with the objects."""
        return self.path / DATA

    def outlived_boot(self) -> bool:
        """Tell whether the machine went down while a writer was at work here."""
        marker = self.files.read(_MARKER)
        if marker is None:
            return False
        boot = marker.partition(b"\n")[0]
        return not boot or boot != boot_id().encode()

    def mark(self) -> None:
        """Say on disk that a writer is at work, before it is."""
        self.files.write(_MARKER, f"{boot_id()}\n{os.getpid()}\n".encode())
        # LMDB maps its lock file sparse and writes to it: on a full disk that is a SIGBUS
        lock = self.files.open(LOCK, os.O_WRONLY | os.O_CREAT)
        try:
            os.posix_fallocate(lock, 0, _LOCK_BYTES)
        finally:
            os.close(lock)

    def set_aside(self) -> Path:
        """Move the data out of the way, in place of what was set aside before; say where to."""
        self.files.rename(DATA, ASIDE)
        self.files.remove(LOCK)
        self.files.remove(_MARKER)
        self.files.sync()
        return self.path / ASIDE

    def release(self, clean: bool) -> None:
        """Let another process have the folder; `clean` where all data is on the disk.

        Raises `TierUnavailable` where the disk does not take that; the folder is let go of then too.
        """
        if self._lock < 0:
            return
        try:
            if clean:
                with typed_errors(self.path):
                    self.files.remove(_MARKER)
                    self.files.sync()
        finally:
            # said, and not left to `close`: somebody else may have a copy of the descriptor
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """Let go of the files without a word to whoever else has them."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
            self.files.close()


_claimed: weakref.WeakSet[Folder] = weakref.WeakSet()


def _forget() -> None:
    # a forked child must not have its parent's lock
    for folder in list(_claimed):
        folder.forget()


os.register_at_fork(after_in_child=_forget)


def boot_id() -> str:
    """Identify this run of the machine; "" where the system does not tell, which is no identity."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def unclean(files: Files) -> bool:
    """Tell whether a writer is at work in the folder, or was and did not close it."""
    return files.has(_MARKER)
