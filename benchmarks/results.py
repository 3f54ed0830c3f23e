"""What a benchmark run says: rows of figures with their spread, goals, and the machine."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence

import msgspec

Case = dict[str, str | int]
"""What a row was measured on, such as `{"model": "FULL", "page": 16}`."""


class Spread(msgspec.Struct, frozen=True):
    """One figure over the rounds of a run: the median, the least and the greatest."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum up the figures of the rounds; there is at least one."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def __str__(self) -> str:
        if self.low == self.high:
            return number(self.median)
        return f"{number(self.median)} ({number(self.low)}..{number(self.high)})"


class Row(msgspec.Struct, frozen=True):
    """One figure of one benchmark. `unit` is part of what it means: µs, turns/s, bytes, ×."""

    benchmark: str
    case: Case
    measure: str
    unit: str
    figure: Spread


class Curve(msgspec.Struct, frozen=True):
    """What became of one figure in the course of a benchmark: its value at each `x`, from 1 on."""

    benchmark: str
    case: Case
    measure: str
    unit: str
    x: str
    values: list[float]


class Goal(msgspec.Struct, frozen=True):
    """One line of the table of goals; `value` and `met` are None where it was not measured."""

    measure: str
    value: float | None
    goal: str
    met: bool | None
    case: str = ""


class Machine(msgspec.Struct, frozen=True):
    """Where the run was. `loop_us` is a fixed interpreter loop: it tells this machine's speeds apart."""

    cpu: str
    cores: int
    python: str
    torch: str
    loop_us: Spread


class Report(msgspec.Struct, frozen=True):
    """A whole run, as `--json` writes it."""

    machine: Machine
    rows: list[Row]
    goals: list[Goal]
    notes: list[str]
    curves: list[Curve] = []


def describe(case: Mapping[str, str | int]) -> str:
    """Tell a case in words for a table."""
    return ", ".join(
        value if isinstance(value, str) else f"{name} {value:,}" for name, value in case.items()
    )


def lines(report: Report, width: int) -> Iterator[str]:
    """Tell all rows in lines of at most `width` characters: benchmark, case, and its figures."""
    blocks: dict[str, dict[str, list[str]]] = {}
    for row in report.rows:
        cases = blocks.setdefault(row.benchmark, {})
        cases.setdefault(describe(row.case), []).append(_figure(row))
    for benchmark, cases in blocks.items():
        yield f"\n{benchmark}"
        for case, figures in cases.items():
            yield f"  {case}"
            yield textwrap.fill(
                "; ".join(figures), width, initial_indent="    ", subsequent_indent="    "
            )


def _figure(row: Row) -> str:
    words = f"{row.measure} {row.figure}"
    return f"{words} {row.unit}" if row.unit else words


def number(value: float) -> str:
    """Tell a figure with three digits, or all before the point."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"
