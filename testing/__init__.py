"""Tools for the tests of programs that use a cache.

Stores in memory and stores that fail on purpose, a seeded scheduler, a device that does its work late,
and the component suite for authors of rules.
"""

from ..tiers.store.faulty import FaultyStore, SeededFaults, StoreFailure, StoreFault
from ..tiers.store.memory import MemoryStore
from .component_suite import check_rule
from .late_work import SimulatedEvent, SimulatedStream
from .scheduler import seeded_scheduler
from .simulated_device import SimulatedDevice, simulated_device

__all__ = [
    "FaultyStore",
    "MemoryStore",
    "SeededFaults",
    "SimulatedDevice",
    "SimulatedEvent",
    "SimulatedStream",
    "StoreFailure",
    "StoreFault",
    "check_rule",
    "seeded_scheduler",
    "simulated_device",
]
