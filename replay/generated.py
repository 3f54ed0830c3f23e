"""Workloads made from a seed, for runs that need no file.

`generated:KIND:NAME=VALUE,...`; token ids are random, so only what is meant to be shared is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

MAX_REQUESTS = 1_000_000
"""Requests of a generated workload: its order is made at once."""

MAX_PROMPT = 1 << 24
"""Tokens of the longest prompt of a generated workload."""

_KEPT = 32
"""Streams that are kept: making one anew takes microseconds a thousand tokens."""

_DIGITS = 15

Tokens = NDArray[np.uint32]
Generated = tuple[Sequence[str | None], Sequence[int], Callable[[int], Tokens]]
"""Sessions and prompt lengths, one each a request, and what makes request i's token ids."""


class MultiTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conversations: each prompt is the one before plus `new` tokens; any open one goes next."""

    sessions: int = 20
    turns: int = 10
    new: int = 1024
    seed: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """Count the requests, and the tokens of the longest prompt."""
        return self.sessions * self.turns, self.turns * self.new

    def generate(self) -> Generated:
        """Give each session one stream, of which its prompts are ever longer prefixes."""
        order = _random(self.seed).permutation(np.repeat(np.arange(self.sessions), self.turns))
        # The k-th time that a session occurs in the order is its turn k.
        turn = np.empty(len(order), np.int64)
        turn[np.argsort(order, kind="stable")] = np.tile(
            np.arange(1, self.turns + 1), self.sessions
        )
        stream = _streams(self.seed, self.turns * self.new)

        def tokens(i: int) -> Tokens:
            return stream(int(order[i]))[: turn[i] * self.new]

        return [f"session-{s}" for s in order], (turn * self.new).tolist(), tokens


class SharedPrompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Unrelated questions, `new` tokens each, behind one of a few long prompts."""

    requests: int = 500
    prompts: int = 4
    prompt: int = 2048
    new: int = 256
    seed: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """Count the requests, and the tokens of the longest prompt."""
        return self.requests, self.prompt + self.new

    def generate(self) -> Generated:
        """Draw a prompt for each request."""
        head = _streams(self.seed, self.prompt)
        choice = _random(self.seed).integers(self.prompts, size=self.requests)

        def tokens(i: int) -> Tokens:
            return np.concatenate([head(2**32 + int(choice[i])), _stream(self.seed, i, self.new)])

        return [None] * self.requests, [self.prompt + self.new] * self.requests, tokens


class Scattered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prompts of `length` tokens that share nothing: what a cache costs where it cannot help."""

    requests: int = 500
    length: int = 2048
    seed: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """Count the requests, and the tokens of the longest prompt."""
        return self.requests, self.length

    def generate(self) -> Generated:
        """Draw every prompt anew."""

        def tokens(i: int) -> Tokens:
            return _stream(self.seed, i, self.length)

        return [None] * self.requests, [self.length] * self.requests, tokens


GENERATED: dict[str, type[MultiTurn | SharedPrompt | Scattered]] = {
    "multi-turn": MultiTurn,
    "shared-prompt": SharedPrompt,
    "scattered": Scattered,
}


def generate(name: str, limit: int | None) -> Generated:
    """Make the workload `generated:KIND[:NAME=VALUE,...]`, its first `limit` requests.

    The same name gives the same tokens. Raises `ConfigError` for an unknown kind or parameter.
    """
    _, kind, *rest = name.split(":", 2)
    if kind not in GENERATED:
        raise ConfigError(f"{name}: no such kind of workload; there are {', '.join(GENERATED)}")
    given: dict[str, int] = {}
    for pair in rest[0].split(",") if rest else ():
        key, equals, value = pair.partition("=")
        if not equals or not value.isdecimal() or len(value) > _DIGITS or key in given:
            raise ConfigError(
                f"{name}: write parameters as NAME=NUMBER, each once and with digits only: {pair!r}"
            )
        if key != "seed" and int(value) < 1:
            raise ConfigError(f"{name}: {key} must be at least 1")
        given[key] = int(value)
    try:
        made = msgspec.convert(given, GENERATED[kind])
    except msgspec.ValidationError:
        known = ", ".join(GENERATED[kind].__struct_fields__)
        raise ConfigError(f"{name}: unknown parameter; there are {known}") from None
    requests, longest = made.size
    if requests > MAX_REQUESTS or longest > MAX_PROMPT:
        raise ConfigError(
            f"{name}: {requests:,} requests of up to {longest:,} tokens: generate at most "
            f"{MAX_REQUESTS:,} of up to {MAX_PROMPT:,}"
        )
    sessions, lengths, tokens = made.generate()
    return sessions[:limit], lengths[:limit], tokens


def _random(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _stream(seed: int, number: int, length: int) -> Tokens:
    return _random(seed, number).integers(0, 2**32, size=length, dtype=np.uint32)


def _streams(seed: int, length: int) -> Callable[[int], Tokens]:
    """Give streams by number; a few are kept, so that memory does not grow with the workload."""

    @functools.lru_cache(_KEPT)
    def stream(number: int) -> Tokens:
        return _stream(seed, number, length)

    return stream
