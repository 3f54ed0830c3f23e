"""`multiturn`: conversations whose prompts grow, on the reference server, with one, two and three tiers.

In each round every client sends all that was said in its conversation so far, and `new` more tokens;
a round begins when the one before is over. L1 has room for the requests that run and little else, L2 for half of what all
conversations come to, the store for everything; so L1 loses its prefixes first, L2 later, and the
store keeps them. The model is a tiny one, but prefill, decoding, HTTP and streaming are real.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
import torch
import trio

from ..errors import IntegrityError
from ..runtime.config import CacheConfig, StoreConfig
from ..spec import PagedSpec
from .bench import Bench
from .results import Case, Spread

if TYPE_CHECKING:
    from ..integrations.layout import CacheLayout
    from ..integrations.serving.server import Serving
    from .client import Turn

MODELS = {"FULL+SWA": "gemma3", "FULL+SWA+MAMBA": "lara-mini"}
TIERS = ("L1", "L1+L2", "L1+L2+L3")

_NEEDED = ("transformers", "hypercorn", "starlette", "prometheus_client")
_PAGE, _CHUNK, _RUNNING = 16, 256, 2
_STORE_BYTES = 1 << 32
_CONTEXT = 8192


class Size(msgspec.Struct, frozen=True):
    """Clients, rounds of each, tokens of a question and of an answer; room on L1 and L2 in tokens."""

    clients: int
    rounds: int
    new: int
    answer: int
    l1: int
    l2: int

    @property
    def longest(self) -> int:
        """Tokens of a whole conversation."""
        return self.rounds * (self.new + self.answer)


FULL = Size(clients=8, rounds=35, new=230, answer=4, l1=2 * _CONTEXT + 1024, l2=32_768)
TINY = Size(clients=2, rounds=3, new=150, answer=2, l1=1024, l2=1536)


class Played(msgspec.Struct, frozen=True):
    """All turns by round, the seconds and seconds of CPU time that they took, and what was said."""

    rounds: list[list[Turn]]
    seconds: float
    cpu: float
    said: list[str]

    def hit_rate(self, turns: list[Turn]) -> float:
        """Return the reused part of the turns' prompt tokens."""
        return sum(turn.cached for turn in turns) / sum(turn.prompt for turn in turns)


async def measure(bench: Bench) -> None:
    """Play the same conversations on each model with each set of tiers."""
    if any(find_spec(name) is None for name in _NEEDED):
        bench.note("not measured: it needs the server's packages, pip install 'banyankv[serve]'")
        return
    size = TINY if bench.tiny else FULL
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a tiny model is no work for two
    try:
        for model, family in MODELS.items():
            played = {tiers: await _play(family, tiers, size) for tiers in TIERS}
            _report(bench, model, played)
    finally:
        torch.set_num_threads(threads)
    bench.note(
        f"{size.clients} clients, {size.rounds} rounds, {size.new} new tokens and an answer of "
        f"{size.answer}; L1 holds {size.l1:,} tokens, L2 {size.l2:,}, all conversations together are "
        f"{size.clients * size.longest:,}; one run each"
    )


def _report(bench: Bench, model: str, played: dict[str, Played]) -> None:
    rates: dict[str, tuple[float, float]] = {}
    for tiers, run in played.items():
        if run.said != played[TIERS[0]].said:
            raise IntegrityError(f"{model}: answers with {tiers} are not those with {TIERS[0]}")
        turns = [turn for turns in run.rounds for turn in turns]
        tokens = sum(turn.prompt for turn in turns)
        rates[tiers] = tokens / run.seconds, tokens / run.cpu
        case: Case = {"model": model, "tiers": tiers}
        last = run.rounds[-1]

        def row(measure: str, unit: str, value: float, case: Case = case) -> None:
            bench.row(case, measure, unit, Spread.of([value]))

        (rate, cpu), (slow, slow_cpu) = rates[tiers], rates[TIERS[0]]
        row("input tokens/s", "tokens/s", rate)
        row("÷ L1", "×", rate / slow)
        row("input tokens/s of CPU time", "tokens/s", cpu)
        row("÷ L1, CPU time", "×", cpu / slow_cpu)
        row("hit rate", "", run.hit_rate(turns))
        row("hit rate, last round", "", run.hit_rate(last))
        row("mean TTFT", "ms", statistics.mean(turn.ttft for turn in turns) * 1e3)
        row("mean TTFT, last round", "ms", statistics.mean(turn.ttft for turn in last) * 1e3)
        by_round = [statistics.mean(turn.ttft for turn in turns) * 1e3 for turns in run.rounds]
        bench.curve(case, "mean TTFT", "ms", "round", by_round)
        bench.curve(case, "hit rate", "", "round", [run.hit_rate(turns) for turns in run.rounds])


async def _play(family: str, tiers: str, size: Size) -> Played:
    """Serve a model and let all clients talk to it; a fresh cache, nothing is known at the start."""
    from .client import ask

    dice = [random.Random(client) for client in range(size.clients)]
    said = [""] * size.clients
    rounds: list[list[Turn]] = []

    async def turn(client: int) -> None:
        said[client] += bytes(dice[client].choices(range(97, 123), k=size.new)).decode()
        answer, turn = await ask(server.url, family, said[client], size.answer)
        said[client] += answer
        rounds[-1].append(turn)

    async with _serving(family, tiers, size) as server:
        started, used = time.perf_counter(), time.process_time()
        for _ in range(size.rounds):
            rounds.append([])
            async with trio.open_nursery() as nursery:
                for client in range(size.clients):
                    nursery.start_soon(turn, client)
        seconds, cpu = time.perf_counter() - started, time.process_time() - used
        await server.cache.settle()
        await server.cache.check()
    return Played(rounds, seconds, cpu, said)


@asynccontextmanager
async def _serving(family: str, tiers: str, size: Size) -> AsyncGenerator[Serving]:
    from ..integrations.layout import describe
    from ..integrations.loading import load
    from ..integrations.serving.scheduler import Limits
    from ..integrations.serving.server import Settings, serve

    model = load(family)
    layout = describe(model, page_size=_PAGE)
    limits = Limits(running=_RUNNING, waiting=size.clients, backlog=_RUNNING * _CONTEXT)
    with TemporaryDirectory(prefix="banyankv-multiturn-") as folder:
        config = CacheConfig(
            model=layout.spec,
            l1=_room(layout, size.l1, size),
            l2=_room(layout, size.l2, size) if "L2" in tiers else None,
            store=StoreConfig(path=str(Path(folder) / "store"), max_bytes=_STORE_BYTES)
            if "L3" in tiers
            else None,
        )
        settings = Settings(name=family, chunk=_CHUNK, limits=limits)
        async with trio.open_nursery() as nursery:
            server: Serving = await nursery.start(partial(serve, model, layout, config, settings))
            yield server
            nursery.cancel_scope.cancel()


def _room(layout: CacheLayout, tokens: int, size: Size) -> dict[str, int]:
    """Size a tier: pages for `tokens`; windows and states, in the same proportion, are a few a turn."""
    part = tokens / size.clients / size.longest
    room: dict[str, int] = {}
    for component in layout.spec.components:
        if not isinstance(component, PagedSpec):
            turns = size.clients * size.rounds * 3
            room[component.name] = 16 + int(part * turns)
        elif component.rule == "full":
            room[component.name] = tokens // _PAGE
        else:
            windows = size.clients * size.rounds * 3 * -(-component.window // _PAGE)
            room[component.name] = _RUNNING * (2 * _CHUNK // _PAGE) + int(part * windows)
    return room
