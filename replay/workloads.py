"""Workloads to replay: trace files of several formats, and ones that are generated from a seed.

A workload is read whole when it is opened, so that a broken line is reported before anything runs;
token ids, which are far larger than what they are made from, are built one request at a time.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .generated import GENERATED, generate

Tokens = NDArray[np.uint32]

BLOCK = 512
"""Tokens of one block of a Mooncake trace."""

MAX_BLOCKS = 2**32 // BLOCK
"""Block ids end below this: then every (block, offset) has a token id of its own."""

DIALOGUES_AT_ONCE = 8
"""tau-bench has no times: this many dialogues take turns, as a server would see them."""


MAX_LINE = 1 << 24
"""Bytes that a line of a trace may have: what one request is made from fits many times."""

MAX_BYTES = 1 << 28
"""Bytes that are read of a trace, decompressed; requests beyond them need a file of their own."""


class Turn(msgspec.Struct, frozen=True):
    """One request: its session, where the trace marks one, and its prompt's token ids."""

    session: str | None
    tokens: Tokens


@dataclasses.dataclass(frozen=True)
class Workload:
    """A sequence of requests in the order in which they arrive; iterate as often as you like.

    `lengths[i]` is the prompt length of request i in tokens, `build(i)` makes the request.
    """

    name: str
    lengths: Sequence[int]
    build: Callable[[int], Turn]

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[Turn]:
        return map(self.build, range(len(self.lengths)))


def open_workload(source: str, limit: int | None = None) -> Workload:
    """Open a trace file or a generated workload, its first `limit` requests.

    `source` is a path, or `generated:KIND` with parameters as in `generated:multi-turn:turns=5`.
    A file's format is told by its content: Mooncake, LMCache and MT-bench lines or a tau-bench
    array, each plain or gzipped. Raises `ConfigError`, for a broken line as "FILE:LINE: what".
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"the limit must be at least 1 request, not {limit}")
    if source.startswith("generated:"):
        sessions, lengths, tokens = generate(source, limit)
        return Workload(source, lengths, lambda i: Turn(sessions[i], tokens(i)))
    with _reading(source) as file:
        start = file.peek(4096)[:4096].lstrip()[:1]
        if start == b"[":
            workload = _tau_bench(source, file, limit)
        elif start == b"{":
            workload = _lines(source, file, limit)
        else:
            raise ConfigError(f"{source}:1: neither a JSON object a line nor a JSON array")
    if not len(workload):
        raise ConfigError(f"{source}: no requests in it")
    return workload


@contextmanager
def _reading(source: str) -> Generator[io.BufferedReader]:
    """Open a file, decompressing it where it is gzip; give errors of reading as `ConfigError`."""
    try:
        with Path(source).open("rb") as plain:
            if plain.peek(2)[:2] != b"\x1f\x8b":
                yield plain
                return
            with gzip.GzipFile(fileobj=plain) as unzipped:
                yield cast("io.BufferedReader", unzipped)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(f"{source}: not a whole gzip file: {error}") from None
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        kinds = ", ".join(f"generated:{kind}" for kind in GENERATED)
        what = getattr(error, "strerror", None) or error
        raise ConfigError(f"{source}: {what} (give a trace file or one of {kinds})") from None


def _numbered(source: str, file: io.BufferedReader) -> Iterator[tuple[int, bytes]]:
    """Give the lines that are not blank, with their numbers, as far as they are asked for."""
    total = 0
    for number in itertools.count(1):
        line = file.readline(MAX_LINE + 1)
        if not line:
            return
        if len(line) > MAX_LINE:
            raise ConfigError(
                f"{source}:{number}: a line of more than {MAX_LINE >> 20} MiB is no request: "
                "write one JSON object a line"
            )
        total += len(line)
        if total > MAX_BYTES:
            raise _too_large(f"{source}:{number}")
        if line.strip():
            yield number, line


def _too_large(where: str) -> ConfigError:
    return ConfigError(
        f"{where}: more than {MAX_BYTES >> 20} MiB of trace, decompressed: "
        "split the file, or give --limit to replay its first requests"
    )


# -- one JSON object a line ------------------------------------------------------------------------


class _Mooncake(msgspec.Struct):
    input_length: int
    hash_ids: list[int]


class _LMCache(msgspec.Struct):
    session_id: str
    input: str | None = None


class _MTBench(msgspec.Struct):
    question_id: int
    turns: list[str]


_FORMATS: dict[str, type[Any]] = {
    "hash_ids": _Mooncake,
    "session_id": _LMCache,
    "turns": _MTBench,
}


def _lines(source: str, file: io.BufferedReader, limit: int | None) -> Workload:
    lines = _numbered(source, file)
    number, first = next(lines)
    row = _decode(source, number, first, msgspec.json.Decoder(dict[str, Any]))
    kind = next((kind for key, kind in _FORMATS.items() if key in row), None)
    if kind is None:
        raise ConfigError(
            f"{source}:{number}: no known trace format: none of the fields "
            f"{', '.join(_FORMATS)} is there"
        )
    decoder = msgspec.json.Decoder(kind)
    rows = (
        (number, _decode(source, number, line, decoder))
        for number, line in itertools.chain([(number, first)], lines)
    )
    if kind is _Mooncake:
        return _mooncake(source, rows, limit)
    if kind is _LMCache:
        texts = ((row.session_id, (row.input or "").encode()) for _, row in rows)
        return _text(source, ((s, text, len(text)) for s, text in texts if text), limit)
    return _text(source, _mt_bench(rows), limit)


def _decode(source: str, number: int, line: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(line)
    except _BROKEN as error:
        raise ConfigError(f"{source}:{number}: {_say(error)}") from None


_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _say(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _mooncake(source: str, rows: Iterator[tuple[int, _Mooncake]], limit: int | None) -> Workload:
    lengths: list[int] = []
    blocks: list[Tokens] = []
    for number, row in itertools.islice(rows, limit):
        _check_blocks(f"{source}:{number}", row)
        lengths.append(row.input_length)
        blocks.append(np.array(row.hash_ids, np.uint32))
    return Workload(source, lengths, lambda i: Turn(None, expand(blocks[i], lengths[i])))


def _check_blocks(where: str, row: _Mooncake) -> None:
    if row.input_length < 1:
        raise ConfigError(f"{where}: input_length must be at least 1, not {row.input_length}")
    expected = -(-row.input_length // BLOCK)
    if len(row.hash_ids) != expected:
        raise ConfigError(
            f"{where}: {row.input_length} tokens are {expected} blocks of {BLOCK}, "
            f"but hash_ids has {len(row.hash_ids)}"
        )
    for block in (min(row.hash_ids), max(row.hash_ids)):
        if not 0 <= block < MAX_BLOCKS:
            raise ConfigError(f"{where}: hash id {block} is not within 0..{MAX_BLOCKS - 1}")


def expand(blocks: Tokens, length: int) -> Tokens:
    """Make the `length` token ids that a Mooncake request's block ids stand for.

    Token ids are a bijection of (block, offset), so two requests agree on a token exactly where
    they agree on the block; a scrambling one, so that nothing in them is regular.
    """
    offsets = np.arange(BLOCK, dtype=np.uint32)
    ids: Tokens = (blocks[:, None] * np.uint32(BLOCK) + offsets).reshape(-1)[:length]
    scratch = np.empty_like(ids)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        np.right_shift(ids, np.uint32(shift), out=scratch)
        np.bitwise_xor(ids, scratch, out=ids)
        np.multiply(ids, np.uint32(factor), out=ids)
    np.right_shift(ids, np.uint32(16), out=scratch)
    np.bitwise_xor(ids, scratch, out=ids)
    return ids


# -- text, by its UTF-8 bytes ----------------------------------------------------------------------

_Prompt = tuple[str, bytes, int]
"""(session, text, bytes of it that are the prompt): prompts of one dialogue share their text."""


def _text(source: str, prompts: Iterator[_Prompt], limit: int | None) -> Workload:
    taken = list(itertools.islice(prompts, limit))

    def build(i: int) -> Turn:
        session, text, length = taken[i]
        return Turn(session, np.frombuffer(text, np.uint8, length).astype(np.uint32))

    return Workload(source, [length for _, _, length in taken], build)


def _mt_bench(rows: Iterator[tuple[int, _MTBench]]) -> Iterator[_Prompt]:
    """Ask a question's turns one after the other (what was answered is unknown)."""
    for _, row in rows:
        text = bytearray()
        cuts: list[int] = []
        for turn in row.turns:
            text += _message("user", turn)
            cuts.append(len(text))
        whole = bytes(text)
        yield from ((str(row.question_id), whole, cut) for cut in cuts)


