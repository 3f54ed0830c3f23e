"""Pictures of what changes in the course of a benchmark: one panel a measure and model, a line a case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .results import Curve


def plot_curves(name: str, curves: Sequence[Curve], path: Path) -> None:
    """Draw the curves of one benchmark: a row of panels a measure, a panel for each first case word."""
    from matplotlib.figure import Figure

    measures = list(dict.fromkeys(curve.measure for curve in curves))
    groups = list(dict.fromkeys(_group(curve) for curve in curves))
    figure = Figure(figsize=(5 * len(groups), 3.2 * len(measures)), layout="constrained")
    panels = figure.subplots(len(measures), len(groups), sharex=True, sharey="row", squeeze=False)
    for row, measure in zip(panels, measures, strict=True):
        for axes, group in zip(row, groups, strict=True):
            axes.set_title(group)
            for curve in curves:
                if (curve.measure, _group(curve)) == (measure, group):
                    _, *rest = curve.case.values()
                    label = ", ".join(str(word) for word in rest)
                    axes.plot(range(1, len(curve.values) + 1), curve.values, label=label)
                    axes.set_xlabel(curve.x)
            axes.set_ylim(bottom=0)
            axes.legend()
        unit = next(curve.unit for curve in curves if curve.measure == measure)
        row[0].set_ylabel(f"{measure}, {unit}" if unit else measure)
    figure.suptitle(name)
    figure.savefig(path)


def _group(curve: Curve) -> str:
    return str(next(iter(curve.case.values())))
