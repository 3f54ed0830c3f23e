"""The copy engine: pages between L1 and L2, a batch at a time.

Pages of a batch belong to the operation that runs it: tiers keep them in quarantine until the
operation says that it is over, which it may say only when `run` has returned or raised.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Protocol

import numpy as np
import trio

from ..actors.faults import Faults
from ..actors.observer import Fact, Observer
from ..errors import BanyanError, ConfigError, IntegrityError, TierUnavailable
from ..spec import Tier
from .arena import HostArena
from .copy_faults import Groups, Ids, go_wrong
from .device import Event
from .layout import PageLayout, checked_ids
from .messages import Move
from .pools import DevicePools, Rows

Batch = tuple[Move, ...]
Before = Callable[[Tier, Tier, Batch], Awaitable[None]]
"""Called before a batch starts: may wait, and may raise `TierUnavailable` to make it fail."""

Arrived = Callable[[str, int, Event | None], None]
"""Called in the copying thread with (component, part, event) as a part of L1 arrives, in order of parts.

The bytes of that layer (or state tensor) are there once `event` has passed (None: they are there): a
forward pass makes its stream wait for it and starts on layer 0. Must be quick and must not raise.
"""


class CopyDone(Fact, frozen=True, kw_only=True):
    """One batch was copied, or failed (`error`): pages and bytes by component, and the direction."""

    source: str
    target: str
    pages: tuple[tuple[str, int], ...]
    bytes: int


class CopyEngine(Protocol):
    """Copy pages between the tiers' pools."""

    async def run(
        self,
        batch: Batch,
        src: Tier,
        dst: Tier,
        *,
        fence: int = 0,
        arrived: Arrived | None = None,
    ) -> None:
        """Copy every move of `batch` from tier `src` to tier `dst`; all bytes are there on return.

        `fence` is a point of the engine's stream that the source pages (and the last use of the
        target pages) lie before: nothing is read or written until the device has passed it.

        A checkpoint on entry. Cancelled before the copying has begun, nothing was touched; once
        begun it runs to its end and `run` returns normally, so that on leaving `run`, in whatever
        way, no byte moves any more. `arrived` hears of the parts of L1 as they come (dst=L1 only); after
        a failure it may have heard of some. Raises `TierUnavailable` when the copy failed (the target
        pages then hold nothing that means anything) and `IntegrityError` for pages that cannot be.
        """

    def close(self) -> None:
        """Give back what the engine holds; no batch may be running."""


class BatchRunner(ABC):
    """What every engine does around the copying: grouping, the hook, the fact, the errors."""

    def __init__(
        self,
        layouts: dict[str, PageLayout],
        counts: dict[Tier, dict[str, int]],
        observer: Observer | None,
        before: Before | None,
        faults: Faults | None,
    ) -> None:
        self._layouts = layouts
        self._counts = counts
        self._observer = observer
        self._before = before
        self._faults = faults

    async def run(
        self,
        batch: Batch,
        src: Tier,
        dst: Tier,
        *,
        fence: int = 0,
        arrived: Arrived | None = None,
    ) -> None:
        """See `CopyEngine`."""
        if {src, dst} != {Tier.L1, Tier.L2}:
            raise ConfigError(f"pages are copied between L1 and L2, not from {src} to {dst}")
        started = time.time_ns()
        groups: Groups = {}

        def report(error: str) -> None:
            if self._observer is not None:
                self._observer.fact(
                    CopyDone(
                        started=started,
                        ended=time.time_ns(),
                        error=error,
                        source=src.name,
                        target=dst.name,
                        pages=tuple((name, len(ids)) for name, (ids, _) in groups.items()),
                        bytes=self._size(groups),
                    )
                )

        try:
            groups = self._grouped(batch, src, dst)
            if self._before is not None:
                await self._before(src, dst, batch)
            action = None
            if self._faults is not None:
                action = self._faults.decide("copy", f"{src.name}-{dst.name}")
            if action is None:
                await self._copy(groups, src, dst, fence, arrived)
            else:
                await go_wrong(
                    action, groups, lambda some: self._copy(some, src, dst, fence, arrived)
                )
        except BanyanError as failure:
            report(type(failure).__name__)
            raise
        except (RuntimeError, MemoryError, OSError) as failure:
            report(type(failure).__name__)
            raise TierUnavailable(f"copy from {src.name} to {dst.name}: {failure}") from failure
        report("")

    @abstractmethod
    async def _copy(
        self, groups: Groups, src: Tier, dst: Tier, fence: int, arrived: Arrived | None
    ) -> None:
        """Copy, uncancellable once begun: what an engine is."""

    def _size(self, groups: Groups) -> int:
        return sum(len(ids) * self._layouts[name].page_bytes for name, (ids, _) in groups.items())

    def _grouped(self, batch: Batch, src: Tier, dst: Tier) -> Groups:
        """Join the moves of each component; the order of a batch does not matter."""
        lists: dict[str, tuple[list[bytes], list[bytes]]] = {}
        for move in batch:
            if len(move.source) != len(move.target):
                raise IntegrityError(
                    f"copy of {move.component!r}: {len(move.source)} bytes of page ids "
                    f"to {len(move.target)}"
                )
            if move.component not in self._layouts:
                raise ConfigError(f"copy of {move.component!r}: no such component")
            sources, targets = lists.setdefault(move.component, ([], []))
            sources.append(move.source)
            targets.append(move.target)
        return {
            name: (
                checked_ids(name, b"".join(sources), self._counts[src][name]),
                checked_ids(name, b"".join(targets), self._counts[dst][name]),
            )
            for name, (sources, targets) in lists.items()
        }


