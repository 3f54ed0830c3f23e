"""Pictures of what changes in the course of a benchmark: one panel a measure and model, a line a case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .results import Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_curves(title: str, curves: Sequence[Curve]) -> Figure:
    """Draw the curves of one benchmark: a row of panels a measure, a panel for each first case word.

    Lines of one name have one colour in all panels, and one legend below them, where it hides none.
    """
    from matplotlib.figure import Figure

    measures = list(dict.fromkeys(curve.measure for curve in curves))
    groups = list(dict.fromkeys(_group(curve) for curve in curves))
    labels = list(dict.fromkeys(_label(curve) for curve in curves))
    figure = Figure(figsize=(5 * len(groups), 3.2 * len(measures) + 0.5), layout="constrained")
    panels = figure.subplots(len(measures), len(groups), sharex=True, sharey="row", squeeze=False)
    lines = {}
    for row, measure in zip(panels, measures, strict=True):
        for axes, group in zip(row, groups, strict=True):
            for curve in curves:
                if (curve.measure, _group(curve)) == (measure, group):
                    label = _label(curve)
                    xs = range(1, len(curve.values) + 1)
                    [lines[label]] = axes.plot(xs, curve.values, f"C{labels.index(label)}")
            axes.set_ylim(bottom=0)
        unit = next(curve.unit for curve in curves if curve.measure == measure)
        row[0].set_ylabel(f"{measure}, {unit}" if unit else measure)
    for axes, group in zip(panels[0], groups, strict=True):
        axes.set_title(group)
    for axes in panels[-1]:
        axes.set_xlabel(curves[0].x)
    figure.legend(
        [lines[label] for label in labels], labels, loc="outside lower center", ncols=len(labels)
    )
    figure.suptitle(title)
    return figure


def _group(curve: Curve) -> str:
    return str(next(iter(curve.case.values())))


def _label(curve: Curve) -> str:
    return ", ".join(str(word) for word in list(curve.case.values())[1:])
