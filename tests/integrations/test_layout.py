"""What a model's cache holds, found out from the model; and what is refused by name."""

import pytest

pytest.importorskip("transformers", reason="needs the extra transformers")

import safetensors.torch
import torch
from banyankv import ConfigError, PagedSpec, SnapshotSpec, StateTensor
from banyankv.integrations import digest as digest_module
from banyankv.integrations import layout as layout_module
from banyankv.integrations import purity
from banyankv.integrations.loading import load
from banyankv.integrations.tiny import tiny_model
from banyankv.integrations.transformers import describe
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.cache_utils import DynamicSlidingWindowLayer

from .world import SERVED, layout_of, model_of


def test_everything_in_one():
    layout = layout_of("lara-mini")
    full, swa, mamba = layout.spec.components
    assert full == PagedSpec(name="full", layers=1, kv_heads=2, head_dim=16, dtype="float32")
    # The model's window is 16 with the current token: behind a boundary it needs 15.
    assert swa == PagedSpec(
        name="swa", rule="swa", window=15, layers=2, kv_heads=2, head_dim=16, dtype="float32"
    )
    assert mamba == SnapshotSpec(
        states=(
            StateTensor("layer0_conv0", (128, 4)),
            StateTensor("layer0_recurrent0", (4, 16, 16)),
            StateTensor("layer2_conv0", (128, 4)),
            StateTensor("layer2_recurrent0", (4, 16, 16)),
        )
    )
    assert [layout.keeps(layer) for layer in range(5)] == ["mamba", "swa", "mamba", "full", "swa"]


def test_layers_that_hold_two_kinds_and_several_states():
    layout = layout_of("inkling2")
    assert [layout.keeps(layer) for layer in range(4)] == ["swa+mamba", "full+mamba"] * 2
    assert len(layout.states) == 16


def test_keys_and_values_of_different_widths_share_a_row():
    layout = layout_of("kimi-linear")
    full = layout.spec.components[0]
    assert (full.tensors, full.kv_heads, full.head_dim) == (1, 1, 24 + 8)
    assert layout.split == {"full": 24}


def test_layers_without_a_cache():
    layout = layout_of("nemotron-h")
    assert [layout.keeps(layer) for layer in range(6)] == [
        "mamba", "nothing", "full", "mamba", "nothing", "full",
    ]  # fmt: skip


def test_shapes_follow_the_dtype():
    model = tiny_model("lara-mini").to(torch.bfloat16)
    full, swa, mamba = describe(model).spec.components
    assert full.dtype == swa.dtype == "bfloat16"
    assert {state.dtype for state in mamba.states} == {"bfloat16", "float32"}


def test_the_name_follows_weights_and_configuration():
    model = tiny_model("gemma3")
    name = describe(model).spec.name
    assert describe(tiny_model("gemma3")).spec.name == name
    assert describe(tiny_model("gemma3", seed=1)).spec.name != name
    assert describe(model, digest="mine").spec.name != name
    assert describe(model, digest="mine").spec.name != describe(model, digest="yours").spec.name
    mine = describe(model, digest="mine").spec.name
    model.config.rope_parameters["full_attention"]["rope_theta"] = 1234.0
    assert describe(model).spec.name != name
    assert describe(model, digest="mine").spec.name != mine


def tall():
    """Make a model with matrices of thousands of rows."""
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=16,
        intermediate_size=4096,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval()


def edits():
    def one_value(model):
        model.model.embed_tokens.weight[4321, 7] += 1e-3

    def all_but_a_column(model):
        model.model.layers[0].mlp.up_proj.weight[:, 1:].mul_(-1)

    def a_buffer_that_is_not_saved(model):
        model.model.rotary_emb.inv_freq[1] *= 2

    def merged(model):
        low, high = torch.ones(16, 1), torch.full((1, 16), 1e-3)
        model.model.layers[0].self_attn.q_proj.weight.add_(low @ high)

    def a_view_of_another_order(model):
        weight = model.model.layers[0].self_attn.q_proj.weight
        weight.data = weight.data.t()

    return [
        one_value,
        all_but_a_column,
        a_buffer_that_is_not_saved,
        merged,
        a_view_of_another_order,
    ]