class ThreadCopyEngine(BatchRunner):
    """Copy by the CPU, in `threads` worker threads.

    Batches of up to `inline_bytes` are copied where they are asked for: below about a hundred
    microseconds of copying, the way to a thread and back takes longer. `threads=0` copies
    everything there, which is deterministic: simulations use it.
    """

    def __init__(
        self,
        pools: DevicePools,
        arena: HostArena,
        *,
        threads: int = 2,
        inline_bytes: int = 256 * 1024,
        observer: Observer | None = None,
        before: Before | None = None,
        faults: Faults | None = None,
    ) -> None:
        self._rows: dict[Tier, dict[str, list[Rows]]] = {
            Tier.L1: {name: pools.rows(name) for name in pools.layouts},
            Tier.L2: {name: arena.rows(name) for name in arena.layouts},
        }
        counts = {
            tier: {name: len(rows[0]) for name, rows in by_name.items()}
            for tier, by_name in self._rows.items()
        }
        super().__init__(pools.layouts, counts, observer, before, faults)
        self._limiter = trio.CapacityLimiter(threads) if threads else None
        self._inline_bytes = inline_bytes

    async def _copy(
        self, groups: Groups, src: Tier, dst: Tier, fence: int, arrived: Arrived | None
    ) -> None:
        work = [
            (name, self._rows[src][name], self._rows[dst][name], sources, targets)
            for name, (sources, targets) in groups.items()
            if len(sources)
        ]
        notify = arrived if dst is Tier.L1 else None
        if self._limiter is None or self._size(groups) <= self._inline_bytes:
            await trio.lowlevel.checkpoint()
            copy_rows(work, notify)
        else:
            await trio.to_thread.run_sync(copy_rows, work, notify, limiter=self._limiter)

    def close(self) -> None:
        """Let go of the pools' and the arena's memory."""
        self._rows.clear()


def copy_rows(
    work: list[tuple[str, list[Rows], list[Rows], Ids, Ids]], arrived: Arrived | None
) -> None:
    """Copy rows, layer by layer; ids without gaps on both sides make it one copy a part."""
    plans = [
        (name, source_rows, target_rows, _as_run(sources), _as_run(targets))
        for name, source_rows, target_rows, sources, targets in work
    ]
    for part in range(max((len(rows) for _, rows, _, _, _ in plans), default=0)):
        for name, source_rows, target_rows, take, give in plans:
            if part < len(source_rows):
                target_rows[part][give] = source_rows[part][take]
                if arrived is not None:
                    arrived(name, part, None)


def _as_run(ids: Ids) -> Ids | slice:
    first = int(ids[0])
    if int(ids[-1]) - first == len(ids) - 1 and bool((np.diff(ids) == 1).all()):
        return slice(first, first + len(ids))
    return ids
