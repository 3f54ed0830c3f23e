"""Pictures of a run: one a benchmark, its cases as bars with the spread of their rounds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from ..errors import ConfigError
from .curves import plot_curves
from .registry import title
from .results import Report, Row, describe


def plot_report(report: Report, folder: Path) -> None:
    """Draw `NAME.png` for each benchmark into `folder`, which is made, and `NAME.svg` for its curves.

    Raises `ConfigError` where that cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in itertools.groupby(report.rows, lambda row: row.benchmark):
            _plot(name, list(rows), folder / f"{name}.png")
        for name, curves in itertools.groupby(report.curves, lambda curve: curve.benchmark):
            plot_curves(title(name), list(curves), folder / f"{name}.svg")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot write the plots: {error}") from None


def _plot(name: str, rows: Sequence[Row], path: Path) -> None:
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
    figure.savefig(path)
