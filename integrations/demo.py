"""The demo: a few conversations on a tiny hybrid model, with and without the cache, side by side.

start ── turn 1 ── … ── turn 4 ── restart ── turn 5 ── turn 6
         L1 holds less than all conversations     L1 and L2 are empty:
         together: some come back from L2         all come back from L3
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import torch
from transformers import DynamicCache, PreTrainedModel

from ..replay.presets import capacities
from ..runtime.cache import open_cache
from ..runtime.config import CacheConfig, StoreConfig
from ..runtime.messages import HitTokens
from .layout import CacheLayout, describe
from .transformers import TransformersEngine
from .verify import rounding

CONVERSATIONS, TURNS = 3, 6
RESTART = 4
"""Turns before the restart."""

SYSTEM, QUESTION, ANSWER = 512, 320, 12
"""Tokens of the system prompt that all share, of each question and of each answer."""

CHUNK = 256
L1_TOKENS, L2_TOKENS, STORE_BYTES = 3584, 24_576, 1 << 28

TurnDone = Callable[["Turn"], None]


class Turn(msgspec.Struct, frozen=True):
    """One turn of one conversation, numbered from 1; times are to the first token, in ms.

    `differs` is the first token of the answer that is not the same with the cache, -1 for none;
    `off` the largest difference between any two logits from which the tokens were chosen, `allowed`
    what other cuts of the prompt may make of it.
    """

    conversation: int
    turn: int
    prompt: int
    hit: HitTokens
    with_ms: float
    without_ms: float
    differs: int
    off: float
    allowed: float

    @property
    def same(self) -> bool:
        """Whether the model said the same with the cache as without it."""
        return self.differs < 0 and self.off <= self.allowed


async def play(model: PreTrainedModel, *, seed: int = 0, on_turn: TurnDone) -> list[Turn]:
    """Play all conversations; `on_turn` hears of each turn when it is over."""
    torch.set_num_threads(1)  # a tiny model is no work for two
    layout = describe(model)
    dice = random.Random(seed)  # noqa: S311
    system = _words(dice, SYSTEM)
    histories = [list(system) for _ in range(CONVERSATIONS)]
    turns: list[Turn] = []
    with TemporaryDirectory(prefix="banyankv-demo-") as folder:
        for numbers in (range(1, RESTART + 1), range(RESTART + 1, TURNS + 1)):
            async with _engine(model, layout, Path(folder)) as engine:
                for number in numbers:
                    for conversation, history in enumerate(histories, start=1):
                        history.extend(_words(dice, QUESTION))
                        turn, answer = await _turn(engine, history, conversation, number)
                        history.extend(answer)
                        turns.append(turn)
                        on_turn(turn)
                        # Somebody who reads the answer takes longer than a copy to L2 or L3.
                        await engine.cache.settle()
                await engine.cache.check()
    return turns


@asynccontextmanager
async def _engine(
    model: PreTrainedModel, layout: CacheLayout, folder: Path
) -> AsyncGenerator[TransformersEngine]:
    config = CacheConfig(
        model=layout.spec,
        l1=capacities(layout.spec, L1_TOKENS),
        l2=capacities(layout.spec, L2_TOKENS),
        store=StoreConfig(path=str(folder / "store"), max_bytes=STORE_BYTES),
    )
    async with open_cache(config) as cache:
        # The store keeps states at whole chunks of 256 tokens, so that is where they are taken.
        yield TransformersEngine(model, cache, layout, chunk=CHUNK, spacing=CHUNK)


def _words(dice: random.Random, count: int) -> list[int]:
    return dice.choices(range(32, 127), k=count)


async def _turn(
    engine: TransformersEngine, prompt: list[int], conversation: int, number: int
) -> tuple[Turn, list[int]]:
    cold, without_ms = _without(engine.model, prompt)
    warm: list[torch.Tensor] = []
    answer: list[int] = []
    started = time.perf_counter()
    async with await engine.start(prompt, keep=[SYSTEM]) as sequence:
        while not await sequence.prefill():
            pass
        answer.append(sequence.argmax())
        with_ms = (time.perf_counter() - started) * 1e3
        while sequence.logits is not None:
            warm.append(sequence.logits)
            if len(answer) == ANSWER:
                break
            await sequence.push(answer[-1])
            await engine.step([sequence])
            answer.append(sequence.argmax())
        await sequence.finish()
        hit = sequence.lease.hit
    differs = next((i for i, logits in enumerate(cold) if int(logits.argmax()) != answer[i]), -1)
    # Behind a token that differs, the logits are those of another text.
    compared = zip(warm[: differs + 1 or None], cold, strict=False)
    off = max(float((one - other).abs().max()) for one, other in compared)
    allowed = max(rounding(engine.model, logits) for logits in cold)
    return (
        Turn(conversation, number, len(prompt), hit, with_ms, without_ms, differs, off, allowed),
        answer,
    )


def _without(model: PreTrainedModel, prompt: list[int]) -> tuple[list[torch.Tensor], float]:
    """Complete a prompt greedily without any cache; return the logits, and the ms to the first token."""
    kv = DynamicCache(config=model.config)
    chosen: list[torch.Tensor] = []
    known, position = list(prompt), 0
    started = time.perf_counter()
    first_ms = 0.0
    with torch.inference_mode():
        while len(chosen) < ANSWER:
            end = min(position + CHUNK, len(known))
            logits = model(
                input_ids=torch.tensor([known[position:end]]),
                position_ids=torch.arange(position, end).unsqueeze(0),
                cache=kv,
                use_cache=True,
                logits_to_keep=1,
            ).logits[0, -1]
            position = end
            if position == len(known):
                known.append(int(logits.argmax()))
                chosen.append(logits)
                first_ms = first_ms or (time.perf_counter() - started) * 1e3
    return chosen, first_ms
