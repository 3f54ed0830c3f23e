"""What an embedder configures: the model, room on each tier, policies and deadlines."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..components.policies import POLICIES
from ..errors import ConfigError
from ..spec import ModelSpec
from .arguments import require_int, require_one_of, require_rate, require_seconds, require_text


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The embedded L3 store: a folder, and the bytes that it may take."""

    path: str
    max_bytes: int

    def __post_init__(self) -> None:
        if not require_text("store: path", self.path) or "\0" in self.path:
            raise ConfigError(f"store: path must name a folder, not {self.path!r}")
        if not 1 << 20 <= require_int("store: max_bytes", self.max_bytes) < 1 << 63:
            raise ConfigError(
                f"store: max_bytes must be at least 1 MiB and fit into 63 bits, not {self.max_bytes}"
            )


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that `open_cache` needs to know. Raises ConfigError for what cannot work.

    `l1` and `l2` give the room of each component in *pages* (slots, for a snapshot component); L2's
    pools share one arena of that many bytes elastically. No `l2` means no host tier, and then there
    can be no `store` either. `room_timeout` is how long, in seconds, a request waits for room when
    it gives no deadline of its own; `prefetch_threshold` is the number of tokens below which asking
    the store is not worth it. `audit_rate` is how many slices of an audit are done a second: each takes
    about a millisecond at most, and many together prove all that `check()` does while requests run; 0
    means none.
    """

    model: ModelSpec
    l1: dict[str, int]
    l2: dict[str, int] | None = None
    store: StoreConfig | None = None
    policy: str = "lru"
    room_timeout: float = 10.0
    prefetch_threshold: int = 256
    store_timeout: float = 5.0
    audit_rate: float = 0.0
    dispatch: str = "direct"
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.model, ModelSpec):
            raise ConfigError(f"model must be a ModelSpec, not {self.model!r}")
        self._check_room("l1", self.l1)
        if self.l2 is not None:
            self._check_room("l2", self.l2)
        if self.store is not None:
            if not isinstance(self.store, StoreConfig):
                raise ConfigError(f"store must be a StoreConfig or None, not {self.store!r}")
            if self.l2 is None:
                raise ConfigError("a store needs an l2: objects are read into host memory first")
        require_one_of("policy", self.policy, POLICIES)
        require_one_of("dispatch", self.dispatch, ("direct", "mailbox"))
        require_text("device", self.device)
        require_int("seed", self.seed)
        require_int("prefetch_threshold", self.prefetch_threshold, 1)
        if require_seconds("room_timeout", self.room_timeout) < 0:
            raise ConfigError(f"room_timeout must not be negative, not {self.room_timeout}")
        require_rate("audit_rate", self.audit_rate)
        if require_seconds("store_timeout", self.store_timeout) <= 0:
            raise ConfigError(f"store_timeout must be positive, not {self.store_timeout}")

    def _check_room(self, tier: str, pages: object) -> None:
        names = sorted(component.name for component in self.model.components)
        if not isinstance(pages, Mapping) or set(pages) != set(names):
            raise ConfigError(
                f"{tier}: give the pages of each of {', '.join(names)}; got {pages!r}"
            )
        for name in names:
            require_int(f"{tier}: the pages of {name}", pages[name], 1)
