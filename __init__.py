"""banyankv: an embeddable prefix cache for hybrid language models.

One radix tree of token prefixes, components that say what may be reused, tiers that say where the
bytes are; each an actor, all inside your own trio program. Start with `open_cache`.
"""

from .errors import (
    ActorCrashed,
    ActorStopped,
    BanyanError,
    Closed,
    ConfigError,
    DeadlineExceeded,
    IntegrityError,
    LeaseInUse,
    MailboxFull,
    NoCapacity,
    Reentry,
    StaleLease,
    TicketCancelled,
    TierUnavailable,
    WouldWait,
    WrongHost,
)
from .hosts import asyncio as asyncio
from .hosts import threads as threads
from .runtime.cache import Cache, open_cache
from .runtime.config import CacheConfig, StoreConfig
from .runtime.coordinator.planning import Verdict
from .runtime.coordinator.stats import CacheStats
from .runtime.lease import Lease
from .runtime.messages import HitTokens
from .spec import ModelSpec, Namespace, PagedSpec, SnapshotSpec, StateTensor, Tier
from .telemetry import Telemetry, configure_telemetry
from .tiers.store.protocol import StoreNotKept, StoreSetAside

__all__ = [
    "ActorCrashed",
    "ActorStopped",
    "BanyanError",
    "Cache",
    "CacheConfig",
    "CacheStats",
    "Closed",
    "ConfigError",
    "DeadlineExceeded",
    "HitTokens",
    "IntegrityError",
    "Lease",
    "LeaseInUse",
    "MailboxFull",
    "ModelSpec",
    "Namespace",
    "NoCapacity",
    "PagedSpec",
    "Reentry",
    "SnapshotSpec",
    "StaleLease",
    "StateTensor",
    "StoreConfig",
    "StoreNotKept",
    "StoreSetAside",
    "Telemetry",
    "TicketCancelled",
    "Tier",
    "TierUnavailable",
    "Verdict",
    "WouldWait",
    "WrongHost",
    "configure_telemetry",
    "open_cache",
]
