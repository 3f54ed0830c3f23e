"""What tests of a cache's users may build on: stores that fail on purpose, and a seeded scheduler."""

from ..tiers.store.faulty import FaultyStore, StoreFault
from ..tiers.store.memory import MemoryStore
from .scheduler import seeded_scheduler

__all__ = ["FaultyStore", "MemoryStore", "StoreFault", "seeded_scheduler"]
