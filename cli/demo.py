"""`banyankv demo`: what a cache does for conversations on a tiny hybrid model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import trio
from cyclopts import Group, Parameter
from rich import box
from rich.console import Console
from rich.table import Table

from .extras import require_packages
from .output import WRONG, require_folder, require_writable, write_json
from .plots import require_plotting, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..integrations.demo import Turn

_RESULTS = Group("Results", sort_key=3)


def demo(
    *,
    model: str = "lara-mini",
    seed: int = 0,
    json: Annotated[Path | None, Parameter(group=_RESULTS)] = None,
    plot: Annotated[Path | None, Parameter(group=_RESULTS)] = None,
) -> int:
    """Play conversations on a tiny hybrid model with and without the cache, and compare.

    The model is made here, of random numbers, with all three kinds of layers; nothing is downloaded.
    1 is the exit code where an answer is not the same with the cache. Needs the extra `transformers`.

    Parameters
    ----------
    model
        A tiny model by the name of its family, such as lara-mini, gemma3 or qwen3-next.
    seed
        Of the random conversations.
    json
        Write all turns to this file as one JSON array.
    plot
        Draw time to first token and reused tokens into this folder, as demo.svg.

    """
    require_packages("the demo", "transformers", "transformers")
    if plot is not None:
        require_plotting()
        require_folder(plot)
    require_writable(json)
    console = Console(highlight=False)
    began = time.perf_counter()
    turns: list[Turn] = []
    with console.status("loading torch and Transformers") as status:
        from ..integrations.demo import ANSWER, CONVERSATIONS, RESTART, TURNS, play
        from ..integrations.loading import load

        loaded = load(model)

        def tell(turn: Turn) -> None:
            status.update(f"turn {turn.turn} of {TURNS}, conversation {turn.conversation}")

        turns = trio.run(lambda: play(loaded, seed=seed, on_turn=tell))
    console.print(
        f"{CONVERSATIONS} conversations of {TURNS} turns on a tiny {model}, answers of {ANSWER} "
        f"tokens; the cache is closed and opened again before turn {RESTART + 1}"
    )
    console.print(_table(turns))
    write_json(json, turns)
    if plot is not None:
        picture = plot / "demo.svg"
        save_figure(_figure(turns, model), picture)
        console.print(f"plot: {picture}", soft_wrap=True)
    wrong = [turn for turn in turns if not turn.same]
    for turn in wrong:
        where = f"conversation {turn.conversation}, turn {turn.turn}"
        what = (
            f"another answer from token {turn.differs} on"
            if turn.differs >= 0
            else "the same answer"
        )
        console.print(
            f"[bold red]DIFFERENT[/]: {where}: with the cache {what}, logits off by {turn.off:.2g}",
            soft_wrap=True,
        )
    if wrong:
        return WRONG
    console.print(_summary(turns, time.perf_counter() - began), soft_wrap=True)
    return 0


def _by_turn(turns: Sequence[Turn]) -> list[list[Turn]]:
    last = max(turn.turn for turn in turns)
    return [[turn for turn in turns if turn.turn == number] for number in range(1, last + 1)]


def _means(some: Sequence[Turn]) -> tuple[list[float], float, float]:
    """Average the tokens reused by tier, and the ms with and without the cache."""
    hits = [statistics.mean(getattr(turn.hit, tier) for turn in some) for tier in _TIERS]
    with_ms = statistics.mean(turn.with_ms for turn in some)
    return hits, with_ms, statistics.mean(turn.without_ms for turn in some)


_TIERS = {"l1": "device", "l2": "host", "l3": "store"}


def _table(turns: Sequence[Turn]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="means of the conversations", title_justify="left")
    table.add_column("turn", justify="right")
    table.add_column("prompt\ntokens", justify="right")
    for tier in _TIERS:
        table.add_column(f"reused\nfrom {tier.upper()}", justify="right")
    table.add_column("first token\nwithout cache", justify="right")
    table.add_column("first token\nwith cache", justify="right")
    table.add_column("sooner", justify="right")
    for some in _by_turn(turns):
        hits, with_ms, without_ms = _means(some)
        table.add_row(
            str(some[0].turn),
            f"{some[0].prompt:,}",
            *(f"{hit:,.0f}" for hit in hits),
            f"{without_ms:.1f} ms",
            f"{with_ms:.1f} ms",
            f"{without_ms / with_ms:.1f} ×",
        )
    return table


def _summary(turns: Sequence[Turn], seconds: float) -> str:
    prompt = sum(turn.prompt for turn in turns)
    hits = [sum(getattr(turn.hit, tier) for turn in turns) for tier in _TIERS]
    saved = sum(turn.without_ms - turn.with_ms for turn in turns)
    share = saved / sum(turn.without_ms for turn in turns)
    by_tier = ", ".join(f"{hit:,} {tier.upper()}" for tier, hit in zip(_TIERS, hits, strict=True))
    return (
        f"All {len(turns)} answers are the same with the cache and without (logits off by at most "
        f"{max(turn.off for turn in turns):.1g}). {sum(hits):,} of "
        f"{prompt:,} prompt tokens ({sum(hits) / prompt:.0%}) were not computed again "
        f"({by_tier}); that {'saved' if saved >= 0 else 'cost'} {abs(saved) / 1e3:.2f} s, "
        f"{abs(share):.0%} of the time to first "
        f"tokens. ({seconds:.0f} s in all)"
    )


def _figure(turns: Sequence[Turn], model: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    times, tokens = figure.subplots(1, 2)
    figure.suptitle(f"banyankv demo: conversations on a tiny {model}")
    _draw(times, tokens, turns)
    return figure


def _draw(times: Axes, tokens: Axes, turns: Sequence[Turn]) -> None:
    grouped = _by_turn(turns)
    numbers = [some[0].turn for some in grouped]
    means = [_means(some) for some in grouped]
    times.plot(numbers, [without for _, _, without in means], "o-", label="without cache")
    times.plot(numbers, [with_ms for _, with_ms, _ in means], "o-", label="with cache")
    times.set_ylabel("time to first token, ms")
    times.set_ylim(bottom=0)
    below = [0.0] * len(numbers)
    for index, (tier, where) in enumerate(_TIERS.items()):
        share = [hits[index] for hits, _, _ in means]
        tokens.bar(numbers, share, bottom=below, label=f"from {tier.upper()}, {where}")
        below = [b + s for b, s in zip(below, share, strict=True)]
    rest = [some[0].prompt - b for some, b in zip(grouped, below, strict=True)]
    tokens.bar(numbers, rest, bottom=below, label="computed", color="lightgrey")
    tokens.set_ylabel("prompt tokens")
    for axes in (times, tokens):
        axes.set_xlabel("turn")
        axes.set_xticks(numbers)
        # Below the panel, where it hides nothing.
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, frameon=False)
