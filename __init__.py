"""banyankv: an embeddable prefix cache for hybrid language models.

One radix tree of token prefixes, components that say what may be reused, tiers that say where the
bytes are; each an actor, all inside your own trio program. Start with `open_cache`.
"""

from __future__ import annotations

from .errors import ActorCrashed as ActorCrashed
from .errors import ActorStopped as ActorStopped
from .errors import BanyanError as BanyanError
from .errors import Closed as Closed
from .errors import ConfigError as ConfigError
from .errors import DeadlineExceeded as DeadlineExceeded
from .errors import IntegrityError as IntegrityError
from .errors import MailboxFull as MailboxFull
from .errors import NamespaceMismatch as NamespaceMismatch
from .errors import NoCapacity as NoCapacity
from .errors import Reentry as Reentry
from .errors import StaleLease as StaleLease
from .errors import TierUnavailable as TierUnavailable
from .errors import WouldWait as WouldWait
from .runtime.cache import Cache as Cache
from .runtime.cache import open_cache as open_cache
from .runtime.config import CacheConfig as CacheConfig
from .runtime.config import StoreConfig as StoreConfig
from .runtime.lease import Lease as Lease
from .runtime.planning import Verdict as Verdict
from .runtime.stats import CacheStats as CacheStats
from .runtime.stats import HitTokens as HitTokens
from .spec import ModelSpec as ModelSpec
from .spec import Namespace as Namespace
from .spec import PagedSpec as PagedSpec
from .spec import SnapshotSpec as SnapshotSpec
from .spec import StateTensor as StateTensor
from .spec import Tier as Tier
