"""Logits after reuse are those without a cache: from every tier, around every kind of boundary."""

import pytest

pytest.importorskip("transformers", reason="needs the extra transformers")

import torch
from banyankv import Tier
from banyankv.integrations.tiny import tiny_model
from banyankv.integrations.verify import verify_layers

from .world import (
    CHUNK,
    GRID,
    KINDS,
    L3_CHUNK,
    PAGE,
    SERVED,
    WINDOW,
    cold,
    engine_of,
    has_states,
    hit_of,
    lower,
    same,
    through,
    tokens,
)

AROUND = sorted(
    {
        boundary + offset
        for boundary in (PAGE, WINDOW, CHUNK, GRID, WINDOW + CHUNK, GRID + PAGE)
        for offset in (-1, 0, 1)
    }
    # where the window's first token is the first of a page, and where it is the last of one
    | {WINDOW - 1 + PAGE, WINDOW - 2 + PAGE, 3 * PAGE - 1}
)


@pytest.mark.parametrize("tier", [Tier.L1, Tier.L2])
@pytest.mark.parametrize("family", SERVED)
async def test_prefixes_from_l1_and_l2(family, tier):
    """States at every page: everything shared is reused, down to a page."""
    first = tokens(1, 100)
    async with engine_of(family, spacing=PAGE, pages=128, states=128) as engine:
        async with await engine.start(first) as sequence:
            await through(sequence)
        for shared in AROUND if family in KINDS else AROUND[::4]:
            await lower(engine.cache, tier)
            prompt = first[:shared] + tokens(shared, 5)
            async with await engine.start(prompt) as sequence:
                assert hit_of(sequence)[tier] == shared // PAGE * PAGE, shared
                logits = await through(sequence)
            assert same(logits, cold(family, prompt)), shared


@pytest.mark.parametrize("family", SERVED)
async def test_prefixes_from_l3(family, tmp_path):
    """In the store, states stand at whole chunks; a window is saved as far back as a chunk needs it."""
    first = tokens(2, L3_CHUNK + PAGE + 3)
    async with engine_of(family, store=tmp_path, spacing=L3_CHUNK, chunk=128) as engine:
        async with await engine.start(first[: L3_CHUNK + 1]) as sequence:
            await through(sequence)
        await engine.cache.settle()
    # What a process left is found by the next one.
    async with engine_of(family, store=tmp_path, chunk=CHUNK) as engine:
        for shared in (L3_CHUNK - 1, L3_CHUNK, L3_CHUNK + 1):
            await lower(engine.cache, Tier.L3)
            prompt = first[:shared] + tokens(shared, 4)
            async with await engine.start(prompt) as sequence:
                expected = shared // L3_CHUNK * L3_CHUNK
                assert sequence.lease.hit.l3 == sequence.lease.length == expected
                if expected:
                    logits = await through(sequence)
                    assert same(logits, cold(family, prompt))


@pytest.mark.parametrize("family", SERVED)
async def test_equal_chunks_are_equal_bit_for_bit(family):
    """Restored or not, the same cuts add the same numbers in the same order."""
    prompt = tokens(3, 61)
    async with engine_of(family, chunk=20) as engine:
        async with await engine.start(prompt[:41]) as sequence:
            await through(sequence)
        before = [end for _, end in engine.spans if end <= 40]
        engine.spans.clear()
        async with await engine.start(prompt) as sequence:
            assert sequence.lease.length == 40
            logits = await through(sequence)
        behind = [end for _, end in engine.spans if end < len(prompt)]
        assert torch.equal(logits, cold(family, prompt, (*before, *behind)))


@pytest.mark.parametrize("family", ["lara-mini", "gemma3", "falcon-h1"])
async def test_bfloat16_is_equal_bit_for_bit_too(family):
    """There, another cut would move logits by up to 1e-2: only equal cuts tell."""
    report = await verify_layers(tiny_model(family).to(torch.bfloat16), page_size=PAGE)
    assert [(tier.tier, tier.first(0.0), tier.logits) for tier in report.tiers] == [
        ("L1", None, 0.0),
        ("L2", None, 0.0),
        ("L3", None, 0.0),
    ]
    assert not any(lengths.differs(0.0) for lengths in report.lengths)


@pytest.mark.parametrize("family", [name for name in SERVED if has_states(name)])
async def test_without_a_state_nothing_is_reused_and_the_fork_point_gets_one(family):
    """States are kept where prompts end and where others forked off, and nowhere else unasked."""
    trunk = tokens(4, 45)
    async with engine_of(family) as engine:
        reused = []
        for branch in range(3):
            prompt = trunk + tokens(100 + branch, 30)
            async with await engine.start(prompt) as sequence:
                reused.append((sequence.lease.length, sequence.lease.full_match))
                assert same(await through(sequence), cold(family, prompt))
        assert reused == [(0, 0), (0, 40), (40, 40)]