class _Message(msgspec.Struct):
    role: str
    content: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"")


class _Dialogue(msgspec.Struct):
    task_id: int
    trial: int
    traj: list[_Message]


def _message(role: str, content: str | None, calls: bytes = b"") -> bytes:
    return f"<{role}>\n{content or ''}\n".encode() + calls


def _tau_bench(source: str, file: io.BufferedReader, limit: int | None) -> Workload:
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _too_large(source)
    try:
        raws = msgspec.json.decode(data, type=list[msgspec.Raw])
    except _BROKEN as error:
        raise ConfigError(f"{source}:{_line_of(error, data)}: {_say(error)}") from None
    decoder = msgspec.json.Decoder(_Dialogue)
    dialogues: list[list[_Prompt]] = []
    position, number = 0, 1
    for raw in raws:
        row = bytes(raw)
        start = data.index(row, position)
        number += data.count(b"\n", position, start)
        dialogues.append(list(_calls(_decode(source, number, row, decoder))))
        number += row.count(b"\n")
        position = start + len(row)
    return _text(source, _take_turns(dialogues), limit)


def _line_of(error: Exception, data: bytes) -> int:
    """Find the line of an error of msgspec, which tells the byte where it knows it."""
    told = re.search(r"\(byte (\d+)\)", str(error))
    return data.count(b"\n", 0, int(told[1]) if told else len(data)) + 1


def _calls(dialogue: _Dialogue) -> Iterator[_Prompt]:
    """Give one prompt for each assistant message: everything before it."""
    cuts: list[int] = []
    text = bytearray()
    for message in dialogue.traj:
        if message.role == "assistant" and text:
            cuts.append(len(text))
        text += _message(message.role, message.content, bytes(message.tool_calls))
    whole = bytes(text)
    session = f"{dialogue.task_id}/{dialogue.trial}"
    return ((session, whole, cut) for cut in cuts)


def _take_turns(dialogues: list[list[_Prompt]]) -> Iterator[_Prompt]:
    """Interleave: each open dialogue makes one call a round, the next one opens when one ends."""
    waiting = iter(dialogues)
    running = [iter(d) for d in itertools.islice(waiting, DIALOGUES_AT_ONCE)]
    while running:
        going: list[Iterator[_Prompt]] = []
        for dialogue in running:
            prompt = next(dialogue, None)
            if prompt is not None:
                yield prompt
                going.append(dialogue)
            else:
                going.extend(iter(d) for d in itertools.islice(waiting, 1))
        running = going
