"""Check the pages of an LMDB file before LMDB maps it, so that following them cannot kill.

LMDB trusts its file: page numbers, offsets and lengths in it are followed as they stand, and one
flipped bit makes a reader leave the map, or a writer overwrite what is in use. So every page from
which LMDB would read one of them is looked at first, with plain reads: both meta pages, all pages
of all trees, the head of every run of overflow pages, and the list of free pages. Each page must be
what the pages above it say, in the file, and there for one purpose. The bytes of objects are not
looked at: objects have a checksum of their own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import numpy as np

from ...errors import ConfigError
from .lmdb_folder import FORMAT, FORMAT_KEY, OBJECTS, RECORDS

_MAGIC = 0xBEEFC0DE
_VERSION = 1
# page header: number, padding, flags, then where the pointers end and where the nodes begin
_PAGE = Struct("<Q2xHHH")
# the same of a run of overflow pages: number, padding, flags, pages in the run
_RUN = Struct("<Q2xHI")
# what a node has before its key: size of its data (or the lower part of a page number), flags (the
# upper part), size of its key
_NODE = Struct("<IHH")
# a tree: padding (the page size, in that of free pages), flags, depth, pages of three kinds, entries,
# root
_TREE = Struct("<IHHQQQQQ")
# a meta page: header; magic, version, address, map size; two trees; last page, transaction
_META = Struct(f"<16xII8x8x{_TREE.size}s{_TREE.size}sQQ")
_POINTER = Struct("<H")
_HEADER = 16
_PAGE_SIZES = tuple(1 << n for n in range(9, 17))
_IS_BRANCH, _IS_LEAF, _IS_RUN, _IS_META = 1, 2, 4, 8
_IN_A_RUN, _IS_TREE = 1, 2
_KINDS = frozenset((0, _IN_A_RUN, _IS_TREE))
_INTEGER_KEYS = 8
_NO_ROOT = (1 << 64) - 1
_NUMBER_BYTES = 8
_LEAST_CHILDREN = 2
_DEEPEST = 32
_LONGEST_KEY = 511


class Damaged(Exception):
    """The file contradicts itself; the message says where."""


class _Tree(NamedTuple):
    page_bytes: int
    flags: int
    depth: int
    branches: int
    leaves: int
    in_runs: int
    entries: int
    root: int


class _Meta(NamedTuple):
    magic: int
    version: int
    free: _Tree
    main: _Tree
    last: int
    transaction: int

    @property
    def known(self) -> bool:
        """Whether this is a meta page of the format that we read."""
        return (self.magic, self.version) == (_MAGIC, _VERSION)


class _Entry(NamedTuple):
    """One entry of a tree, with its data where they lie in the node, else the run that has them."""

    key: bytes
    kind: int
    data: bytes
    size: int
    run: int


def check_pages(file: int, name: Path) -> None:
    """Check every page of a store's data that LMDB would follow; nobody may be writing to it.

    `file` is open for reading, `name` is what it is called. Raises `Damaged`, and `ConfigError` for a
    file that was never a store's.
    """
    entries = _Pages(file, name).check()
    if not entries:
        return  # who made it was killed before the first transaction
    # one flipped bit leaves at least two of our three names
    if FORMAT_KEY not in entries and not {OBJECTS, RECORDS} <= entries.keys():
        raise ConfigError(
            f"{name} holds LMDB data that is no banyankv store; give the store a folder of its own"
        )
    for tree in (OBJECTS, RECORDS):
        if tree not in entries or entries[tree].kind != _IS_TREE:
            raise Damaged(f"it has no tree {tree.decode()!r}")
    if FORMAT_KEY not in entries or entries[FORMAT_KEY].data != FORMAT:
        raise Damaged(f"it does not say that its format is {FORMAT.decode()}")


def _page_size(file: int, name: Path) -> int:
    """Read the page size. Raises `ConfigError` where no meta page is one that we can read."""
    first = _meta(_read(file, _META.size, 0))
    if first.known:
        return first.free.page_bytes
    for size in _PAGE_SIZES:
        other = os.pread(file, _META.size, size)
        if len(other) == _META.size and _meta(other).known:
            raise Damaged("meta page 0 is not LMDB's")
    if first.magic != _MAGIC:
        raise ConfigError(f"{name} is not an LMDB file; give the store a folder of its own")
    raise ConfigError(
        f"{name} has LMDB's file format {first.version}, this build reads {_VERSION}; "
        f"give the store a folder of its own"
    )


class _Pages:
    """The pages of a file, of which each can be taken for one purpose."""

    def __init__(self, file: int, name: Path) -> None:
        self._file = file
        self._bytes = _page_size(file, name)
        if self._bytes not in _PAGE_SIZES:
            raise Damaged(f"it has pages of {self._bytes} bytes")
        self._taken = bytearray(os.fstat(file).st_size // self._bytes)
        metas = [_meta(self._take(number, 1, _IS_META)) for number in range(2)]
        if not metas[1].known or metas[1].free.page_bytes != self._bytes:
            raise Damaged("meta page 1 is not LMDB's")
        newer = int(metas[0].transaction < metas[1].transaction)
        self._meta = metas[newer]
        if self._meta.transaction % 2 != newer:
            raise Damaged(f"meta page {newer} has transaction {self._meta.transaction}")

    def check(self) -> dict[bytes, _Entry]:
        """Check all pages; return the entries of the main tree."""
        entries: dict[bytes, _Entry] = {}
        for entry in self._entries(self._meta.main, flags=0):
            if entry.kind == _IS_TREE:
                if entry.size != _TREE.size:
                    raise Damaged(f"tree {entry.key!r} has no description")
                for below in self._entries(_Tree(*_TREE.unpack(entry.data)), flags=0):
                    if below.kind == _IS_TREE:
                        raise Damaged(f"tree {entry.key!r} has a tree below it")
            entries[entry.key] = entry
        self._check_free_pages()
        return entries

    def _check_free_pages(self) -> None:
        lists = [np.zeros(0, dtype="<u8")]
        for entry in self._entries(self._meta.free, flags=_INTEGER_KEYS):
            transaction = int.from_bytes(entry.key, "little")
            data = entry.data
            if entry.kind == _IN_A_RUN:
                data = _read(self._file, entry.size, entry.run * self._bytes + _HEADER)
            numbers = np.frombuffer(data, dtype="<u8", count=len(data) // _NUMBER_BYTES)
            good = 0 < transaction <= self._meta.transaction and len(numbers) > 0
            if not good or int(numbers[0]) >= len(numbers):
                raise Damaged(f"the free pages of transaction {transaction} are no list")
            numbers = numbers[1 : int(numbers[0]) + 1]
            if bool((numbers[1:] >= numbers[:-1]).any()):
                raise Damaged(f"the free pages of transaction {transaction} are not in order")
            lists.append(numbers)
        free = np.sort(np.concatenate(lists))
        whole = len(self._taken)
        inside = free[: int(np.searchsorted(free, whole))]
        # LMDB may promise pages that it never wrote: all of them must be free
        unwritten = max(0, self._meta.last + 1 - whole)
        twice = bool((free[1:] == free[:-1]).any())
        if twice or len(free) - len(inside) != unwritten or self._meta.last < free.max(initial=1):
            raise Damaged("the list of free pages is not what the file has")
        if np.frombuffer(self._taken, dtype=np.uint8)[inside.astype(np.int64)].any():
            raise Damaged("pages that are in use are in the list of free pages")

    # -- trees ----------------------------------------------------------------------------------

    def _entries(self, tree: _Tree, *, flags: int) -> Iterator[_Entry]:
        """Walk a tree in the order of its keys and check all of its pages."""
        padding = self._bytes if flags else 0
        if (tree.page_bytes, tree.flags) != (padding, flags):
            raise Damaged(f"a tree has flags {tree.flags} and padding {tree.page_bytes}")
        if tree.root == _NO_ROOT:
            if tree.depth or tree.entries:
                raise Damaged("a tree without pages has entries")
            return
        if not 0 < tree.depth <= _DEEPEST:
            raise Damaged(f"a tree is {tree.depth} pages deep")
        walk = _Walk(integers=bool(flags))
        yield from self._below(tree.root, tree.depth, walk)
        if (walk.branches, walk.leaves, walk.in_runs, walk.entries) != tree[3:7]:
            raise Damaged("a tree has other pages than it says")

    def _below(self, number: int, depth: int, walk: _Walk) -> Iterator[_Entry]:
        page = self._take(number, 1, _IS_LEAF if depth == 1 else _IS_BRANCH)
        nodes = self._nodes(number, page, leaf=depth == 1)
        if depth == 1:
            walk.leaves += 1
            for at, low, kind, key_bytes in nodes:
                key = page[at : at + key_bytes]
                walk.pass_key(key, number)
                walk.entries += 1
                run = 0
                if kind == _IN_A_RUN:
                    run = int.from_bytes(
                        page[at + key_bytes : at + key_bytes + _NUMBER_BYTES], "little"
                    )
                    walk.in_runs += self._take_run(run, low)
                    yield _Entry(key, kind, b"", low, run)
                else:
                    yield _Entry(key, kind, page[at + key_bytes : at + key_bytes + low], low, 0)
            return
        walk.branches += 1
        if len(nodes) < _LEAST_CHILDREN:
            raise Damaged(f"branch page {number} has {len(nodes)} children")
        for index, (at, low, high, key_bytes) in enumerate(nodes):
            if index:
                walk.pass_separator(page[at : at + key_bytes], number)
            yield from self._below(low | high << 32, depth - 1, walk)

    def _nodes(self, number: int, page: bytes, *, leaf: bool) -> list[tuple[int, int, int, int]]:
        """List (where the key begins, size or lower part, flags or upper part, size of the key).

        Nodes fill the end of a page without gaps: in what order, the pointers say.
        """
        _, _, lower, upper = _PAGE.unpack_from(page)
        if lower % 2 or not _HEADER < lower <= upper <= self._bytes:
            raise Damaged(f"page {number} has no nodes")
        nodes: list[tuple[int, int, int, int]] = []
        spans: list[tuple[int, int]] = []
        for (at,) in _POINTER.iter_unpack(page[_HEADER:lower]):
            if at % 2 or at + _NODE.size > self._bytes:
                raise Damaged(f"page {number} has a node at {at}")
            low, kind, key_bytes = _NODE.unpack_from(page, at)
            size = _NODE.size + key_bytes
            if key_bytes > _LONGEST_KEY:
                raise Damaged(f"page {number} has a key of {key_bytes} bytes")
            if leaf:
                if kind not in _KINDS:
                    raise Damaged(f"page {number} has a node of kind {kind}")
                size += _NUMBER_BYTES if kind == _IN_A_RUN else low
            nodes.append((at + _NODE.size, low, kind, key_bytes))
            spans.append((at, size + size % 2))
        spans.sort()
        for at, size in spans:
            if at != upper:
                raise Damaged(f"page {number} has nodes that overlap, or leave room")
            upper += size
        if upper != self._bytes:
            raise Damaged(f"page {number} has nodes that do not end where it ends")
        return nodes

    # -- pages ----------------------------------------------------------------------------------

    def _take(self, number: int, count: int, kind: int) -> bytes:
        """Read a page that must be of this kind, and take it."""
        self._claim(number, count)
        page = _read(self._file, self._bytes, number * self._bytes)
        itself, flags = _PAGE.unpack_from(page)[:2]
        if itself != number or flags != kind:
            raise Damaged(f"page {number} has number {itself} and kind {flags}, not {kind}")
        return page

    def _take_run(self, number: int, size: int) -> int:
        """Take the run of pages that begins with `number` and must have room for `size` bytes."""
        if number >= len(self._taken):
            raise Damaged(f"page {number} is not in the file")
        head = _read(self._file, _HEADER, number * self._bytes)
        itself, flags, count = _RUN.unpack(head)
        if itself != number or flags != _IS_RUN or count * self._bytes < _HEADER + size:
            raise Damaged(f"page {number} does not begin a run for {size} bytes")
        self._claim(number, count)
        return int(count)

    def _claim(self, number: int, count: int) -> None:
        end = number + count
        if end > len(self._taken):
            raise Damaged(f"page {end - 1} is not in the file")
        if self._taken.find(1, number, end) >= 0:
            raise Damaged(f"page {number} is used twice")
        self._taken[number:end] = b"\1" * count


class _Walk:
    """What was met on the way through one tree; keys must ascend."""

    def __init__(self, *, integers: bool) -> None:
        self._integers = integers
        self._least = (b"", 0)
        self.branches = self.leaves = self.in_runs = self.entries = 0

    def pass_key(self, key: bytes, number: int) -> None:
        self._pass((self._comparable(key, number), 1), number)

    def pass_separator(self, key: bytes, number: int) -> None:
        """Note that what comes now is not below `key`, and what came before is."""
        self._pass((self._comparable(key, number), 0), number)

    def _pass(self, place: tuple[bytes, int], number: int) -> None:
        if place <= self._least:
            raise Damaged(f"page {number} has keys that are not in order")
        self._least = place

    def _comparable(self, key: bytes, number: int) -> bytes:
        if not self._integers:
            return key
        if len(key) != _NUMBER_BYTES:
            raise Damaged(f"page {number} has a key of {len(key)} bytes")
        return key[::-1]


def _read(file: int, size: int, at: int) -> bytes:
    """Read bytes that must be there; a sector that the disk cannot read is damage like any other."""
    try:
        data = os.pread(file, size, at)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise Damaged(f"the disk cannot read {size} bytes at {at}") from error
    if len(data) < size:
        raise Damaged(f"it ends within {size} bytes at {at}")
    return data


def _meta(page: bytes) -> _Meta:
    magic, version, free, main, last, transaction = _META.unpack_from(page)
    return _Meta(
        magic,
        version,
        _Tree(*_TREE.unpack(free)),
        _Tree(*_TREE.unpack(main)),
        last,
        transaction,
    )
