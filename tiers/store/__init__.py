"""L3: the store protocol, the stores we ship, and the tier in front of them."""

from .memory import MemoryStore
from .protocol import Store

__all__ = ["MemoryStore", "Store"]
