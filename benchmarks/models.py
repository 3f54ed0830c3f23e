"""The models that are measured. Their bytes are few: what is measured is bookkeeping."""

from __future__ import annotations

from ..runtime.config import CacheConfig
from ..spec import ComponentSpec, ModelSpec, PagedSpec, SnapshotSpec, StateTensor

WINDOW = 128

_FULL = PagedSpec(name="full", tensors=1)
_SWA = PagedSpec(name="swa", rule="swa", window=WINDOW, tensors=1)
_MAMBA = SnapshotSpec(states=(StateTensor("state", (16,)),))

MODELS: dict[str, tuple[ComponentSpec, ...]] = {
    "FULL": (_FULL,),
    "FULL+SWA": (_FULL, _SWA),
    "FULL+MAMBA": (_FULL, _MAMBA),
    "FULL+SWA+MAMBA": (_FULL, _SWA, _MAMBA),
}


def configure(model: str, page: int, tokens: int, states: int = 1) -> CacheConfig:
    """Configure a cache of one tier with room for so many tokens and states."""
    spec = ModelSpec(name=model, page_size=page, components=MODELS[model])
    return CacheConfig(
        model=spec,
        l1={
            component.name: (tokens // page if isinstance(component, PagedSpec) else states)
            for component in spec.components
        },
    )


def has_states(model: str) -> bool:
    """Say whether turns of this model leave a state at their end."""
    return _MAMBA in MODELS[model]


def paged(model: str) -> tuple[str, ...]:
    """Name the components of a model that have page tables."""
    return tuple(part.name for part in MODELS[model] if isinstance(part, PagedSpec))
