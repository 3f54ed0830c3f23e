"""The multi-turn workload: sessions of several turns, and the order in which their turns come.

Deterministic, and token for token what the peers' harnesses run: `peers.py` compares them.
"""

from __future__ import annotations

import random

import numpy as np

SESSIONS = 200
TURNS = 10
NEW_TOKENS = 1024
"""New tokens of a turn."""

VOCABULARY = 128_000
OPEN_SESSIONS = 50
"""Sessions open at once in a rolling order."""

POOL_SHARE = 0.3
"""The pool, as a share of the working set."""

_ORDER_SEED = 1234
_TOKEN_SEED = 99


def pool_tokens(sessions: int = SESSIONS, turns: int = TURNS) -> int:
    """Return the room for tokens: a multiple of 64, so that it is whole pages of every size."""
    return int(sessions * turns * NEW_TOKENS * POOL_SHARE) // 64 * 64


def pool_states(sessions: int = SESSIONS, turns: int = TURNS) -> int:
    """Return the room for states, of which each turn leaves one at its end."""
    return int(sessions * turns * POOL_SHARE)


def turn_order(kind: str, sessions: int = SESSIONS, turns: int = TURNS) -> list[int]:
    """Return which session each turn belongs to.

    `uniform`: any unfinished session; `rolling`: a limited number is open, and where one ends the
    next opens.
    """
    source = random.Random(_ORDER_SEED)
    waiting = iter(range(sessions if kind == "uniform" else min(OPEN_SESSIONS, sessions), sessions))
    live = list(range(sessions if kind == "uniform" else min(OPEN_SESSIONS, sessions)))
    left = [turns] * sessions
    order: list[int] = []
    while live:
        place = source.randrange(len(live))
        session = live[place]
        order.append(session)
        left[session] -= 1
        if not left[session]:
            follower = next(waiting, None)
            if follower is None:
                last = live.pop()
                if place < len(live):
                    live[place] = last
            else:
                live[place] = follower
    return order


def session_tokens(sessions: int = SESSIONS, turns: int = TURNS) -> list[bytes]:
    """Return all tokens of each session, packed."""
    source = random.Random(_TOKEN_SEED)
    return [random_tokens(source, turns * NEW_TOKENS) for _ in range(sessions)]


def random_tokens(source: random.Random, count: int) -> bytes:
    """Return `count` tokens that no other call returns, packed."""
    numbers = np.random.default_rng(source.getrandbits(63))
    return numbers.integers(0, VOCABULARY, count, dtype=np.int64).astype("<u4").tobytes()
