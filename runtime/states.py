"""States in slots of a request's own: copied at once, into a slot that eviction may have to make."""

from __future__ import annotations

from ..spec import Tier
from ..tiers import messages as t
from .parts import Parts
from .room import Room


class States:
    """Copy states for the cache actor; used inside its operations only."""

    def __init__(self, parts: Parts, room: Room) -> None:
        self._l1 = parts.tiers[Tier.L1]
        self._room = room

    async def clone(self, component: str, source: bytes, stream: int) -> bytes:
        """Copy a state, which eviction must not be able to take, to a new slot; empty where there is none."""
        cloned: t.Cloned | t.Short = await self._l1.ask(t.Clone(component, source, stream))
        if isinstance(cloned, t.Cloned):
            self._room.captured(cloned.fence)
            return cloned.slot
        got = await self._room.take(Tier.L1, ((component, 1),))
        if isinstance(got, t.Short):
            return b""
        await self.copy(component, source, got[0], stream)
        return got[0]

    async def copy(self, component: str, source: bytes, target: bytes, stream: int) -> None:
        """Copy a state to a slot that the request has already."""
        self._room.captured(await self._l1.ask(t.CopyState(component, source, target, stream)))
