"""One decode step for many sequences gives what each alone would give."""

import pytest

pytest.importorskip("transformers", reason="needs the extra transformers")

import torch
import trio
from banyankv import ConfigError, Tier
from banyankv.integrations.transformers import Sequence, TransformersEngine

from .world import (
    KINDS,
    PAGE,
    SERVED,
    WINDOW,
    cold,
    cold_generation,
    engine_of,
    lower,
    model_of,
    same,
    through,
    tokens,
)

# Around a page, around the window, and far from both: shorter and longer ones side by side.
LENGTHS = (3, PAGE - 1, PAGE, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, 61)


@pytest.mark.parametrize("family", [name for name in SERVED if name != "llama4"])
async def test_logits_of_a_batch(family):
    prompts = [tokens(300 + length, length) for length in LENGTHS]
    async with engine_of(family, batched=True, pages=128) as engine:
        sequences = [await engine.start(prompt) for prompt in prompts]
        for sequence in sequences:
            await through(sequence)
        for step in range(4):
            for place, sequence in enumerate(sequences):
                await sequence.push(40 * step + place)
            await engine.step(sequences)
        for sequence in sequences:
            assert same(sequence.logits, cold(family, sequence.tokens)), len(sequence.tokens)
            await sequence.release()


@pytest.mark.parametrize("family", KINDS)
async def test_what_a_batch_leaves_is_reused(family):
    """Pages and states that a batch wrote are as good as any: from L2, in the next turn."""
    prompts = [tokens(400 + length, length) for length in (10, 27)]
    async with engine_of(family, batched=True) as engine:
        sequences = [await engine.start(prompt) for prompt in prompts]
        for sequence in sequences:
            await through(sequence)
        for _ in range(20):
            for sequence in sequences:
                await sequence.push(sequence.argmax())
            await engine.step(sequences)
        for sequence in sequences:
            await sequence.finish()
            await sequence.release()
        await lower(engine.cache, Tier.L2)
        for sequence, prompt in zip(sequences, prompts, strict=True):
            assert sequence.tokens == prompt + cold_generation(family, prompt, 20)
            async with await engine.start(sequence.tokens) as again:
                assert again.lease.hit.l2 == (len(sequence.tokens) - 1) // PAGE * PAGE
                assert same(await through(again), cold(family, sequence.tokens))


async def test_batches_change_while_they_run():
    """Sequences join and leave between steps, as in continuous batching; forwards on a thread."""
    wanted = {seed: 3 + seed for seed in range(6)}
    prompts = {seed: tokens(seed, 9 + 5 * seed) for seed in wanted}
    async with engine_of("lara-mini", batched=True, threaded=True) as engine:
        waiting, running, answers = list(wanted), {}, {seed: [] for seed in wanted}
        while waiting or running:
            if waiting:
                seed = waiting.pop(0)
                running[seed] = await engine.start(prompts[seed])
                await through(running[seed])
            for seed, sequence in [*running.items()]:
                answers[seed].append(sequence.argmax())
                if len(answers[seed]) == wanted[seed]:
                    await running.pop(seed).release()
                else:
                    await sequence.push(answers[seed][-1])
            await engine.step(list(running.values()))
        for seed, answer in answers.items():
            assert answer == cold_generation("lara-mini", prompts[seed], wanted[seed])


async def test_cancelled_behind_a_batch(monkeypatch):
    """All sequences of a forward have come as far as it did, also where its end was cancelled."""
    scope = trio.CancelScope()

    async def cancelled(sequence):
        scope.cancel()
        await trio.lowlevel.checkpoint()

    async with (
        engine_of("lara-mini", batched=True, spacing=8) as engine,
        await engine.start(tokens(1, 23)) as one,
        await engine.start(tokens(2, 23)) as two,
    ):
        for sequence in (one, two):
            await through(sequence)
            await sequence.push(9)
        with monkeypatch.context() as patched, scope:
            patched.setattr(Sequence, "keep", cancelled)
            await engine.step([one, two])
        assert scope.cancelled_caught
        for sequence in (one, two):
            assert sequence.position == 24
            await sequence.push(10)
        await engine.step([one, two])
        assert same(one.logits, cold("lara-mini", one.tokens))
        assert same(two.logits, cold("lara-mini", two.tokens))


async def test_pages_before_a_window_are_not_touched():
    """What the window has left behind is somebody else's: it may hold anything, also no number."""
    async with engine_of("gemma3", batched=True, pages=24) as engine:
        for part in [*engine.cache.pools.view("full"), *engine.cache.pools.view("swa")]:
            part.fill_(float("nan"))
        async with (
            await engine.start(tokens(1, 70)) as long,
            await engine.start(tokens(2, 5)) as short,
        ):
            await through(long)
            await through(short)
            for _ in range(3):
                await long.push(7)
                await short.push(8)
                await engine.step([long, short])
            assert same(long.logits, cold("gemma3", long.tokens))
            assert same(short.logits, cold("gemma3", short.tokens))


async def test_what_is_refused():
    async with engine_of("lara-mini", batched=True) as engine:
        await engine.step([])
        async with await engine.start(tokens(1, 20)) as sequence:
            with pytest.raises(ConfigError, match="push one token to each"):
                await engine.step([sequence])
            await through(sequence)
            with pytest.raises(ConfigError, match="push one token to each"):
                await engine.step([sequence])
            await sequence.push(1)
            await engine.step([sequence])
            await sequence.push(2)
            with pytest.raises(ConfigError, match="cannot be computed by itself"):
                await engine.compute(sequence, 22)
            await engine.step([sequence])
            assert same(sequence.logits, cold("lara-mini", [*tokens(1, 20), 1, 2]))
    async with engine_of("llama4") as engine:
        with pytest.raises(ConfigError, match="decode without batched"):
            TransformersEngine(model_of("llama4"), engine.cache, engine.layout, batched=True)


async def test_a_batch_of_one_and_equal_lengths_need_no_padding():
    async with (
        engine_of("lara-mini", batched=True) as engine,
        await engine.start(tokens(1, 20)) as one,
        await engine.start(tokens(2, 20)) as two,
    ):
        for sequence in (one, two):
            await through(sequence)
            await sequence.push(9)
        await engine.step([one, two])
        await one.push(10)
        await engine.step([one])
        assert same(one.logits, cold("lara-mini", one.tokens))
        assert same(two.logits, cold("lara-mini", two.tokens))
        assert not torch.equal(one.logits, two.logits)
