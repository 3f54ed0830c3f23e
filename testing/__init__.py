"""Tools for the tests of programs that use a cache.

Stores in memory and stores that fail on purpose, a seeded scheduler, and the component suite for
authors of rules.
"""

from ..tiers.store.faulty import FaultyStore, SeededFaults, StoreFailure, StoreFault
from ..tiers.store.memory import MemoryStore
from .component_suite import check_rule
from .scheduler import seeded_scheduler

__all__ = [
    "FaultyStore",
    "MemoryStore",
    "SeededFaults",
    "StoreFailure",
    "StoreFault",
    "check_rule",
    "seeded_scheduler",
]
