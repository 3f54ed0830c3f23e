"""A prefix that depends on more than its tokens: refused by name, kept short, and found by comparing."""

import pytest

pytest.importorskip("transformers", reason="needs the extra transformers")

import torch
from banyankv import CacheConfig, ConfigError, open_cache
from banyankv.cli import main as cli
from banyankv.integrations import layout as layout_module
from banyankv.integrations import loading, purity
from banyankv.integrations.tiny import FAMILIES, Family, tiny_model
from banyankv.integrations.transformers import TransformersEngine, describe
from banyankv.integrations.verify import verify_layers
from transformers import AutoConfig, AutoModelForCausalLM

from .world import SERVED, layout_of, same, through, tokens

SWITCH = 256
"""Tokens up to which the rotary embedding of these models is the same."""

DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": SWITCH,
    "factor": 16.0,
    "short_factor": [1.0] * 8,
    "long_factor": [1.0 + 0.5 * i for i in range(8)],
}
SIZES = {"intermediate_size": 128, "num_hidden_layers": 2}
BY_LENGTH = {
    "dynamic": Family(
        "llama", SIZES | {"max_position_embeddings": SWITCH, "rope_parameters": DYNAMIC}
    ),
    "longrope": Family(
        "phi3",
        SIZES
        | {
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": SWITCH,
            "sliding_window": None,
            "rope_parameters": LONGROPE,
        },
    ),
    "longrope in one kind of layers": Family(
        "gemma3_text",
        FAMILIES["gemma3"].config
        | {
            "rope_parameters": {
                "full_attention": LONGROPE,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
}
LONGEST = {
    "dynamic": SWITCH - 1,
    "longrope": SWITCH,
    "longrope in one kind of layers": SWITCH,
}


@pytest.fixture(params=BY_LENGTH)
def by_length(request, monkeypatch):
    monkeypatch.setitem(FAMILIES, request.param, BY_LENGTH[request.param])
    model = tiny_model(request.param)
    _sharpen(model)
    return request.param, model


def _sharpen(model):
    """Let attention choose: where it hardly does, other keys would hardly be noticed."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(kind in name for kind in ("qkv_proj", "q_proj", "k_proj", "query", "key")):
                parameter.mul_(8)


def test_how_long_a_sequence_may_be(by_length):
    name, model = by_length
    assert describe(model).longest == LONGEST[name]


def test_names_of_older_configurations():
    model = tiny_model("lfm2")
    model.config.rope_parameters = {"type": "su", "original_max_position_embeddings": 512}
    assert purity.longest(model) == 512
    model.config.rope_parameters = {"type": "dynamic", "factor": 2.0}
    assert purity.longest(model) == model.config.max_position_embeddings - 1
    model.config.rope_parameters = {"type": "su"}
    with pytest.raises(ConfigError, match="does not say up to how many tokens"):
        purity.longest(model)


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_scaling_that_is_fixed_has_no_such_length(kind):
    rope = {
        "rope_type": kind,
        "rope_theta": 10000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048,
    }
    config = AutoConfig.for_model(
        "llama", vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, rope_parameters=rope,
    )  # fmt: skip
    assert purity.longest(AutoModelForCausalLM.from_config(config)) is None


def test_no_tested_family_has_such_a_length():
    assert {layout_of(name).longest for name in SERVED} == {None}


@pytest.mark.parametrize("batched", [False, True])
async def test_no_sequence_comes_to_where_its_keys_would_change(by_length, batched):
    _, model = by_length
    layout = describe(model)
    room = {component.name: 96 for component in layout.spec.components}
    async with open_cache(CacheConfig(model=layout.spec, l1=room)) as cache:
        engine = TransformersEngine(model, cache, layout, batched=batched)
        short = tokens(2, 9)
        async with (
            await engine.start(tokens(1, layout.longest - 1)) as sequence,
            await engine.start(short) as beside,
        ):
            with pytest.raises(ConfigError, match="are too many: beyond 25"):
                await engine.generate(sequence, 3)
            await through(sequence)
            await through(beside)
            for each in (sequence, beside):
                await each.push(7)
            await engine.step([sequence, beside])
            with pytest.raises(ConfigError, match="are too many: beyond 25"):
                await sequence.push(8)
            assert len(sequence.tokens) == layout.longest
            with torch.inference_mode():
                alone = model(torch.tensor([[*short, 7]])).logits[0, -1]
            assert same(beside.logits, alone)
        with pytest.raises(ConfigError, match="are too many: beyond 25"):
            await engine.start(tokens(3, layout.longest + 1))


async def test_comparing_finds_keys_that_depend_on_the_length(by_length, monkeypatch):
    """Were they not refused: a short prompt's keys are not a long one's."""
    _, model = by_length
    monkeypatch.setattr(layout_module, "longest", lambda _: None)
    report = await verify_layers(model)
    assert all(lengths.differs(0.0) for lengths in report.lengths)
    assert not report.lengths[0].differs(10.0)


async def test_comparing_finds_layers_that_do_not_go_on_from_their_state(monkeypatch):
    """Were it not refused: behind a state, Jamba's chunks begin from an empty one."""
    monkeypatch.setattr(purity, "_REFUSED", {})
    report = await verify_layers(tiny_model("jamba"))
    # Far behind the boundary, and in a tiny model, a state is hardly felt any more.
    assert [lengths.differs(0.0) for lengths in report.lengths] == [False, True]


async def test_comparing_finds_tokens_that_depend_on_those_behind(monkeypatch):
    bidirectional = Family("bert", {"num_hidden_layers": 2, "intermediate_size": 64})
    monkeypatch.setitem(FAMILIES, "bert", bidirectional)
    monkeypatch.setattr(layout_module, "refuse_impure", lambda _: None)
    model = tiny_model("bert")
    _sharpen(model)
    report = await verify_layers(model)
    assert report.lengths[1].differs(0.0)


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("jamba", "jamba cannot be continued .* begins from an empty state"),
        ("minimax", "minimax cannot be continued .*cache class of its own"),
        ("recurrent-gemma", "recurrent_gemma cannot be continued .*on the modules"),
    ],
)
def test_families_that_cannot_be_continued(family, why):
    with pytest.raises(ConfigError, match=why):
        describe(tiny_model(family))


@pytest.mark.parametrize("kind", ["bert", "rembert", "big_bird", "hrm_text"])
def test_models_that_look_in_both_directions(kind, monkeypatch):
    sizes = {"num_hidden_layers": 2, "intermediate_size": 64, "num_layers_per_stack": 1}
    monkeypatch.setitem(FAMILIES, kind, Family(kind, sizes))
    with pytest.raises(ConfigError, match=f"{kind} cannot be continued from a stored prefix"):
        describe(tiny_model(kind))


def test_attention_that_says_it_is_not_causal(monkeypatch):
    config = FAMILIES["gemma3"].config | {"use_bidirectional_attention": True}
    monkeypatch.setitem(FAMILIES, "both ways", Family("gemma3_text", config))
    with pytest.raises(ConfigError, match="its Gemma3Attention is not causal"):
        describe(tiny_model("both ways"))


def test_a_prefix_that_must_not_be_reused_is_told(by_length, monkeypatch, capsys):
    _, model = by_length
    monkeypatch.setattr(loading, "load", lambda _: model)
    assert cli.main(["verify-layers", "any"]) == 2
    assert "are too many: beyond 25" in capsys.readouterr().err
    monkeypatch.setattr(layout_module, "longest", lambda _: None)
    assert cli.main(["verify-layers", "any"]) == 1
    assert "a prefix depends on more than its tokens" in capsys.readouterr().out
