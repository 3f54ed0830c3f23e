"""Pictures: no legend hides a line, and what is empty has none."""

import pytest
from banyankv.benchmarks.curves import draw_curves
from banyankv.benchmarks.registry import title
from banyankv.benchmarks.results import Curve
from banyankv.cli.plots import draw_replay, save_figure
from banyankv.errors import ConfigError
from banyankv.replay.report import Sample
from banyankv.runtime.messages import HitTokens


def laid_out(figure):
    figure.draw_without_rendering()
    return figure


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


def test_a_replays_legends_stand_beside_its_panels():
    figure = laid_out(draw_replay([sample(n) for n in range(1, 9)], "some workload"))
    assert figure.get_suptitle() == "some workload"
    assert len(legends(figure)) == 2
    assert hidden(figure) == []


def test_a_replay_without_a_request_has_no_legend():
    assert legends(laid_out(draw_replay([], "nothing"))) == []


def test_curves_have_one_legend_below_all_panels_and_a_title():
    curves = [
        Curve("multiturn", {"model": model, "tiers": tiers}, measure, "", "round", [0.0, 1.0, 0.5])
        for model in ("A", "B")
        for tiers in ("L1", "L1+L2")
        for measure in ("hit rate", "time")
    ]
    figure = laid_out(draw_curves(title("multiturn"), curves[:-1]))
    assert figure.get_suptitle().startswith("multiturn: conversations whose prompts grow")
    assert len(legends(figure)) == 1
    assert hidden(figure) == []


def test_a_picture_that_cannot_be_written_is_a_wrong_option(tmp_path):
    for path in (tmp_path / "absent" / "x.png", tmp_path / "x.unknown"):
        with pytest.raises(ConfigError, match="cannot write the plot"):
            save_figure(draw_replay([], "nothing"), path)
