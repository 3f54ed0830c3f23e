"""Pictures: no legend hides a line, and what is empty has none."""

from pathlib import Path

import pytest
from banyankv.benchmarks.curves import plot_curves
from banyankv.benchmarks.registry import BUILT, title
from banyankv.benchmarks.results import Curve
from banyankv.cli.plots import plot_replay
from banyankv.replay.report import Sample
from banyankv.runtime.messages import HitTokens
from matplotlib.figure import Figure


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved, laid out."""
    figures = []

    def keep(self, path):
        self.draw_without_rendering()
        figures.append(self)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def legends(figure):
    own = [axes.get_legend() for axes in figure.axes]
    return [legend for legend in (*figure.legends, *own) if legend is not None]


def hidden(figure):
    """The panels that a legend lies on."""
    return [
        axes
        for axes in figure.axes
        for legend in legends(figure)
        if legend.get_window_extent().overlaps(axes.get_window_extent())
    ]


def sample(n):
    return Sample(n, n * 100, HitTokens(l1=n * 50, l2=n * 20), {"l1 full": 0.5, "l2 full": n / 10})


def test_a_replays_legends_stand_beside_its_panels(drawn):
    plot_replay([sample(n) for n in range(1, 9)], "some workload", Path("x.png"))
    [figure] = drawn
    assert figure.get_suptitle() == "some workload"
    assert len(legends(figure)) == 2
    assert hidden(figure) == []


def test_a_replay_without_a_request_has_no_legend(drawn):
    plot_replay([], "nothing", Path("x.png"))
    assert legends(drawn[0]) == []


def test_curves_have_one_legend_below_all_panels_and_a_title(drawn):
    curves = [
        Curve("multiturn", {"model": model, "tiers": tiers}, measure, "", "round", [0.0, 1.0, 0.5])
        for model in ("A", "B")
        for tiers in ("L1", "L1+L2")
        for measure in ("hit rate", "time")
    ]
    plot_curves(title("multiturn"), curves[:-1], Path("x.svg"))
    [figure] = drawn
    assert figure.get_suptitle().startswith("multiturn: conversations whose prompts grow")
    assert len(legends(figure)) == 1
    assert hidden(figure) == []


@pytest.mark.parametrize("name", BUILT)
def test_every_benchmark_has_a_title(name):
    assert title(name).startswith(f"{name}: ")
