"""The alarm of what has deadlines: one sleeping task, however many deadlines there are."""

from __future__ import annotations

from math import inf

import trio

from ...actors import Coordinator
from .. import messages as m

_IDLE = 3
"""Rounds of the event loop in which its actor has nothing to do, between an alarm and what it is for:
who was just refused may release, and what that gives back serves others first."""

_ROUNDS = 300
"""Rounds that others may run at most: an alarm of a busy actor comes late, not never."""


class Alarm:
    """Send `RoomTimeout` to its actor when a time has come; used inside its operations only.

    Who gets its message says `rung`, and sets it again where something is still to come.
    """

    __slots__ = ("_actor", "_scope")

    def __init__(self, actor: Coordinator) -> None:
        self._actor = actor
        self._scope: trio.CancelScope | None = None

    @property
    def is_set(self) -> bool:
        """Whether it is to ring, or has rung and nobody has said so yet."""
        return self._scope is not None

    def set(self, at: float) -> None:
        """Ring at this time (trio time), or before where it is set for an earlier one."""
        if self._scope is None:
            if at < inf:
                self._scope = trio.CancelScope(deadline=at)
                self._actor.start(self._sleep, self._scope)
        elif at < self._scope.deadline:
            self._scope.deadline = at

    def rung(self) -> None:
        """Note that its message came."""
        self._scope = None

    async def _sleep(self, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep_forever()
        ref, idle = self._actor.ref, 0
        for _ in range(_ROUNDS):
            await trio.lowlevel.checkpoint()
            idle = idle + 1 if ref.idle else 0
            if idle == _IDLE:
                break
        await ref.ask(m.RoomTimeout())