@pytest.mark.parametrize("edit", edits(), ids=lambda edit: edit.__name__)
def test_every_byte_of_the_weights_counts(edit):
    model = tall()
    name = describe(model).spec.name
    assert describe(tall()).spec.name == name
    with torch.no_grad():
        edit(model)
    assert describe(model).spec.name != name


def test_weights_that_are_tied_are_read_once(monkeypatch):
    read = []
    whole = digest_module._hash
    monkeypatch.setattr(digest_module, "_hash", lambda named: read.append(named[0]) or whole(named))
    describe(tall())
    assert len(read) == len(set(read))
    assert "model.embed_tokens.weight" in read
    assert "lm_head.weight" not in read


def test_weights_whose_bytes_cannot_be_read():
    model = tall()
    layer = model.model.layers[0].mlp
    layer.register_buffer("scales", torch.ones(3, device="meta"))
    with pytest.raises(ConfigError, match=r"mlp.scales cannot be read .* give describe\(digest="):
        describe(model)
    assert describe(model, digest="mine").spec.name.startswith("llama-")


def test_adapters_are_switched_without_changing_a_byte():
    model = tall()
    model.peft_config = {"default": object()}
    with pytest.raises(ConfigError, match=r"adapters that are not merged.* give describe\(digest="):
        describe(model)
    assert describe(model, digest="default of today").spec.name.startswith("llama-")


def test_states_outside_the_cache_are_noticed_in_any_family(monkeypatch):
    monkeypatch.setattr(purity, "_REFUSED", {})
    with pytest.raises(ConfigError, match=r"layer 0 of recurrent_gemma \(LinearAttentionLayer\)"):
        describe(tiny_model("recurrent-gemma"))
    with pytest.raises(ConfigError, match="minimax does not run on a DynamicCache"):
        describe(tiny_model("minimax"))


def test_an_unknown_kind_of_layer(monkeypatch):
    class Novel(DynamicSlidingWindowLayer):
        pass

    kinds = layout_module.DynamicCache.__init__.__globals__["DYNAMIC_LAYER_TYPE_MAPPING"]
    monkeypatch.setitem(kinds, "sliding_attention", Novel)
    with pytest.raises(ConfigError, match="layer 0 of gemma3_text is a Novel, .* not supported"):
        describe(model_of("gemma3"))


def test_a_model_with_windows_only():
    config = MistralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=8,
    )
    with pytest.raises(ConfigError, match="mistral has no full-attention layer"):
        describe(AutoModelForCausalLM.from_config(config).eval())


def test_an_encoder_decoder():
    config = T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_decoder_layers=1, num_heads=2
    )
    with pytest.raises(ConfigError, match="t5 is an encoder and a decoder"):
        describe(T5ForConditionalGeneration(config).eval())


def test_a_window_of_one_token():
    model = tiny_model("gemma3")
    model.config.sliding_window = 1
    with pytest.raises(ConfigError, match="layer 0 of gemma3_text has a window of 1"):
        describe(model)


def test_loading(tmp_path):
    model = tiny_model("lfm2")
    model.save_pretrained(tmp_path)
    loaded = load(str(tmp_path))
    assert describe(loaded).spec == describe(model).spec
    with pytest.raises(ConfigError, match="neither a tiny family"):
        load(str(tmp_path / "nothing"))
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=f"{tmp_path}: .*Error"):
        load(str(tmp_path))
    kept = safetensors.torch.load(whole)
    safetensors.torch.save_file(
        {name: t for name, t in kept.items() if "layers.2" not in name}, weights
    )
    with pytest.raises(ConfigError, match=r"lacks \d+ weights, first model.layers.2"):
        load(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "no such model"}')
    with pytest.raises(ConfigError, match="no such model"):
        load(str(tmp_path))


def test_tiny_models_are_tiny_and_repeatable():
    for family in SERVED:
        count = sum(parameter.numel() for parameter in model_of(family).parameters())
        assert 50_000 < count < 500_000, family
    before = torch.random.get_rng_state()
    one, other = tiny_model("lfm2"), tiny_model("lfm2")
    assert torch.equal(torch.random.get_rng_state(), before)
    for (name, value), same in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(value, same), name
        assert value.std() > 0, name
    with pytest.raises(ConfigError, match="no tiny family 'gpt-5'"):
        tiny_model("gpt-5")
