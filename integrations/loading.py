"""Load a model by what a user calls it: a tiny family, or a folder."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from ..errors import ConfigError
from .tiny import FAMILIES, tiny_model


def load(model: str) -> PreTrainedModel:
    """Make the tiny model of a family, or load a Transformers model from a folder, in its own dtype.

    Never downloads. Raises ConfigError where `model` is neither.
    """
    logging.set_verbosity_error()  # kernels that are not installed are no news to a checker of bytes
    if model in FAMILIES:
        return tiny_model(model)
    if not (Path(model) / "config.json").is_file():
        raise ConfigError(
            f"{model!r} is neither a tiny family ({', '.join(FAMILIES)}) nor a folder with a "
            "Transformers model"
        )
    try:
        loaded = AutoModelForCausalLM.from_pretrained(model, local_files_only=True, dtype="auto")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{model}: {error}") from error
    loaded.eval()
    return cast("PreTrainedModel", loaded)
