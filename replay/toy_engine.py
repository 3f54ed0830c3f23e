"""A toy engine: does with a lease what an engine does, with fingerprints in place of a model.

It writes what the cache must keep and compares what the cache hands out, byte for byte.
"""

from __future__ import annotations

from array import array
from time import perf_counter_ns

import numpy as np
import trio
from numpy.typing import NDArray

from ..errors import DeadlineExceeded, NoCapacity
from ..runtime.cache import Cache
from ..runtime.lease import Lease
from ..runtime.messages import HitTokens
from ..spec import ModelSpec, Namespace, PagedSpec
from .fingerprints import Fingerprints, Hashes, Pages, Raw
from .presets import snapshot_grid
from .workloads import Turn

CHUNK = 2048
"""Tokens that are computed at once, at most."""


class Tally:
    """What one replay counted so far.

    `tokens` are those of all prompts, `operations` calls of the public API, `checked` and `failed`
    pages and states.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.refused = 0
        self.tokens = 0
        self.hit_tokens = HitTokens()
        self.operations = 0
        self.checked = 0
        self.failed = 0
        self.first_failure = ""
        self.acquire_ns = array("q")


class ToyEngine:
    """Run requests of one model and namespace on a cache whose L1 is in the CPU's memory.

    `room` is the tokens that L1 has room for. Several turns may be under way at once.
    """

    def __init__(self, cache: Cache, model: ModelSpec, namespace: Namespace, room: int) -> None:
        self.tally = Tally()
        self._cache = cache
        self._namespace = namespace
        self._page = model.page_size
        self._grid = snapshot_grid(model)
        self._chunk = max(min(CHUNK, room // 4) // self._page, 1) * self._page
        self._fingerprints = Fingerprints(model, namespace)
        # Whether a boundary can be useless although FULL is there: a window or a state is missing.
        self._selective = any(component.rule != "full" for component in model.components)
        self._paged: dict[str, list[Raw]] = {}
        self._states: dict[str, list[Raw]] = {}
        for component in model.components:
            raw = [part.numpy() for part in cache.pools.raw(component.name)]
            kind = self._paged if isinstance(component, PagedSpec) else self._states
            kind[component.name] = raw

    async def turn(self, turn: Turn) -> None:
        """Serve one request: reuse, compute the rest, publish the prompt, release.

        A request for which there is no room is counted as refused. Cancellation gives back what the
        request held.
        """
        tally = self.tally
        try:
            hit = await self._serve(turn)
            tally.hit_tokens = HitTokens(
                tally.hit_tokens.l1 + hit.l1,
                tally.hit_tokens.l2 + hit.l2,
                tally.hit_tokens.l3 + hit.l3,
            )
        except (NoCapacity, DeadlineExceeded):
            tally.refused += 1
        tally.requests += 1
        tally.tokens += len(turn.tokens)

    async def _serve(self, turn: Turn) -> HitTokens:
        prefixes = self._fingerprints.prefixes(turn.tokens)
        started = perf_counter_ns()
        lease = await self._cache.acquire(
            turn.tokens, namespace=self._namespace, session=turn.session
        )
        self.tally.acquire_ns.append(perf_counter_ns() - started)
        async with lease:
            self._check_reused(lease, prefixes)
            await self._compute(lease, prefixes, len(turn.tokens))
            await self._publish(lease, prefixes, len(turn.tokens))
        self.tally.operations += 2  # acquire and release
        return lease.hit

    async def _compute(self, lease: Lease, prefixes: Hashes, length: int) -> None:
        """Fill pages and states chunk by chunk; chunks end where windows and states are to be kept."""
        marks: set[int] = set()
        if self._selective:
            marks = {place // self._grid * self._grid for place in (length, lease.full_match)}
        position = lease.length
        while position < length:
            end = min(position + self._chunk, length, *(mark for mark in marks if mark > position))
            await lease.extend(end - position)
            first, last = position // self._page, -(-end // self._page)
            for name, raw in self._paged.items():
                start, pages = self._table(lease, name)
                self._fingerprints.write(
                    name, raw, pages[first - start : last - start], prefixes[first:last]
                )
            for name, raw in self._states.items():
                self._fingerprints.write(name, raw, _slot(lease, name), prefixes[last - 1 : last])
                if end in marks:
                    await lease.snapshot(name, at=end)
                    self.tally.operations += 1
            if end in marks and not self._states:
                await self._publish(lease, prefixes, end)
            self.tally.operations += 1
            position = end
            await trio.lowlevel.checkpoint()  # while an engine's device computes, others go on

    async def _publish(self, lease: Lease, prefixes: Hashes, upto: int) -> None:
        """Publish; compare the pages that came into a table in place of private ones."""
        private = {name: self._table(lease, name) for name in self._paged}
        await lease.publish(upto)
        self.tally.operations += 1
        for name, (before, old) in private.items():
            start, pages = self._table(lease, name)
            replaced = np.flatnonzero(pages != old[start - before :])
            if len(replaced):
                self._compare(name, replaced + start, pages[replaced], prefixes)

    def _table(self, lease: Lease, name: str) -> tuple[int, Pages]:
        """Copy a page table: the position of its first page, in pages, and the page ids."""
        return lease.start(name) // self._page, np.array(lease.pages(name))

    def _check_reused(self, lease: Lease, prefixes: Hashes) -> None:
        """Compare every page and state that the lease came with."""
        count = lease.length // self._page
        if not count:
            return
        for name in self._paged:
            start, pages = self._table(lease, name)
            self._compare(name, np.arange(start, count), pages, prefixes)
        for name in self._states:
            self._compare(name, np.array([count - 1]), _slot(lease, name), prefixes)

    def _compare(self, name: str, places: NDArray[np.intp], pages: Pages, prefixes: Hashes) -> None:
        """Compare the pages (a state) of component `name` that lie at `places`, in pages."""
        raw = self._paged.get(name) or self._states[name]
        wrong = self._fingerprints.wrong(name, raw, pages, prefixes[places])
        tally = self.tally
        tally.checked += len(pages)
        tally.failed += len(wrong)
        if len(wrong) and not tally.first_failure:
            index = int(wrong[0])
            tally.first_failure = (
                f"component {name!r}: the bytes of page {pages[index]} are not those of tokens "
                f"[0, {(int(places[index]) + 1) * self._page}) of request {tally.requests + 1}"
            )


def _slot(lease: Lease, name: str) -> Pages:
    return np.array([lease.state(name)], np.int32)
