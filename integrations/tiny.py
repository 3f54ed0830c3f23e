"""Tiny random models of the families that Transformers has: for the demo, `verify-layers` and tests.

Vocabulary 256, 0.05 to 0.4 million parameters, float32. They say nothing sensible, but they say it
exactly: every parameter carries a little noise, because with zero biases and equal gates a recurrence
would hardly matter, and a wrong state would go unnoticed.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ..errors import ConfigError

WINDOW = 16
"""The sliding window (Llama 4: chunk) of the tiny models in tokens, the current one included."""

_NOISE = 0.02

_COMMON: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_FULL, _SLIDING, _LINEAR = "full_attention", "sliding_attention", "linear_attention"
_DELTA_NET = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_MOE = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 32}


class Family(msgspec.Struct, frozen=True):
    """One family: Transformers' name of the model type, and what makes it tiny."""

    model_type: str
    config: dict[str, Any]


FAMILIES: dict[str, Family] = {
    "lara-mini": Family(
        "lara_mini",
        {
            "num_hidden_layers": 5,
            "layer_types": [_LINEAR, _SLIDING, _LINEAR, _FULL, _SLIDING],
            "sliding_window": WINDOW,
            "head_dim": 16,
            "shared_expert_intermediate_size": 32,
        }
        | _DELTA_NET
        | _MOE,
    ),
    "lfm3": Family(
        "lfm3",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", _SLIDING, "conv", _FULL],
            "sliding_window": WINDOW,
            "head_dim": 16,
            "intermediate_size": 128,
        },
    ),
    "zaya": Family(
        "zaya",
        {
            "num_hidden_layers": 4,
            "layer_types": ["hybrid", "hybrid_sliding", "hybrid", "hybrid_sliding"],
            "sliding_window": WINDOW,
            "head_dim": 16,
            "moe_intermediate_size": 32,
            "num_experts": 4,
            "router_hidden_size": 32,
        },
    ),
    "inkling2": Family(
        "inkling2_text",
        {
            "unpadded_vocab_size": 256,
            "num_hidden_layers": 4,
            "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"],
            "sliding_window_size": WINDOW,
            "head_dim": 16,
            "swa_head_dim": 16,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2,
            "d_rel": 8,
            "rel_extent": 64,
            "moe_intermediate_size": 32,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_layers_per_attn_res_block": 2,
        },
    ),
    "gemma3": Family(
        "gemma3_text",
        {
            "num_hidden_layers": 4,
            "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL],
            "sliding_window": WINDOW,
            "head_dim": 16,
            "intermediate_size": 128,
            "query_pre_attn_scalar": 16,
        },
    ),
    "gpt-oss": Family(
        "gpt_oss",
        {
            "num_hidden_layers": 4,
            "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL],
            "sliding_window": WINDOW,
            "head_dim": 16,
            "intermediate_size": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "llama4": Family(
        "llama4_text",
        {
            "num_hidden_layers": 4,
            "layer_types": ["chunked_attention", _FULL, "chunked_attention", _FULL],
            "no_rope_layers": [1, 0, 1, 0],
            "attention_chunk_size": WINDOW,
            "head_dim": 16,
            "intermediate_size": 64,
            "intermediate_size_mlp": 64,
            "num_local_experts": 4,
            "interleave_moe_layer_step": 2,
        },
    ),
    "qwen3-next": Family(
        "qwen3_next",
        {
            "num_hidden_layers": 4,
            "layer_types": [_LINEAR, _FULL, _LINEAR, _FULL],
            "head_dim": 16,
            "intermediate_size": 128,
            "shared_expert_intermediate_size": 32,
        }
        | _DELTA_NET
        | _MOE,
    ),
    "qwen3.5": Family(
        "qwen3_5_text",
        {
            "num_hidden_layers": 4,
            "layer_types": [_LINEAR, _FULL, _LINEAR, _FULL],
            "head_dim": 16,
            "intermediate_size": 128,
        }
        | _DELTA_NET,
    ),
    "olmo-hybrid": Family(
        "olmo_hybrid",
        {
            "num_hidden_layers": 4,
            "layer_types": [_LINEAR, _FULL, _LINEAR, _FULL],
            "intermediate_size": 128,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 4,
        },
    ),
    "kimi-linear": Family(
        "kimi_linear",
        {
            "num_hidden_layers": 4,
            "layer_types": [_LINEAR, _FULL, _LINEAR, _FULL],
            "num_key_value_heads": 4,
            "intermediate_size": 128,
            "moe_intermediate_size": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "kv_lora_rank": 24,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "linear_head_dim": 16,
            "linear_num_heads": 4,
        },
    ),
    "falcon-h1": Family(
        "falcon_h1",
        {"num_hidden_layers": 3, "intermediate_size": 128, "head_dim": 16, "mamba_d_ssm": 128}
        | _MAMBA2,
    ),
    "granite-hybrid": Family(
        "granitemoehybrid",
        {
            "num_hidden_layers": 4,
            "layer_types": [_LINEAR, _FULL, _LINEAR, _FULL],
            "intermediate_size": 64,
            "shared_intermediate_size": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        }
        | _MAMBA2,
    ),
    "nemotron-h": Family(
        "nemotron_h",
        {
            "layers_block_type": [_LINEAR, "mlp", _FULL, _LINEAR, "moe", _FULL],
            "head_dim": 16,
            "intermediate_size": 128,
            "ssm_state_size": 16,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "chunk_size": 32,
            "n_routed_experts": 4,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 32,
        },
    ),
    "zamba2": Family(
        "zamba2",
        {
            "num_hidden_layers": 4,
            "layers_block_type": [_LINEAR, "hybrid", _LINEAR, "hybrid"],
            "num_key_value_heads": 4,
            "intermediate_size": 128,
            "mamba_d_state": 16,
            "n_mamba_heads": 8,
            "chunk_size": 32,
            "adapter_rank": 16,
        },
    ),
    "lfm2": Family(
        "lfm2",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", _FULL, "conv", _FULL],
            "intermediate_size": 128,
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "bamba": Family(
        "bamba",
        {"num_hidden_layers": 4, "attn_layer_indices": [1, 3], "intermediate_size": 128} | _MAMBA2,
    ),
    "jamba": Family(
        "jamba",
        {
            "num_hidden_layers": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "intermediate_size": 64,
            "num_experts": 4,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    "minimax": Family(
        "minimax",
        {
            "num_hidden_layers": 4,
            "layer_types": [_LINEAR, _FULL, _LINEAR, _FULL],
            "head_dim": 16,
            "intermediate_size": 64,
            "num_local_experts": 4,
            "block_size": 32,
        },
    ),
    "recurrent-gemma": Family(
        "recurrent_gemma",
        {
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "intermediate_size": 128,
            "lru_width": 64,
            "attention_window_size": WINDOW,
        },
    ),
}
"""By name: the first has FULL, SWA and recurrent layers in one; the last three are refused."""


def tiny_model(name: str, *, seed: int = 0) -> PreTrainedModel:
    """Make a tiny random model of the family `name`, in evaluation mode on the CPU.

    The same seed gives the same parameters; the caller's random state is left alone. Raises
    ConfigError for a name that is not in `FAMILIES`.
    """
    family = FAMILIES.get(name)
    if family is None:
        raise ConfigError(f"no tiny family {name!r}: give one of {', '.join(FAMILIES)}")
    config = AutoConfig.for_model(family.model_type, **(_COMMON | family.config))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = cast(
            "PreTrainedModel", AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        )
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=_NOISE)
    model.eval()
    return model
