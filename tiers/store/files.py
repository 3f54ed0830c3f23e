"""A store's folder and its files: no link is followed, nothing blocks, every failure has a type."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import ConfigError, TierUnavailable

_NO_FOLDER = {errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_RIGHT = {errno.EACCES, errno.EPERM, errno.EROFS}
_NEW = ".new"
_FEW = 256

FREE_ROOM = "; free room on that disk, or give the store another path"
"""What to do where a disk is full."""


@contextmanager
def typed_errors(path: Path) -> Generator[None]:
    """Turn what the file system raises about the store in `path` into an error that says what to do."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"store {str(path)!r}: this cannot be a path ({error})") from error
    except OSError as error:
        what = f"store {path}: {error}"
        if error.errno in _NO_FOLDER:
            raise ConfigError(f"{what}; a store is a folder of its own") from error
        if error.errno in _NO_ROOM:
            what += FREE_ROOM
        elif error.errno in _NO_RIGHT:
            what += "; let this process write there, or give the store another path"
        raise TierUnavailable(what) from error


class Files:
    """The files of the folder `path`, held open: what happens to the path later changes nothing.

    Files are regular ones. Those that we make are for this user alone, and so is a folder that
    `make` makes. Every method raises `ConfigError` where something else is in a file's place, and
    `OSError`, which `typed_errors` is for.
    """

    def __init__(self, path: Path, *, make: bool = False) -> None:
        self.path = path
        if make:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of the folder; idempotent."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def open(self, name: str, flags: int) -> int:
        """Open a file; give its descriptor."""
        # without O_NONBLOCK, opening a FIFO would wait for somebody at its other end
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = os.open(name, flags, 0o600, dir_fd=self._folder)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENXIO, errno.EISDIR}:
                raise self._irregular(name) from error
            raise
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise self._irregular(name)
        return file

    def has(self, name: str) -> bool:
        """Tell whether there is such a file."""
        try:
            mode = os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(mode):
            raise self._irregular(name)
        return True

    def read(self, name: str) -> bytes | None:
        """Read a file of a few bytes, 256 at most; None where there is none."""
        try:
            file = self.open(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return os.pread(file, _FEW, 0)
        finally:
            os.close(file)

    def write(self, name: str, data: bytes) -> None:
        """Make a file of a few bytes, in place of what has its name: whole and on disk, or not."""
        new = name + _NEW
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=self._folder)
        file = self.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            # a full disk may take a part of them
            if os.write(file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), new)
            os.fsync(file)
        finally:
            os.close(file)
        self.rename(new, name)

    def rename(self, name: str, to: str) -> None:
        """Give a file another name, in place of what has it; on disk on return."""
        os.replace(name, to, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self.sync()

    def remove(self, name: str) -> None:
        """Remove a file, if there is one; on disk after `sync`."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._folder)

    def sync(self) -> None:
        """Bring the folder's names to the disk."""
        os.fsync(self._folder)

    def _irregular(self, name: str) -> ConfigError:
        return ConfigError(
            f"store {self.path}: {name} is no regular file; remove it, or give the store another path"
        )
