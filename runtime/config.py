"""What an embedder configures: the model, room on each tier, policies and deadlines."""

from __future__ import annotations

import msgspec

from ..components.policies import POLICIES
from ..errors import ConfigError
from ..spec import ModelSpec


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The embedded L3 store: a folder, and the bytes that it may take."""

    path: str
    max_bytes: int

    def __post_init__(self) -> None:
        if self.max_bytes < 1 << 20:
            raise ConfigError(f"store: max_bytes must be at least 1 MiB, not {self.max_bytes}")


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that `open_cache` needs to know. Raises ConfigError for what cannot work.

    `l1` and `l2` give the room of each component in *pages* (slots, for a snapshot component); L2's
    pools share one arena of that many bytes elastically. No `l2` means no host tier, and then there
    can be no `store` either. `room_timeout` is how long, in seconds, a request waits for room when
    it gives no deadline of its own; `prefetch_threshold` is the number of tokens below which asking
    the store is not worth it.
    """

    model: ModelSpec
    l1: dict[str, int]
    l2: dict[str, int] | None = None
    store: StoreConfig | None = None
    policy: str = "lru"
    room_timeout: float = 10.0
    prefetch_threshold: int = 256
    store_timeout: float = 5.0
    dispatch: str = "direct"
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        names = [component.name for component in self.model.components]
        for tier, pages in (("l1", self.l1), ("l2", self.l2)):
            if pages is None:
                continue
            if sorted(pages) != sorted(names):
                raise ConfigError(
                    f"{tier}: give the pages of each of {', '.join(names)}; got {', '.join(pages)}"
                )
            for name, count in pages.items():
                if count < 1:
                    raise ConfigError(f"{tier}: {name} needs at least one page, not {count}")
        if self.policy not in POLICIES:
            raise ConfigError(f"policy {self.policy!r} is not one of {', '.join(POLICIES)}")
        if self.store is not None and self.l2 is None:
            raise ConfigError("a store needs an l2: objects are read into host memory first")
        if self.dispatch not in ("direct", "mailbox"):
            raise ConfigError(f"dispatch must be 'direct' or 'mailbox', not {self.dispatch!r}")
        if self.room_timeout < 0 or self.store_timeout <= 0:
            raise ConfigError(
                "room_timeout must not be negative and store_timeout must be positive"
            )
        if self.prefetch_threshold < 1:
            raise ConfigError("prefetch_threshold must be at least 1 token")
