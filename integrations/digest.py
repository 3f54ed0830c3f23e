"""A digest of a model's configuration and weights: what tells its stored bytes from another's.

Every byte of every parameter and buffer counts, as it is in memory: a checkpoint's own hashes would not
know what was merged, converted or edited after loading.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from transformers import PreTrainedModel

from ..errors import ConfigError

_VOLATILE = ("transformers_version", "_name_or_path", "use_cache")
_ADVICE = "give describe(digest=...) something that changes whenever the weights do"


def model_digest(model: PreTrainedModel, weights: str | None = None) -> str:
    """Digest a model's configuration, the names, shapes and dtypes of its tensors, and their bytes.

    `weights` stands in place of the bytes. Raises ConfigError where bytes cannot be read: on the meta
    device, in some quantised tensors; and for adapters, which are switched without changing a byte.
    """
    config = model.config.to_dict()
    for name in _VOLATILE:
        config.pop(name, None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    tensors = list(_tensors(model))
    for name, tensor in tensors:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
    if weights is not None:
        digest.update(weights.encode())
    else:
        if getattr(model, "peft_config", None):
            raise ConfigError(
                f"the model has adapters that are not merged: merge them, or {_ADVICE}"
            )
        # Hashing lets go of the interpreter's lock: as fast as there are cores.
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for part in pool.map(_hash, tensors):
                digest.update(part)
    return digest.hexdigest()[:16]


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Find all tensors that the model computes with; those that are tied, once."""
    # The state holds what quantised layers keep beside their weights, the buffers what is not saved.
    seen: set[int] = set()
    for name, tensor in [*model.state_dict(keep_vars=True).items(), *model.named_buffers()]:
        if not isinstance(tensor, torch.Tensor):
            raise ConfigError(f"{name} is no tensor but a {type(tensor).__name__}: {_ADVICE}")
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def _hash(named: tuple[str, torch.Tensor]) -> bytes:
    name, tensor = named
    try:
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu()
        return hashlib.sha256(flat.numpy().data).digest()
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"the bytes of {name} cannot be read ({error}): {_ADVICE}") from error
