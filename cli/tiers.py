"""The options that say how much room a cache has on each tier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError
from ..replay.presets import capacities
from ..runtime.config import CacheConfig, StoreConfig
from ..spec import ModelSpec


class TierOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens on L1 and L2 and the L3 store; refused where they do not fit together."""

    l1_tokens: int
    l2_tokens: int
    store: Path | None
    store_bytes: int

    def __post_init__(self) -> None:
        if self.l2_tokens < 0:
            raise ConfigError(f"--l2-tokens must be at least 0, not {self.l2_tokens}")
        if self.store is not None and not self.l2_tokens:
            raise ConfigError("--store needs an L2 to read into: give --l2-tokens")

    def config(self, model: ModelSpec, **options: Any) -> CacheConfig:
        """Make the configuration of a cache with this room; `options` are its other fields."""
        return CacheConfig(
            model=model,
            l1=capacities(model, self.l1_tokens),
            l2=capacities(model, self.l2_tokens) if self.l2_tokens else None,
            store=StoreConfig(path=str(self.store), max_bytes=self.store_bytes)
            if self.store
            else None,
            **options,
        )
