"""Eviction policies: which unlocked payload goes first.

A policy turns a record into a key; the smallest key goes first. The index re-reads keys lazily, when
an entry comes up, so a key may rise after it was queued (all of these only rise) but not fall.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from ..errors import ConfigError
from .records import Record


class EvictionView(msgspec.Struct, frozen=True, gc=False):
    """What a policy of one's own sees: uses on the cache's logical clock, and the node's extent."""

    last_used: int
    previously_used: int
    born: int
    hits: int
    priority: int
    start: int
    end: int


Policy = Callable[[EvictionView], Any]
"""A policy of one's own: any ordered key, smallest first; it may rise over time but never fall."""

Key = Callable[[Record], Any]

_PROTECTED_HITS = 2

_KEYS: dict[str, Key] = {
    "lru": attrgetter("stamp"),
    "lru_k": attrgetter("previous", "stamp"),  # LRU-2 (O'Neil et al., SIGMOD 1993)
    "lfu": attrgetter("hits", "stamp"),
    "slru": lambda r: (r.hits >= _PROTECTED_HITS, r.stamp),  # segmented LRU (Karedla et al., 1994)
    "fifo": attrgetter("born"),
    "priority": attrgetter("priority", "stamp"),
}

POLICIES = tuple(_KEYS)
"""The names of the policies that come with the library."""


def eviction_key(policy: str | Policy) -> Key:
    """Return the key function of a policy, by name or from a callable. Raises ConfigError."""
    if callable(policy):
        return lambda r: policy(
            EvictionView(r.stamp, r.previous, r.born, r.hits, r.priority, r.start, r.end)
        )
    if not isinstance(policy, str) or policy not in _KEYS:
        raise ConfigError(f"policy {policy!r} is not one of {', '.join(POLICIES)} or a callable")
    return _KEYS[policy]
