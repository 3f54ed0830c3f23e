"""Pictures of a run: one a benchmark, its cases as bars with the spread of their rounds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .curves import draw_curves
from .registry import title
from .results import Report, Row, describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_report(report: Report) -> Iterator[tuple[str, Figure]]:
    """Draw `NAME.png` for each benchmark, and `NAME.svg` for its curves; give each file's name and figure."""
    for name, rows in itertools.groupby(report.rows, lambda row: row.benchmark):
        yield f"{name}.png", _draw(name, list(rows))
    for name, curves in itertools.groupby(report.curves, lambda curve: curve.benchmark):
        yield f"{name}.svg", draw_curves(title(name), list(curves))


def _draw(name: str, rows: Sequence[Row]) -> Figure:
    """Draw the benchmark's first measure, which every case has."""
    from matplotlib.figure import Figure

    shown = [row for row in rows if row.measure == rows[0].measure]
    medians = [row.figure.median for row in shown]
    below = [row.figure.median - row.figure.low for row in shown]
    above = [row.figure.high - row.figure.median for row in shown]
    figure = Figure(figsize=(9, 1.5 + 0.28 * len(shown)), layout="constrained")
    axes = figure.subplots()
    places = range(len(shown))
    axes.barh(places, medians, xerr=(below, above))
    axes.set_yticks(places, [describe(row.case) for row in shown], fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel(f"{shown[0].measure}, {shown[0].unit}" if shown[0].unit else shown[0].measure)
    axes.set_title(title(name), loc="right", fontsize="medium")
    return figure
