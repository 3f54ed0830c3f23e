"""What a replay found: the figures, as one JSON object and as a table for people."""

from __future__ import annotations

import msgspec
from rich.table import Table

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

    def table(self) -> Table:
        """Lay the figures out for a terminal."""
        table = Table(title=f"{self.workload}, {self.model}", show_header=False)
        table.add_column(style="bold")
        table.add_column(justify="right")
        for row in self._rows():
            table.add_row(*row)
        return table

    def _rows(self) -> list[tuple[str, str]]:
        hit, moved = self.hit_tokens, self.moved_bytes
        return [
            ("requests", _count(self.requests)),
            ("  refused for lack of room", _count(self.refused)),
            ("tokens", _count(self.tokens)),
            ("hit tokens", _count(hit.total)),
            ("  from L1", _count(hit.l1)),
            ("  from L2", _count(hit.l2)),
            ("  from L3", _count(hit.l3)),
            ("hit rate", f"{self.hit_rate:.4f}"),
            ("pages evicted", _count(self.evicted)),
            ("pages demoted", _count(self.demoted)),
            ("pages promoted", _count(self.promoted)),
            *((f"bytes moved {_arrow(way)}", _count(moved[way])) for way in moved),
            ("seconds", f"{self.seconds:.2f}"),
            ("turns per second", f"{self.turns_per_second:,.1f}"),
            ("operations per second", f"{self.operations_per_second:,.1f}"),
            ("acquire P50", f"{self.acquire_us.p50:,.1f} µs"),
            ("acquire P99", f"{self.acquire_us.p99:,.1f} µs"),
            ("nodes", _count(self.nodes)),
            ("nodes / (sequences * length)", f"{self.node_ratio:.6f}"),
            ("fingerprints checked", _count(self.fingerprints.checked)),
            ("fingerprints failed", _count(self.fingerprints.failed)),
            ("leaked pages", _count(self.leaked_pages)),
        ]


def _count(value: int) -> str:
    return f"{value:,}"


def _arrow(way: str) -> str:
    source, _, target = way.partition("_")
    return f"{source.upper()} → {target.upper()}"
