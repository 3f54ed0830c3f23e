"""What every benchmark is given: its settings, and the place where its figures go."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from .pace import Contender, Pace, Samples
from .peers import Peers
from .results import Case, Curve, Row, Spread


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to measure. `tiny` shrinks every benchmark until its figures mean nothing: a smoke test.

    `turns` is the length of the long run of `memory`; `gate` the limit of the speed loop in µs, 0
    for none.
    """

    rounds: int = 5
    gate: float = 0.0
    turns: int = 1_000_000
    tiny: bool = False


class Bench:
    """One run of one or more benchmarks."""

    def __init__(self, settings: Settings, peers: Peers | None = None) -> None:
        self.settings = settings
        self.tiny = settings.tiny
        self.peers = peers
        self.pace = Pace(settings.rounds, settings.gate)
        self.name = ""
        """The benchmark that is running."""
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.curves: list[Curve] = []

    def scale(self, full: int, tiny: int) -> int:
        """Return a size: `full`, or `tiny` in a smoke test."""
        return tiny if self.tiny else full

    async def interleave(self, contenders: Mapping[str, Contender]) -> Samples:
        """Let contenders take turns for all rounds."""
        return await self.pace.interleave(contenders)

    def row(self, case: Case, measure: str, unit: str, figure: Spread) -> None:
        """Report one figure."""
        self.rows.append(Row(self.name, case, measure, unit, figure))

    def curve(self, case: Case, measure: str, unit: str, x: str, values: list[float]) -> None:
        """Report how a figure went, for `--json` and `--plot`."""
        self.curves.append(Curve(self.name, case, measure, unit, x, values))

    def compare(self, case: Case, samples: Samples, name: str, floor: str) -> None:
        """Report one contender's µs, its floor's, and their ratio."""
        self.row(case, "ours", "µs", samples.spread(name, "µs"))
        self.row(case, "floor", "µs", samples.spread(floor, "µs"))
        self.row(case, "÷ floor", "×", samples.ratio("µs", name, floor))

    def note(self, text: str) -> None:
        """Say in words what a figure cannot."""
        self.notes.append(f"{self.name}: {text}")
