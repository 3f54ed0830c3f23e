"""What driving a Transformers model with a cache costs a turn, beside the prefill it saves.

    python -m banyankv.benchmarks.integration [FAMILY ...]

Tiny random models on one thread; medians of seven turns, each of 128 new tokens behind 2,048 that are
on L1, and an answer of 16. What capturing takes is timed inside the forwards: the difference between
two forwards is smaller than what they vary by. "lease" is extend, snapshot,
publish, and the private copy of a state that decoding makes at each page.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch
import trio
from transformers import DynamicCache

from ..integrations.leased_cache import LeasedCache
from ..integrations.loading import load
from ..integrations.transformers import Sequence as Running
from ..integrations.transformers import TransformersEngine, describe
from ..runtime.cache import open_cache
from ..runtime.config import CacheConfig
from ..runtime.lease import Lease
from ..spec import PagedSpec

CONTEXT, NEW, ANSWER, TURNS = 2048, 128, 16, 7
CHUNK = 256

Times = defaultdict[str, list[float]]


@contextmanager
def _timed(times: Times, what: str) -> Generator[None]:
    started = time.perf_counter()
    yield
    times[what].append((time.perf_counter() - started) * 1e3)


class _TimedCache(LeasedCache):
    """Adds up the time that capturing takes."""

    seconds = 0.0

    def attend(self, start: int, end: int) -> None:
        started = time.perf_counter()
        super().attend(start, end)
        _TimedCache.seconds += time.perf_counter() - started

    def capture(self, key_states: torch.Tensor, value_states: torch.Tensor, layer: int) -> None:
        started = time.perf_counter()
        super().capture(key_states, value_states, layer)
        _TimedCache.seconds += time.perf_counter() - started


class _TimedEngine(TransformersEngine):
    """Restores into caches that are timed, and times restoring."""

    times: Times
    forwards = 0.0

    def forward(self, sequence: Running, start: int, end: int) -> torch.Tensor:
        started = time.perf_counter()
        logits = super().forward(sequence, start, end)
        self.forwards += time.perf_counter() - started
        return logits

    def restore(self, lease: Lease) -> LeasedCache:
        with _timed(self.times, "restore"), torch.inference_mode():
            return _TimedCache(self.model, self.cache.pools, self.layout, lease)


async def measure(family: str) -> dict[str, float]:
    """Return the medians in ms of one family."""
    model = load(family)
    layout = describe(model)
    dice = random.Random(0)
    context = dice.choices(range(256), k=CONTEXT)
    l1 = {c.name: 1024 if isinstance(c, PagedSpec) else 64 for c in layout.spec.components}
    times: Times = defaultdict(list)
    async with open_cache(CacheConfig(model=layout.spec, l1=l1)) as cache:
        engine = _TimedEngine(model, cache, layout, chunk=CHUNK)
        engine.times = times
        async with await engine.start([*context, 0]) as sequence:
            while not await sequence.prefill():
                pass
        times.clear()
        for _ in range(TURNS):
            with _timed(times, "saved"):
                _prefill(engine, context)
            await _turn(engine, [*context, *dice.choices(range(256), k=NEW)], times)
    return {what: statistics.median(taken) for what, taken in times.items()}


def _prefill(engine: TransformersEngine, tokens: list[int]) -> None:
    kv = DynamicCache(config=engine.model.config)
    with torch.inference_mode():
        for start in range(0, len(tokens), CHUNK):
            ids = torch.tensor([tokens[start : start + CHUNK]])
            positions = torch.arange(start, start + ids.shape[1]).unsqueeze(0)
            engine.model(
                input_ids=ids, position_ids=positions, cache=kv, use_cache=True, logits_to_keep=1
            )


async def _turn(engine: _TimedEngine, prompt: list[int], times: Times) -> None:
    with _timed(times, "start"):
        sequence = await engine.start(prompt)
    times["acquire"].append(times["start"][-1] - times["restore"][-1])
    async with sequence:
        _TimedCache.seconds = 0.0
        engine.forwards = 0.0
        with _timed(times, "prefill"):
            while not await sequence.prefill():
                pass
        times["lease, prompt"].append(times["prefill"][-1] - engine.forwards * 1e3)
        times["capture, prompt"].append(_TimedCache.seconds * 1e3)
        _TimedCache.seconds = engine.forwards = 0.0
        with _timed(times, "answer"):
            for _ in range(ANSWER):
                await sequence.push(1)
                await engine.step([sequence])
        times["lease, a token"].append((times["answer"][-1] - engine.forwards * 1e3) / ANSWER)
        times["capture, a token"].append(_TimedCache.seconds * 1e3 / ANSWER)
        with _timed(times, "finish"):
            await sequence.finish()
        with _timed(times, "release"):
            await sequence.release()


def main(families: Sequence[str]) -> None:
    """Print a table of the families."""
    torch.set_num_threads(1)
    once = ("acquire", "restore", "lease, prompt", "capture, prompt", "finish", "release")
    each = ("lease, a token", "capture, a token")
    headings = (*once, *each, "in all", "prefill saved")
    print(f"ms a turn: {NEW} new tokens behind {CONTEXT}, {ANSWER} answered")
    for family in families:
        m = trio.run(measure, family)
        cost = sum(m[step] for step in once) + ANSWER * sum(m[step] for step in each)
        figures = [*(m[step] for step in (*once, *each)), cost, m["saved"]]
        print(family)
        for heading, figure in zip(headings, figures, strict=True):
            print(f"  {heading:<18}{figure:9.2f}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["lara-mini", "gemma3", "qwen3-next", "falcon-h1", "lfm2"])
