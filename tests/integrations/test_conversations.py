"""Greedy generations are the same with and without a cache, whatever happens to it meanwhile."""

import pytest

pytest.importorskip("transformers", reason="needs the extra transformers")

from contextlib import nullcontext

import trio

from .world import DISPATCH, KINDS, cold_generation, engine_of, tokens

TURNS, ANSWER = 3, 5


async def converse(engine, family, prompt, seed, turns=TURNS, admission=None):
    """Play turns of one conversation and compare each answer with one that no cache saw."""
    history = list(prompt)
    for turn in range(turns):
        async with (
            admission or nullcontext(),
            await engine.start(history, session=f"chat-{seed}") as sequence,
        ):
            answer = await engine.generate(sequence, ANSWER)
        assert answer == cold_generation(family, history, ANSWER), (seed, turn)
        history += answer + tokens(1000 * seed + turn, 13)


@pytest.mark.parametrize("family", KINDS)
async def test_conversations_under_pressure(family):
    await play_under_pressure(family, DISPATCH)


async def test_conversations_under_pressure_in_both_dispatch_modes(dispatch):
    await play_under_pressure("lara-mini", dispatch)


async def play_under_pressure(family, dispatch):
    """Four conversations share a beginning; L1 holds the two that are live, and little more."""
    admission = trio.CapacityLimiter(2)
    trunk = tokens(5, 21)
    async with engine_of(family, pages=32, states=9, dispatch=dispatch, chunk=24) as engine:
        async with trio.open_nursery() as nursery:
            for seed in range(1, 5):
                prompt = trunk + tokens(seed, 11 + 4 * seed)
                nursery.start_soon(converse, engine, family, prompt, seed, TURNS, admission)
        # L1 alone ran short meanwhile; now what is left of it goes, and comes back from L2.
        assert (await engine.cache.stats()).components[0].demoted > 0
        await engine.cache.settle()
        for component, pages in engine.cache.config.l1.items():
            await engine.cache.evict(component, pages)
        await converse(engine, family, trunk + tokens(1, 15), 1, turns=2)
        stats = await engine.cache.stats()
        assert stats.hit_tokens.l1 > 0
        assert stats.hit_tokens.l2 > 0
        assert all(c.demoted > 0 and c.promoted > 0 for c in stats.components)


@pytest.mark.parametrize("family", ["lara-mini", "gemma3", "inkling2"])
async def test_forks_of_one_conversation_at_once(family):
    """Several continue one turn at the same time, chunk by chunk, step by step, in turns."""
    trunk = tokens(6, 50)
    async with engine_of(family, pages=48, states=24) as engine:
        async with await engine.start(trunk) as sequence:
            history = trunk + await engine.generate(sequence, ANSWER)
        prompts = [history + tokens(200 + branch, 3 + 11 * branch) for branch in range(4)]
        branches = [await engine.start(prompt) for prompt in prompts]
        assert {branch.lease.length for branch in branches} == {48}
        while not all([await branch.prefill(8) for branch in branches]):
            pass
        answers = [[branch.argmax()] for branch in branches]
        for _ in range(ANSWER - 1):
            for branch, answer in zip(branches, answers, strict=True):
                await branch.push(answer[-1])
            await engine.step(branches)
            for branch, answer in zip(branches, answers, strict=True):
                answer.append(branch.argmax())
        for branch in branches:
            await branch.finish()
            await branch.release()
        assert answers == [cold_generation(family, prompt, ANSWER) for prompt in prompts]


async def test_conversations_with_forwards_on_a_thread():
    async with (
        engine_of("lara-mini", pages=40, states=16, threaded=True) as engine,
        trio.open_nursery() as nursery,
    ):
        for seed in range(1, 4):
            nursery.start_soon(converse, engine, "lara-mini", tokens(seed, 30), seed, 2)


@pytest.mark.parametrize("family", ["lara-mini", "gemma3"])
async def test_a_turn_goes_on_where_the_last_one_ended(family):
    """The answer is reused too: up to its last whole page."""
    async with engine_of(family) as engine:
        history = tokens(7, 42)
        async with await engine.start(history) as sequence:
            history += await engine.generate(sequence, 24)
            assert sequence.lease.published == 64  # 42 + 24, less the last one, in pages of 8
        async with await engine.start([*history, 1, 2, 3]) as sequence:
            assert sequence.lease.length == 64


@pytest.mark.parametrize("length", [39, 40, 41])
async def test_the_same_prompt_again(length):
    """One token is always left to compute: a prompt of whole pages leaves a page."""
    async with engine_of("lara-mini") as engine:
        for expected in (0, (length - 1) // 8 * 8):
            async with await engine.start(tokens(8, length)) as sequence:
                assert sequence.lease.length == expected
                answer = await engine.generate(sequence, 3)
                assert answer == cold_generation("lara-mini", tokens(8, length), 3)
