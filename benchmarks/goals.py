"""What the benchmarks must show: each goal is the worst of the rows that speak of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from .results import Case, Goal, Row, describe

ALL = "FULL+SWA+MAMBA"
OURS = "acquire"


class Line(msgspec.Struct, frozen=True):
    """A goal: rows of `benchmark` with this `measure`, in cases that contain `where`."""

    text: str
    better: Literal["≥", "≤"]
    limit: float
    benchmark: str
    measure: str
    where: Case = {}
    unit: str = ""

    def judge(self, rows: Sequence[Row]) -> Goal:
        """Find the worst row and say whether it will do."""
        goal = f"{self.better} {self.limit:g}{self.unit and ' ' + self.unit}"
        found = [
            row
            for row in rows
            if row.benchmark == self.benchmark
            and row.measure == self.measure
            and self.where.items() <= row.case.items()
        ]
        if not found:
            return Goal(self.text, None, goal, None)
        least = self.better == "≥"
        worst = (min if least else max)(found, key=lambda row: row.figure.median)
        value = worst.figure.median
        met = value >= self.limit if least else value <= self.limit
        return Goal(self.text, value, goal, met, describe(worst.case))


LINES = (
    Line(
        "turns, all three components, page 16: turns/s ÷ SGLang Rust core",
        "≥", 8, "turns", "÷ SGLang Rust", {"model": ALL, "by": OURS},
    ),
    Line(
        "turns, FULL, page 16: turns/s ÷ SGLang Rust core",
        "≥", 3, "turns", "÷ SGLang Rust", {"model": "FULL", "by": OURS},
    ),
    Line(
        "turns, all three components: turns/s ÷ SGLang Python core",
        "≥", 14, "turns", "÷ SGLang Python", {"model": ALL, "by": OURS},
    ),
    Line(
        "turns, FULL: turns/s ÷ vLLM without hashing",
        "≥", 10, "turns", "÷ vLLM without hashing", {"model": "FULL", "by": OURS},
    ),
    *(
        Line(
            f"hits: acquire+release with page tables, {length // 1024}k: "
            "time ÷ SGLang Rust match+indices+lock+unlock",
            "≤", limit, "hits", "÷ SGLang Rust", {"hit": length},
        )
        for length, limit in ((4096, 0.8), (32_768, 0.5), (131_072, 0.5))
    ),
    Line(
        "evict one leaf: time at 100,000 leaves ÷ at 1,000",
        "≤", 1.5, "evict", "÷ fewest leaves",
    ),
    Line(
        "evict one leaf at 100,000 leaves: time ÷ SGLang Rust",
        "≤", 0.02, "evict", "÷ SGLang Rust",
    ),
    Line(
        "hit rate at equal capacity − SGLang's",
        "≥", 0, "turns", "hit rate − SGLang Rust", {"by": OURS},
    ),
    Line(
        "misses, 32,000 new tokens, whole turn, per 1,000 tokens above packing and allocating them",
        "≤", 15, "misses", "above the floor", {"tokens": 32_000}, "µs",
    ),
    Line(
        "telemetry sampled out − off, a request",
        "≤", 8, "telemetry", "− off", {"telemetry": "sampled out"}, "µs",
    ),
    Line(
        "telemetry 1 % sampled − off, a request",
        "≤", 20, "telemetry", "− off", {"telemetry": "1 % sampled"}, "µs",
    ),
    Line(
        "bytes of bookkeeping a cached token, page 16 ÷ SGLang's",
        "≤", 0.5, "memory", "÷ SGLang Rust",
    ),
    Line(
        "one million turns: latency at the end ÷ after the first tenth",
        "≤", 1.05, "memory", "latency, end ÷ first tenth",
    ),
    Line(
        "one million turns: memory at the end ÷ after the first tenth",
        "≤", 1.05, "memory", "memory, end ÷ first tenth",
    ),
    Line(
        "multi-turn, L1+L2+L3: input tokens/s ÷ L1 only",
        "≥", 3, "multiturn", "÷ L1", {"tiers": "L1+L2+L3"},
    ),
    Line(
        "multi-turn, L1+L2+L3: hit rate of the last round",
        "≥", 0.96, "multiturn", "hit rate, last round", {"tiers": "L1+L2+L3"},
    ),
    *(
        Line(
            f"hosts, {host}: {what} ÷ on trio",
            "≤", limit, "hosts", f"{what} ÷ trio", {"host": host},
        )
        for host, what, limit in (
            ("asyncio", "hit of 4,096", 1.3),
            ("asyncio", "turn", 1.3),
            ("uvloop", "hit of 4,096", 1.3),
            ("uvloop", "turn", 1.3),
            ("thread", "batch of 64 hits", 1.2),
            ("thread that polls", "batch of 64 hits", 1.2),
        )
    ),
)  # fmt: skip


def judge(rows: Sequence[Row], names: Sequence[str]) -> list[Goal]:
    """Judge the goals of the benchmarks that ran, in the order of the table."""
    return [line.judge(rows) for line in LINES if line.benchmark in names]
