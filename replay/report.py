"""What a replay found: its figures."""

from __future__ import annotations

import msgspec

from ..runtime.messages import HitTokens


class AcquireTimes(msgspec.Struct, frozen=True):
    """How long `acquire` took, in microseconds, its waits for room and for lower tiers included."""

    p50: float
    p99: float


class Checks(msgspec.Struct, frozen=True):
    """Pages and states that were compared byte by byte, and those of them that differed."""

    checked: int
    failed: int


class Sample(msgspec.Struct, frozen=True):
    """Where a replay stood after `requests` requests; `occupancy` is used / capacity by pool."""

    requests: int
    tokens: int
    hit_tokens: HitTokens
    occupancy: dict[str, float]


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one replay.

    `tokens` are those of all prompts, also of the `refused` requests (no room for them). `evicted`,
    `demoted` and `promoted` count pages of all components, a state as one. `nodes` were in the tree
    at the end; `node_ratio` is nodes per token of all prompts. `problem` is the first wrong page or
    broken invariant, empty where there was none.
    """

    workload: str
    model: str
    concurrency: int
    requests: int
    tokens: int
    hit_tokens: HitTokens
    hit_rate: float
    refused: int
    evicted: int
    demoted: int
    promoted: int
    moved_bytes: dict[str, int]
    seconds: float
    turns_per_second: float
    operations_per_second: float
    acquire_us: AcquireTimes
    nodes: int
    node_ratio: float
    fingerprints: Checks
    leaked_pages: int
    interrupted: bool
    problem: str

    @property
    def sound(self) -> bool:
        """Whether every byte was right, nothing leaked and all invariants held."""
        return not (self.fingerprints.failed or self.leaked_pages or self.problem)
