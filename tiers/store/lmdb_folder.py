"""The folder of an LMDB store: who may write it, and whether its data may be mapped.

LMDB reads through a memory map. A page that the file does not have kills the reading process with
SIGBUS, and pages that a power loss left unwritten are read as whatever was there before. So, before
this process maps the data:

* one process owns the folder as writer: an advisory lock that dies with the process;
* a marker with the boot's id says that a writer is, or was, at work. Another boot's marker means
  that the machine went down under it. What had reached the disk is then unknown, the list of free
  pages included, which no reading proves: the data is set aside and the store starts cold;
* a file that is shorter than its own meta pages say is first read by another process, which may
  die of it.

A killed process (same boot) loses nothing: its committed pages are in the kernel's page cache.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from ...errors import ConfigError, TierUnavailable

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
_MAGIC = 0xBEEFC0DE
_FORMAT = 1
# a meta page: 16 bytes of page header; magic, format, address, map size; the first 32-bit word of
# the free-list's description is the page size; two descriptions of 48 bytes; last page, transaction
_META = struct.Struct("=16x II Q Q I 92x Q Q")


class Folder:
    """One store's folder, claimed by this process until `release`.

    Raises `ConfigError` where the path cannot be a store or another process has it, and
    `TierUnavailable` where the file system does not let us.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(f"store {path}: a store is a folder ({error})") from error
        except OSError as error:
            raise TierUnavailable(f"store {path}: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
            os.close(self._lock)
            raise ConfigError(
                f"store {path} is in use by process {owner or '?'}; close it there, or give this "
                f"cache a folder of its own"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    @property
    def data(self) -> Path:
        """The file with the objects."""
        return self.path / DATA

    def outlived_boot(self) -> bool:
        """Whether the machine went down while a writer was at work here."""
        try:
            boot = (self.path / _MARKER).read_text(encoding="ascii").partition("\n")[0]
        except FileNotFoundError:
            return False
        return not boot or boot != boot_id()

    def mark(self) -> None:
        """Say on disk that a writer is at work, before it is."""
        try:
            with (self.path / _MARKER).open("w", encoding="ascii") as marker:
                marker.write(f"{boot_id()}\n{os.getpid()}\n")
                marker.flush()
                os.fsync(marker.fileno())
            self._sync()
            # LMDB maps its lock file sparse and writes to it: on a full disk that is a SIGBUS too
            with (self.path / LOCK).open("ab") as lock:
                missing = _LOCK_BYTES - lock.tell()
                if missing > 0:
                    lock.write(bytes(missing))
        except OSError as error:
            raise TierUnavailable(f"store {self.path}: {error}") from error

    def set_aside(self) -> Path:
        """Move the data out of the way, in place of what was set aside before; say where to."""
        aside = self.path / ASIDE
        try:
            self.data.replace(aside)
            (self.path / LOCK).unlink(missing_ok=True)
            (self.path / _MARKER).unlink(missing_ok=True)
            self._sync()
        except OSError as error:
            raise TierUnavailable(f"store {self.path}: {error}") from error
        return aside

    def release(self, clean: bool) -> None:
        """Let another process have the folder; `clean` where all data is on the disk."""
        if clean:
            (self.path / _MARKER).unlink(missing_ok=True)
            self._sync()
        os.close(self._lock)

    def _sync(self) -> None:
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def boot_id() -> str:
    """Identify this run of the machine; "" where the system does not tell, which is no identity."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def unclean(path: Path) -> bool:
    """Whether a writer is at work in the folder, or was and did not close it."""
    return (path / _MARKER).exists()


def missing_bytes(data: Path) -> int:
    """Bytes by which the data file is shorter than its newer meta page says; 0 for a whole file.

    Reads without a map. Raises `ConfigError` for a file that is not LMDB's.
    """
    with data.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        first = file.read(_META.size)
        if len(first) < _META.size:
            return _META.size - size
        metas = [_META.unpack(first)]
        magic, kind, _, _, page_bytes, _, _ = metas[0]
        if magic != _MAGIC:
            raise ConfigError(f"{data} is not an LMDB file; give the store a folder of its own")
        if kind != _FORMAT:
            raise ConfigError(f"{data} has LMDB's file format {kind}, this build reads {_FORMAT}")
        file.seek(page_bytes)
        second = file.read(_META.size)
        if len(second) == _META.size:
            metas.append(_META.unpack(second))
    last_page: int = max(metas, key=lambda meta: meta[6])[5]
    whole: int = max(2, last_page + 1) * page_bytes
    return max(0, whole - size)
