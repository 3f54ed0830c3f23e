"""The way from the public face to the cache actor: what `Cache` and its leases share."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Any, TypeVar

import trio
from trio.lowlevel import checkpoint, checkpoint_if_cancelled

from ..actors import Message, Ref, Trace
from ..components.contract import TreeComponent
from ..errors import ActorStopped, Closed, ConfigError
from ..spec import ModelSpec, PagedSpec
from ..tiers.fences import Fences
from .arguments import require_text

T = TypeVar("T")

_YIELD_SECONDS = 0.001
"""Seconds that a caller may run on answers that never waited before a call yields for it."""

_CLOSED = "the cache has closed; what it held is forgotten"


class Port:
    """Ask the cache actor on behalf of callers, and know what its leases need to know of the model.

    `closed` says that the block of `open_cache` has been left: nothing is held any more.
    """

    __slots__ = (
        "_paged",
        "_snapshots",
        "_yield_due",
        "closed",
        "fences",
        "page_size",
        "ref",
        "rules",
        "windowed",
    )

    def __init__(
        self, model: ModelSpec, rules: tuple[TreeComponent, ...], ref: Ref[Any], fences: Fences
    ) -> None:
        self.ref = ref
        self.fences = fences
        self.closed = False
        self.page_size = model.page_size
        self.rules = rules
        self.windowed = tuple(
            index for index, rule in enumerate(rules) if not (rule.snapshot or rule.base)
        )
        components = list(enumerate(model.components))
        self._paged = {c.name: index for index, c in components if isinstance(c, PagedSpec)}
        self._snapshots = {c.name: index for index, c in components if c.name not in self._paged}
        self._yield_due = 0.0

    def index(self, component: str, *, snapshot: bool) -> int:
        """Return a component's place in the model; refuse the wrong kind."""
        known = self._snapshots if snapshot else self._paged
        index = known.get(require_text("component", component))
        if index is None:
            kind = "snapshot" if snapshot else "paged"
            names = ", ".join(known) or "none"
            raise ConfigError(f"{component!r} is no {kind} component; there is {names}")
        return index

    def yield_if_due(self) -> Awaitable[None]:
        """Check for cancellation, and yield where the caller has run for a millisecond."""
        now = time.monotonic()
        if now > self._yield_due:
            self._yield_due = now + _YIELD_SECONDS
            return checkpoint()  # noqa: ASYNC105 - the caller awaits it
        return checkpoint_if_cancelled()  # noqa: ASYNC105 - the caller awaits it

    async def ask(self, msg: Message[T], trace: Trace | None = None) -> T:
        """Have an operation done, waiting where it waits; look for cancellation first."""
        await self.yield_if_due()
        try:
            return await self.ref.ask(msg, trace=trace)
        except ActorStopped as error:
            self.refuse_stopped(error)
            raise

    async def ask_shielded(self, msg: Message[Any], trace: Trace | None = None) -> Any:
        """Have an operation done even for a cancelled caller."""
        with trio.CancelScope(shield=True):
            return await self.ref.ask(msg, trace=trace)

    def refuse_stopped(self, error: BaseException) -> None:
        """Raise Closed in place of the kernel's word that the cache actor has stopped."""
        if isinstance(error, ActorStopped):
            raise Closed(_CLOSED, error) from error

    def refuse_closed(self) -> None:
        """Raise Closed where the cache actor has stopped for good."""
        if self.ref.stopped:
            raise Closed(_CLOSED)
