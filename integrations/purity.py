"""Whether a prefix's keys, values and states depend on the tokens before them only: what reuse rests on.

Where they depend on more, a model is refused by name; where that begins at a length, sequences are
kept shorter (`longest`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from transformers import PreTrainedModel

from ..errors import ConfigError

_FROM_ZERO = (
    "when it is fed more than one token, it begins from an empty state whatever is stored, and token "
    "by token reuse costs more than it saves"
)
_BOTH_WAYS = "its prompt is attended to in both directions"
_REFUSED = {
    "big_bird": "which tokens it attends to depends on the length of the whole sequence",
    "cpmant": _BOTH_WAYS,
    "jamba": _FROM_ZERO,
    "minimax": "it keeps its lightning attention's states in a cache class of its own",
    "paligemma": _BOTH_WAYS,
    "recurrent_gemma": "it keeps its recurrent states on the modules, not in the cache object",
    "zamba": _FROM_ZERO,
}
"""Model types that cannot be continued from a stored prefix, and why."""

_BY_LENGTH = {"longrope", "su"}
"""Rotary embeddings with one set of frequencies up to a length and another beyond it."""


def model_type(model: PreTrainedModel) -> str:
    """Return the name of a model's kind: that of its decoder where it has several parts."""
    return str(model.config.get_text_config(decoder=True).model_type)


def refuse_impure(model: PreTrainedModel) -> None:
    """Raise ConfigError for a model whose prefixes depend on more than their tokens."""
    kind = model_type(model)
    for name in (model.config.model_type, kind):
        if name in _REFUSED:
            raise ConfigError(f"{name} cannot be continued from a stored prefix: {_REFUSED[name]}")
    if model.config.is_encoder_decoder:
        raise ConfigError(f"{kind} is an encoder and a decoder; only decoders are supported")
    if getattr(model.config.get_text_config(decoder=True), "prefix_lm", False):
        raise ConfigError(
            f"{kind} cannot be continued from a stored prefix: {_BOTH_WAYS} unless its configuration "
            "says prefix_lm=False"
        )
    if getattr(model.config, "is_decoder", True) is False:
        raise ConfigError(
            f"{kind} cannot be continued from a stored prefix: it attends in both directions unless "
            "its configuration says is_decoder=True"
        )
    for module in model.modules():
        # Only attention that keeps its keys in a cache is numbered; a vision tower's is not.
        numbered = getattr(module, "layer_idx", None) is not None
        if numbered and not getattr(module, "is_causal", True):
            raise ConfigError(
                f"{kind} cannot be continued from a stored prefix: its {type(module).__name__} is not "
                "causal: tokens depend on more than those before them"
            )


def longest(model: PreTrainedModel) -> int | None:
    """Return how many tokens a sequence may have; None where no number of them changes the keys.

    Dynamic and longrope scaling choose the rotary frequencies of *all* tokens by the length of the
    whole sequence. Up to that length the frequencies are always the same ones.
    """
    least = min(_limits(model), default=None)
    if least is not None and least < 1:
        raise ConfigError(
            f"{model_type(model)} does not say up to how many tokens its rotary embedding stays the same"
        )
    return least


def _limits(model: PreTrainedModel) -> Iterator[int]:
    config = model.config.get_text_config(decoder=True)
    for rope in _ropes(config):
        kind = str(rope.get("rope_type", rope.get("type")))
        if kind in _BY_LENGTH:
            name = "original_max_position_embeddings"
            yield int(rope.get(name) or getattr(config, name, None) or 0)
        elif "dynamic" in kind:
            yield int(config.max_position_embeddings) - 1
    for module in model.modules():
        # One name, or a name for each type of layer.
        if "dynamic" in str(getattr(module, "rope_type", None)):
            # One less than where the frequencies grow: only below it does the module take its first
            # frequencies up again when somebody else has run a longer sequence.
            yield cast("int", module.original_max_seq_len) - 1


def _ropes(config: Any) -> Iterator[dict[str, Any]]:
    """Find the parameters of all rotary embeddings: one for the model, or one for each type of layer."""
    found: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    nested = cast(
        "list[dict[str, Any]]", [rope for rope in found.values() if isinstance(rope, dict)]
    )
    yield from (found, *nested)
