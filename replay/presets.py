"""Models to replay with: four small presets, or one's own in a TOML file.

A preset keeps the bytes small (8 a token of a paged component, 256 a state), so that a trace's whole
working set fits into an ordinary machine; what is reused when does not depend on them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..errors import ConfigError
from ..spec import ComponentSpec, ModelSpec, PagedSpec, SnapshotSpec, StateTensor

PAGE_SIZE = 16
"""Tokens of a page where nobody says otherwise."""

WINDOW = 128
"""Tokens that the presets' SWA component needs behind a boundary."""

SNAPSHOT_TOKENS = 256
"""One snapshot a so many tokens: the replay's grid, and what snapshot pools are sized for."""

SPARE_SNAPSHOTS = 64
"""Slots beyond that, for working states and fork points."""

MAX_TOML = 1 << 20
"""Bytes of a model's TOML file that are read at most."""

_FULL = PagedSpec(name="full", head_dim=2)
_SWA = PagedSpec(name="swa", rule="swa", window=WINDOW, head_dim=2)
_MAMBA = SnapshotSpec(states=(StateTensor("conv", (32,), "float16"), StateTensor("ssm", (6, 8))))

PRESETS: dict[str, tuple[ComponentSpec, ...]] = {
    "full": (_FULL,),
    "full+swa": (_FULL, _SWA),
    "full+mamba": (_FULL, _MAMBA),
    "full+swa+mamba": (_FULL, _SWA, _MAMBA),
}


def load_model(choice: str, page_size: int | None = None) -> ModelSpec:
    """Make the model that `choice` names: a preset, or a TOML file with a `ModelSpec`.

    `page_size` (tokens) replaces the file's or the presets' own. Raises `ConfigError`.
    """
    components = PRESETS.get(choice)
    if components is not None:
        size = PAGE_SIZE if page_size is None else page_size
        return ModelSpec(name=choice, page_size=size, components=components)
    if not choice.endswith(".toml"):
        raise ConfigError(
            f"no model {choice!r}: give {', '.join(PRESETS)} or a file that ends in .toml"
        )
    try:
        with Path(choice).open("rb") as file:
            text = file.read(MAX_TOML + 1)
        if len(text) > MAX_TOML:
            raise ConfigError(f"more than {MAX_TOML >> 10} KiB are no model")
        model = msgspec.toml.decode(text, type=ModelSpec)
    except OSError as error:
        raise ConfigError(f"{choice}: {error.strerror or error}") from None
    except RecursionError:
        raise ConfigError(f"{choice}: nested too deeply") from None
    except (msgspec.DecodeError, ValueError, ConfigError) as error:
        raise ConfigError(f"{choice}: {error}") from None
    if page_size is None:
        return model
    return msgspec.structs.replace(model, page_size=page_size)


def capacities(model: ModelSpec, tokens: int) -> dict[str, int]:
    """Size a tier for `tokens` tokens: pages of each paged component, slots of each snapshot."""
    return {
        component.name: (
            -(-tokens // model.page_size)
            if isinstance(component, PagedSpec)
            else tokens // SNAPSHOT_TOKENS + SPARE_SNAPSHOTS
        )
        for component in model.components
    }


def snapshot_grid(model: ModelSpec) -> int:
    """Where states are kept: each multiple of this many tokens, whole pages and whole L3 chunks."""
    return -(-SNAPSHOT_TOKENS // model.page_size) * model.page_size
