"""Load a model by what a user calls it: a tiny family, or a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from ..errors import ConfigError
from .tiny import FAMILIES, tiny_model


def load(model: str) -> PreTrainedModel:
    """Make the tiny model of a family, or load a Transformers model from a folder, in its own dtype.

    Never downloads. Raises ConfigError where `model` is neither, and for a checkpoint that cannot be
    read or lacks weights.
    """
    logging.disable_progress_bar()  # a checkpoint that is refused gets one line, and no bar
    logging.set_verbosity_error()  # kernels that are not installed are no news to a checker of bytes
    if model in FAMILIES:
        return tiny_model(model)
    if not (Path(model) / "config.json").is_file():
        raise ConfigError(
            f"{model!r} is neither a tiny family ({', '.join(FAMILIES)}) nor a folder with a "
            "Transformers model"
        )
    try:
        loaded, told = cast(
            "tuple[PreTrainedModel, dict[str, Any]]",
            AutoModelForCausalLM.from_pretrained(
                model, local_files_only=True, dtype="auto", output_loading_info=True
            ),
        )
    except Exception as error:  # a damaged file may raise anything
        raise ConfigError(f"{model}: {type(error).__name__}: {error}") from error
    # Transformers makes up what is missing, at random.
    if lacking := sorted(told["missing_keys"]) + sorted(key for key, *_ in told["mismatched_keys"]):
        raise ConfigError(
            f"{model}: the checkpoint lacks {len(lacking)} weights, first {lacking[0]}"
        )
    loaded.eval()
    return loaded
