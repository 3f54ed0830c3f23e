"""Pictures: of a replay its hit rate by tier and how full the tiers were; and how any is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..replay.report import Sample
from .extras import require_packages

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_ENDINGS = (".png", ".svg", ".pdf")


def require_plotting() -> None:
    """Find out before a long run whether there will be a picture; raises `ConfigError` if not."""
    require_packages("a plot", "plot", "matplotlib")


def require_picture(path: Path) -> None:
    """Refuse the name of a picture whose ending is no format that every viewer knows."""
    if path.suffix.lower() not in _ENDINGS:
        raise ConfigError(f"{path}: the name of a plot ends in {', '.join(_ENDINGS)}")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture, in the format that the file's ending tells; raise `ConfigError` where that fails."""
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot write the plot: {error}") from None


def draw_replay(samples: Sequence[Sample], title: str) -> Figure:
    """Draw the samples of a replay."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    rates, room = figure.subplots(2, 1, sharex=True)
    figure.suptitle(title)
    _rates(rates, samples)
    _occupancy(room, samples)
    return figure


def _rates(axes: Axes, samples: Sequence[Sample]) -> None:
    requests = [sample.requests for sample in samples]
    shares = [
        [getattr(sample.hit_tokens, tier) / sample.tokens for sample in samples]
        for tier in ("l1", "l2", "l3")
    ]
    axes.set_ylabel("hit tokens / tokens, so far")
    axes.set_ylim(0, 1)
    if samples:
        axes.stackplot(requests, *shares, labels=["from L1", "from L2", "from L3"])
        _legend(axes)
    else:
        axes.text(0.5, 0.5, "no request is over", ha="center", transform=axes.transAxes)


def _occupancy(axes: Axes, samples: Sequence[Sample]) -> None:
    requests = [sample.requests for sample in samples]
    for pool in samples[-1].occupancy if samples else ():
        axes.plot(requests, [sample.occupancy[pool] for sample in samples], label=_name(pool))
    axes.set_xlabel("requests")
    axes.set_ylabel("pages in use / pages")
    axes.set_ylim(0, 1.02)
    if samples:
        _legend(axes)


def _legend(axes: Axes) -> None:
    """Put the legend beside the panel, where it hides no line."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)


def _name(pool: str) -> str:
    tier, _, component = pool.partition(" ")
    return f"{tier.upper()} {component}"
