"""A tiny engine: it computes pages and states whose every byte tells for which tokens it was made."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence

import numpy as np
from banyankv import (
    Cache,
    CacheConfig,
    Lease,
    ModelSpec,
    Namespace,
    PagedSpec,
    SnapshotSpec,
    StateTensor,
)
from banyankv.components.contract import Ranges, TreeComponent
from numpy.typing import NDArray

from .reference import SINK, Rules, ceil, floor

MARK = 8
"""Bytes of a token in a paged component, and of a state: one fingerprint."""


class SinkComponent(TreeComponent):
    """Need the first tokens and the last `window`, as attention sinks do: a rule of a user."""

    def need(self, boundary: int) -> Ranges:
        start = boundary - self.window
        return ((0, boundary),) if start <= SINK else ((0, SINK), (start, boundary))


RULES = {"sink": SinkComponent}


def dispatch_mode() -> str:
    """Which dispatch this run is about (CI runs the suite once with each); empty for either."""
    return os.environ.get("BANYANKV_DISPATCH", "")


def model_of(
    page: int,
    *,
    window: int = 0,
    chunk: int = 0,
    sink: int = 0,
    states: bool = False,
    name: str = "referee",
) -> ModelSpec:
    """A model of the wanted components, each with one 8-byte fingerprint a token or a state."""
    parts: list[PagedSpec | SnapshotSpec] = [PagedSpec(name="full", head_dim=4, tensors=1)]
    if window:
        parts.append(PagedSpec(name="swa", rule="swa", window=window, head_dim=4, tensors=1))
    if chunk:
        parts.append(PagedSpec(name="chunked", rule="chunked", window=chunk, head_dim=4, tensors=1))
    if sink:
        parts.append(PagedSpec(name="sink", rule="sink", window=sink, head_dim=4, tensors=1))
    if states:
        parts.append(SnapshotSpec(states=(StateTensor("s", (1,), "float64"),)))
    return ModelSpec(name=name, page_size=page, components=tuple(parts))


def config_of(
    model: ModelSpec,
    l1: int | dict[str, int],
    l2: int | dict[str, int] | None = None,
    dispatch: str = "",
) -> CacheConfig:
    """A configuration; one number gives every component that many pages (or slots)."""

    def each(pages: int | dict[str, int]) -> dict[str, int]:
        if isinstance(pages, dict):
            return pages
        return {c.name: pages for c in model.components}

    return CacheConfig(
        model=model,
        l1=each(l1),
        l2=None if l2 is None else each(l2),
        dispatch=dispatch or dispatch_mode() or "direct",
        prefetch_threshold=1,
    )


@functools.lru_cache(maxsize=1 << 16)
def mark(model: str, namespace: Namespace, component: str, prefix: tuple[int, ...]) -> bytes:
    """The only right bytes of a token (or state) for everything before and with it."""
    digest = hashlib.blake2b(namespace.encode(), digest_size=MARK)
    digest.update(f"/{model}/{component}/".encode())
    digest.update(np.asarray(prefix, np.uint32).tobytes())
    return digest.digest()


class WrongBytes(AssertionError):
    """A lease handed out bytes that were not made for its tokens."""


class Turn:
    """One request, acquire to release, as an engine runs it.

    `tokens` are prompt and generated ids, `computed` is how far pages are written; the fingerprints
    of everything the page tables show up to there are what `verify` compares.
    """

    def __init__(
        self, cache: Cache, lease: Lease, namespace: Namespace, tokens: Sequence[int]
    ) -> None:
        self.cache = cache
        self.lease = lease
        self.namespace = namespace
        self.tokens = list(tokens)
        self.model = cache.config.model
        self.rules = Rules(self.model)
        self.computed = lease.length
        self.busy = False
        """Whether an extend waits for room."""
        self.snapshots: dict[int, dict[str, int]] = {}
        """Position -> slot per snapshot component, of copies that are not yet published."""

    def _rows(self, component: str) -> NDArray[np.uint8]:
        (raw,) = self.cache.pools.raw(component)
        return np.asarray(raw)

    def _mark(self, component: str, end: int) -> bytes:
        return mark(self.model.name, self.namespace, component, tuple(self.tokens[:end]))

    def compute(self) -> None:
        """Write pages and states of all tokens that have room and are not computed yet.

        Starts at `computed`, as an engine does; states are advanced in place. Room for drafts whose
        ids are not known is left as it is.
        """
        extent = min(self.lease.extent, len(self.tokens))
        for component in self.rules.paged:
            rows, table = self._rows(component), self.lease.pages(component)
            start = self.lease.start(component)
            for at in range(self.computed, extent):
                row = rows[table[(at - start) // self.rules.page]]
                assert table[(at - start) // self.rules.page] >= 0, "own pages have no gaps"
                within = at % self.rules.page * MARK
                row[within : within + MARK] = np.frombuffer(self._mark(component, at + 1), np.uint8)
        self.computed = extent
        for component in self.rules.snapshots:
            slot = self.lease.state(component)
            assert slot is not None, "a lease that was extended has a working state"
            self._rows(component)[slot] = np.frombuffer(self._mark(component, extent), np.uint8)

    async def extend(self, count: int, deadline: float | None = None, keep: bool = False) -> None:
        """Make room for `count` tokens and compute them; `keep` snapshots the state where it may."""
        await self.lease.extend(count, deadline=deadline)
        await self.computed_room(keep)

    async def computed_room(self, keep: bool) -> None:
        """Compute what there is room for; `keep` snapshots the state where it may."""
        self.compute()
        at = self.computed
        if keep and at % self.rules.page == 0 and at > self.lease.published:
            await self.keep()

    async def keep(self) -> None:
        """Snapshot every state at the position that is computed, where there is a slot."""
        for component in self.rules.snapshots:
            slot = await self.lease.snapshot(component, at=self.computed)
            if slot is not None:
                self.snapshots.setdefault(self.computed, {})[component] = slot

    async def speculate(self, drafts: Sequence[int], told: bool, accepted: int) -> None:
        """Make room for drafts, perhaps tell their ids, accept some of them and reject the others."""
        if told:
            self.lease.append(list(drafts))
        await self.lease.extend(len(drafts), deadline=0.0)
        if not told:
            self.lease.append(list(drafts[:accepted]))
        self.tokens += drafts[:accepted]
        self.compute()
        await self.lease.trim(len(drafts) - accepted)

    async def publish(self, upto: int | None = None) -> int:
        """Publish, and forget the snapshots that went over."""
        reached = await self.lease.publish(upto)
        self.snapshots = {at: kept for at, kept in self.snapshots.items() if at > reached}
        return reached

    def verify(self) -> int:
        """Compare every byte that the lease hands out; answer how many fingerprints were compared."""
        compared = 0
        for component in self.rules.paged:
            if self.busy and component != self.rules.paged[0]:
                continue  # an extend has let the window go, and tells the lease when it is over
            rows, table = self._rows(component), self.lease.pages(component)
            start = self.lease.start(component)
            if len(table) != ceil(self.lease.extent, self.rules.page) // self.rules.page - (
                start // self.rules.page
            ):
                raise WrongBytes(f"{component}: {len(table)} pages from {start}")
            published = self.lease.published
            unread = self.rules.gaps(component, self.lease.length)
            unread |= {end for end in self.rules.gaps(component, published) if end <= published}
            for at in range(start, self.computed):
                if floor(at, self.rules.page) + self.rules.page in unread:
                    continue  # between the ranges: the table has a mark, or what was there has left
                within = at % self.rules.page * MARK
                got = rows[table[(at - start) // self.rules.page]][within : within + MARK].tobytes()
                if got != self._mark(component, at + 1):
                    raise WrongBytes(f"{component}: token {at} of {self.tokens}")
                compared += 1
        for component in self.rules.snapshots:
            slot = self.lease.state(component)
            states = {
                at: kept[component] for at, kept in self.snapshots.items() if component in kept
            }
            marks = [(slot, self.computed)] if slot is not None else []
            for where, at in [*marks, *((where, at) for at, where in states.items())]:
                if self._rows(component)[where].tobytes() != self._mark(component, at):
                    raise WrongBytes(f"{component}: state at {at} of {self.tokens}")
                compared += 1
        return compared

    def private(self, component: str) -> int:
        """Pages (or slots) of one component that belong to this request and not to the tree."""
        if component in self.rules.snapshots:
            working = self.lease.state(component) is not None
            return working + sum(component in kept for kept in self.snapshots.values())
        first = max(self.lease.published, self.lease.start(component))
        return max(0, ceil(self.lease.extent, self.rules.page) - first) // self.rules.page

    @property
    def publishable(self) -> int:
        """How far a publish may go now."""
        return floor(min(self.computed, len(self.tokens)), self.rules.page)
