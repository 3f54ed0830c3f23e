"""`banyankv verify-layers`: is what a cache gives back the same, layer by layer, as a cold run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import trio
from cyclopts import Parameter
from rich import box
from rich.console import Console
from rich.table import Table

from ..errors import ConfigError
from .extras import require_packages
from .output import WRONG, require_writable, write_json

if TYPE_CHECKING:
    from ..integrations.verify import LengthReport, TierReport


def verify_layers(
    model: Annotated[str, Parameter(allow_leading_hyphen=False)],
    /,
    *,
    page_size: int = 16,
    tokens: int | None = None,
    atol: float = 0.0,
    seed: int = 0,
    json: Path | None = None,
) -> int:
    """Restore a prompt's prefix from L1, L2 and L3 and compare every layer with a cold run.

    Both runs cut the prompt at the same places, so they should agree bit for bit. Then a long prompt
    reuses what a short one left, and a short one what a long one left, each compared with one forward
    of a fresh model; other cuts may make half the digits of its dtype. 1 is the exit code where
    something differs; the first layer is named. Needs the extra `transformers`.

    Parameters
    ----------
    model
        A tiny random model by the name of its family, such as lara-mini, or the folder of a
        Transformers model.
    page_size
        Tokens of a page.
    tokens
        Length of the prompt; by default enough to fill the model's window.
    atol
        Differences up to this count as none.
    seed
        Of the random prompt.
    json
        Write all figures to this file as one JSON object.

    """
    if not 0 <= atol < math.inf:
        raise ConfigError(f"--atol must be a number from 0 on, not {atol:g}")
    if page_size < 1:
        raise ConfigError(f"--page-size must be at least 1, not {page_size}")
    require_packages("verify-layers", "transformers", "transformers")
    require_writable(json)
    from ..integrations.loading import load
    from ..integrations.verify import verify_layers

    loaded = load(model)
    report = trio.run(lambda: verify_layers(loaded, page_size=page_size, tokens=tokens, seed=seed))
    console = Console(highlight=False)
    console.print(_table(report.tiers, atol))
    for lengths in report.lengths:
        console.print(_across(lengths, atol), soft_wrap=True)
    write_json(json, report)
    verdicts = [verdict for tier in report.tiers if (verdict := _verdict(tier, atol))]
    if any(lengths.differs(atol) for lengths in report.lengths):
        verdicts.append("a prefix depends on more than its tokens: this model's must not be reused")
    for verdict in verdicts:
        console.print(verdict, soft_wrap=True)
    if verdicts:
        return WRONG
    console.print("all layers agree" + (f" within {atol:g}" if atol else " bit for bit"))
    return 0


def _across(report: LengthReport, atol: float) -> str:
    colour = "bold red" if report.differs(atol) else "default"
    return (
        f"{report.tokens} tokens after {report.before}: {report.reused} reused, logits off by "
        f"[{colour}]{report.logits:.3g}[/], at most {max(report.bound, atol):.1g} from other cuts"
    )


def _table(reports: Sequence[TierReport], atol: float) -> Table:
    some = reports[0]
    table = Table(
        title=f"{some.boundary} of {some.tokens} tokens restored, off by at most",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("layer")
    table.add_column("keeps", no_wrap=True)
    for report in reports:
        table.add_column(f"{report.tier}\nrestored", justify="right", no_wrap=True)
        table.add_column(f"{report.tier}\noutput", justify="right", no_wrap=True)
    for layers in zip(*(report.layers for report in reports), strict=True):
        figures = [_figure(d, atol) for layer in layers for d in (layer.restored, layer.output)]
        table.add_row(str(layers[0].layer), layers[0].keeps, *figures)
    ends = [cell for report in reports for cell in ("", _figure(report.logits, atol))]
    table.add_row("logits", "", *ends)
    return table


def _figure(difference: float | None, atol: float) -> str:
    if difference is None:
        return "–"
    text = f"{difference:.3g}"
    return text if difference <= atol else f"[bold red]{text}[/]"


def _plain(difference: float | None) -> str:
    return "nothing" if difference is None else f"{difference:.3g}"


def _verdict(report: TierReport, atol: float) -> str:
    """Name the first layer that differs; nothing where none does."""
    first = report.first(atol)
    if first is not None:
        return (
            f"{report.tier}: layer {first.layer} ({first.keeps}) is the first that differs: "
            f"restored off by {_plain(first.restored)}, output off by {_plain(first.output)}"
        )
    if not report.logits <= atol:
        return f"{report.tier}: all layers agree, but the logits are off by {report.logits:.3g}"
    return ""
