"""The crew: the actors of one cache, each made anew for each of its lives.

    /                  all for one: at a crash of any of them all are started anew, in this order
    |-- tree
    |-- full, swa, ...
    |-- l1, l2
    |-- store          one for one: its crash is a store that failed for once
    |   '-- l3
    |-- controller
    '-- cache          puts the live leases back before it hears anybody

What all of them lose at a crash, and what not, is told in `coordinator/recovery.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..actors import Actor, ActorSystem, ChildSpec, Ref, SupervisorSpec

_MAILBOX = 1 << 20
"""As many as requests and operations can be outstanding: a notice that one is over must find room."""


class Crew:
    """Start actors, and know the one that lives, or lived last, at each name."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._present: dict[str, Actor] = {}

    async def start(self, name: str, make: Callable[[], Actor]) -> Ref[Any]:
        """Start an actor that all others are started anew with."""
        factory = self._keeping(name, make)
        return await self._system.spawn(factory, name=name, bound=_MAILBOX)

    async def start_apart(self, above: str, name: str, make: Callable[[], Actor]) -> Ref[Any]:
        """Start an actor below a supervisor of its own: the others need not follow its crash."""
        child = ChildSpec(factory=self._keeping(name, make), name=name, bound=_MAILBOX)
        await self._system.start_children(SupervisorSpec(name=above, children=(child,)))
        return self._system.find(f"/{above}/{name}")

    def _keeping(self, name: str, make: Callable[[], Actor]) -> Callable[[], Actor]:
        first = [
            make()
        ]  # before anything is started, so that bad arguments are refused as they are

        def factory() -> Actor:
            actor = self._present[name] = first.pop() if first else make()
            return actor

        return factory

    def present(self, name: str) -> Any:
        """Return the actor at a name; None where there was none so far."""
        return self._present.get(name)
