"""What is wrong is seen: the tests of equality can fail."""

import pytest

pytest.importorskip("transformers", reason="needs the extra transformers")

import msgspec
import torch
from banyankv import IntegrityError
from banyankv.cli import main as cli
from banyankv.integrations.tiny import FAMILIES, Family
from banyankv.integrations.transformers import TransformersEngine
from transformers.cache_utils import DynamicSlidingWindowLayer

from .world import (
    SERVED,
    WINDOW,
    cold,
    engine_of,
    has_states,
    layout_of,
    same,
    through,
    tokens,
)

SLIDING = [name for name in SERVED if layout_of(name).window]


@pytest.mark.parametrize("family", [name for name in SERVED if has_states(name)])
async def test_a_stale_state(family):
    """The state of another boundary in place of the right one moves the logits."""
    prompt = tokens(9, 60)
    async with engine_of(family) as engine:
        async with await engine.start(prompt[:25]) as sequence:
            await through(sequence)
        async with await engine.start(prompt[:49]) as sequence:
            await through(sequence)
        async with await engine.start(prompt[:26]) as sequence:
            assert sequence.lease.length == 24
            stale = sequence.kv.save_state()
        async with await engine.start(prompt) as sequence:
            assert sequence.lease.length == 48
            sequence.kv.load_state(stale)
            logits = await through(sequence)
    assert not same(logits, cold(family, prompt))


@pytest.mark.parametrize("family", [name for name in SLIDING if name != "llama4"])
async def test_a_window_without_its_oldest_token(family):
    """SWA's window is not one token longer than it must be."""
    prompt = tokens(10, 41)
    async with engine_of(family) as engine:
        async with await engine.start(prompt) as sequence:
            await through(sequence)
        async with await engine.start(prompt) as sequence:
            assert sequence.lease.length == 40
            for layer in sequence.kv.layers:
                if isinstance(layer, DynamicSlidingWindowLayer):
                    assert layer.keys.shape[2] == WINDOW - 1
                    with torch.inference_mode():
                        layer.values[:, :, 0] = 0
            logits = await through(sequence)
    assert not same(logits, cold(family, prompt))


@pytest.mark.parametrize("family", SLIDING)
async def test_a_window_one_short_is_refused(family):
    """With a page of one token, a lease of one less than the window lacks exactly the oldest token."""
    layout = layout_of(family, page=1)
    short = msgspec.structs.replace(
        layout.spec,
        components=tuple(
            msgspec.structs.replace(c, window=c.window - 1) if c.rule == "swa" else c
            for c in layout.spec.components
        ),
    )
    short_layout = msgspec.structs.replace(layout, spec=short)
    async with engine_of(family, page=1, layout=short_layout) as engine:
        async with await engine.start(tokens(11, 41)) as sequence:
            await through(sequence)
        with pytest.raises(IntegrityError, match="swa: the lease holds tokens from 26 on"):
            await engine.start(tokens(11, 41))


@pytest.mark.parametrize(
    ("family", "component"),
    [*((name, "full") for name in SERVED), *((name, "swa") for name in SLIDING)],
)
async def test_a_page_swapped_with_another_prompt_s(family, component):
    """(Swapped within a prompt, pages of full attention change nothing: keys know their positions.)"""
    prompt = tokens(12, 45)
    async with engine_of(family) as engine:
        pages = []
        for start in (tokens(13, 45), prompt):
            async with await engine.start(start) as sequence:
                await through(sequence)
                pages.append(sequence.lease.pages(component)[-2])
        one, other = pages
        for part in engine.cache.pools.view(component):
            part[[one, other]] = part[[other, one]].clone()
        async with await engine.start(prompt) as sequence:
            assert sequence.lease.length == 40
            logits = await through(sequence)
    assert not same(logits, cold(family, prompt))


@pytest.mark.parametrize(
    ("broken", "first"),
    [
        ("conv_states", "layer 0 (mamba)"),
        ("recurrent_states", "layer 0 (mamba)"),
        ("sliding", "layer 1 (swa)"),
        ("full", "layer 3 (full)"),
    ],
)
def test_verify_layers_names_the_first_layer_that_differs(monkeypatch, capsys, broken, first):
    whole = TransformersEngine.restore

    def restore(engine, lease):
        kv = whole(engine, lease)
        for layer in kv.layers if lease.length else ():
            for state in getattr(layer, broken, {}).values():
                state.add_(0.125)
            kind = "sliding" if isinstance(layer, DynamicSlidingWindowLayer) else "full"
            if broken == kind and getattr(layer, "keys", None) is not None:
                layer.keys = torch.roll(layer.keys, 1, 2)
        return kv

    monkeypatch.setattr(TransformersEngine, "restore", restore)
    assert cli.main(["verify-layers", "lara-mini"]) == 1
    written = capsys.readouterr().out
    assert [line for line in written.splitlines() if line.startswith("L1: ")] != []
    assert f"L1: {first} is the first that differs" in " ".join(written.split())


@pytest.mark.parametrize("family", ["lara-mini", "gemma3"])
def test_verify_layers_finds_nothing_wrong(capsys, family):
    assert cli.main(["verify-layers", family]) == 0
    assert "all layers agree bit for bit" in capsys.readouterr().out


def test_verify_layers_where_decoder_layers_are_not_one_list(monkeypatch, capsys):
    latent = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
    sizes = {
        "num_hidden_layers": 4,
        "num_layers": 2,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "v_head_dim": 16,
        "ffn_hidden_size": 64,
        "expert_ffn_hidden_size": 32,
        "n_routed_experts": 4,
        "moe_topk": 2,
        "zero_expert_num": 2,
    }
    monkeypatch.setitem(FAMILIES, "longcat", Family("longcat_flash", latent | sizes))
    assert cli.main(["verify-layers", "longcat"]) == 0
    assert "–" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["bart", "xlstm", "xlm"])
def test_verify_layers_has_one_line_for_what_it_cannot_run(monkeypatch, capsys, kind):
    monkeypatch.setitem(FAMILIES, kind, Family(kind, {"num_hidden_layers": 2, "num_heads": 4}))
    assert cli.main(["verify-layers", kind]) == 2
    said = capsys.readouterr().err
    assert f"banyankv: {kind} " in said
    assert said.count("\n") == 1
