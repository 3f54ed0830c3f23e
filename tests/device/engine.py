"""An engine that computes on streams: it enqueues what it writes and what it compares, and goes on."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import trio
import trio.testing
from banyankv import (
    ActorCrashed,
    Cache,
    CacheConfig,
    Lease,
    ModelSpec,
    Namespace,
    NoCapacity,
    PagedSpec,
    SnapshotSpec,
    StateTensor,
    Tier,
    open_cache,
)
from banyankv.actors import FaultPlan
from banyankv.replay.fingerprints import Fingerprints
from banyankv.testing import SimulatedDevice, SimulatedStream, seeded_scheduler, simulated_device

PAGE = 2
PROMPT = 7
"""Pages of the longest prompt."""

LONGEST = 11
"""Pages that a turn needs at most: prompt, answer and drafts."""

MODEL = ModelSpec(
    name="streams",
    page_size=PAGE,
    components=(
        PagedSpec(name="full", layers=2, head_dim=4, tensors=1),
        PagedSpec(name="swa", rule="swa", window=3, head_dim=4, tensors=1),
        SnapshotSpec(states=(StateTensor("s", (4,), "float32"), StateTensor("t", (1,), "int64"))),
    ),
)


class StreamEngine:
    """Serve turns, each on a stream; `wrong` says where bytes were not those of a lease's tokens."""

    def __init__(self, cache: Cache, rng: random.Random, streams: list[SimulatedStream]) -> None:
        self.wrong: list[str] = []
        self.done: Counter[str] = Counter()
        self._before: list[list[int]] = []
        self._cache = cache
        self._rng = rng
        self._streams = streams
        self._fingerprints = Fingerprints(MODEL, Namespace())
        self._raw = {
            part.name: [raw.numpy() for raw in cache.pools.raw(part.name)]
            for part in MODEL.components
        }

    async def serve(self, turns: int) -> None:
        """Serve some turns, one after the other."""
        for _ in range(turns):
            for part in (self._turn, self._upkeep):
                try:
                    await part()
                except NoCapacity:
                    self.done["refused"] += 1
                except ActorCrashed:
                    self.done["crashed"] += 1

    async def _upkeep(self) -> None:
        match self._rng.randrange(6):
            case 0:
                await self._cache.settle()
            case 1 | 2:
                host = self._cache.config.l2 is not None and self._rng.randrange(6) == 0
                for component in MODEL.components:
                    pages = self._rng.choice((0, 4, 99))
                    await self._cache.evict(component.name, pages, Tier.L2 if host else Tier.L1)
            case _:
                await trio.lowlevel.checkpoint()

    def _prompt(self) -> list[int]:
        """One that goes on from a turn before, or begins as many do."""
        if self._before and self._rng.randrange(4):
            before = self._rng.choice(self._before)
            pages = self._rng.randint(1, min(PROMPT, len(before) // PAGE))
            return [*before[: pages * PAGE], self._rng.randrange(2)]
        pages = [self._rng.randrange(2) for _ in range(self._rng.randint(1, PROMPT))]
        return [token for token in pages for _ in range(PAGE)] + [9]

    async def _turn(self) -> None:
        stream = self._rng.choice(self._streams)
        tokens = self._prompt()
        lease = await self._cache.acquire(tokens, stream=stream.handle)
        try:
            await _Turn(self, lease, stream, tokens).run(self._rng)
            self._before.append(tokens)
            self.done["turns"] += 1
        finally:
            await lease.release(stream=stream.handle)

    def write(self, component: str, pages: np.ndarray, prefixes: np.ndarray) -> None:
        """Write pages or states: a piece of the device's work."""
        self._fingerprints.write(component, self._raw[component], pages, prefixes)

    def compare(self, component: str, pages: np.ndarray, prefixes: np.ndarray, what: str) -> None:
        """Compare pages or states: a piece of the device's work."""
        wrong = self._fingerprints.wrong(component, self._raw[component], pages, prefixes)
        self.done["compared"] += len(pages)
        if len(wrong):
            self.wrong.append(f"{what}: {component} {pages[wrong].tolist()}")

    def prefixes(self, tokens: list[int]) -> np.ndarray:
        """What the pages of these tokens must hold."""
        return self._fingerprints.prefixes(np.array(tokens, np.uint32))


class _Turn:
    """One request on a stream."""

    def __init__(
        self, engine: StreamEngine, lease: Lease, stream: SimulatedStream, tokens: list[int]
    ) -> None:
        self._engine = engine
        self._lease = lease
        self._stream = stream
        self._tokens = tokens
        self._computed = lease.length

    async def run(self, rng: random.Random) -> None:
        """Prefill in chunks, decode a little, draft, and publish now and then."""
        self._compare("reused")
        while self._computed < len(self._tokens):
            await self._extend(min(rng.choice((1, 2, 2, 2, 4)), len(self._tokens) - self._computed))
            await self._keep(rng)
            if rng.randrange(3) == 0:
                await self._publish()
            if rng.randrange(4) == 0:
                self._stream.synchronize()  # as who looks at the logits
        for _ in range(rng.randrange(LONGEST - PROMPT)):
            token = rng.randrange(2)
            self._lease.append([token])
            self._tokens.append(token)
            await self._extend(1)
            await self._keep(rng)
        if rng.randrange(2) == 0:
            await self._draft(rng.randint(1, 4))
        if rng.randrange(4):
            await self._publish()
        self._compare("held")

    async def _extend(self, count: int) -> None:
        await self._lease.extend(count, stream=self._stream.handle)
        first, last = self._computed // PAGE, -(-(self._computed + count) // PAGE)
        self._computed += count
        prefixes = self._engine.prefixes(self._tokens[: self._computed])
        for name in ("full", "swa"):
            start, pages = self._table(name)
            self._enqueue("write", name, pages[first - start : last - start], prefixes[first:last])
        self._enqueue("write", "mamba", self._slot(), prefixes[-1:])

    async def _draft(self, count: int) -> None:
        """Make room for drafts, write something there, and reject them all."""
        await self._lease.extend(count, deadline=0.0, stream=self._stream.handle)
        before = -(-self._computed // PAGE)
        for name in ("full", "swa"):
            start, pages = self._table(name)
            room = pages[before - start :]
            self._enqueue("write", name, room, np.full(len(room), 7, np.uint64))
        await self._lease.trim(count, stream=self._stream.handle)

    async def _keep(self, rng: random.Random) -> None:
        at = self._computed
        if at % PAGE == 0 and at > self._lease.published and rng.randrange(4):
            await self._lease.snapshot(at=at, stream=self._stream.handle)

    async def _publish(self) -> None:
        await self._lease.publish(self._computed, stream=self._stream.handle)
        self._compare("published")

    def _compare(self, what: str) -> None:
        if not self._computed:
            return
        prefixes = self._engine.prefixes(self._tokens[: self._computed])
        for name in ("full", "swa"):
            start, pages = self._table(name)
            self._enqueue("compare", name, pages, prefixes[start : start + len(pages)], what)
        self._enqueue("compare", "mamba", self._slot(), prefixes[-1:], what)

    def _enqueue(self, verb: str, *work: Any) -> None:
        self._stream.enqueue(lambda: getattr(self._engine, verb)(*work))

    def _table(self, name: str) -> tuple[int, np.ndarray]:
        return self._lease.start(name) // PAGE, np.array(self._lease.pages(name), np.int32)

    def _slot(self) -> np.ndarray:
        return np.array([self._lease.state()], np.int32)


async def _at_once(work: Callable[..., Any], *args: Any, **_: object) -> Any:
    await trio.lowlevel.checkpoint()
    return work(*args)


@contextmanager
def repeatable(seed: int) -> Generator[None, None, None]:
    """Use no thread but one, no real clock, and a seeded order of tasks.

    What happens depends on the seed alone. Who yields after some time yields always, or never.
    """
    clock = itertools.count(0, seed % 2)
    with (
        seeded_scheduler(seed),
        mock.patch("trio.to_thread.run_sync", _at_once),
        mock.patch("time.monotonic", side_effect=map(float, clock)),
    ):
        yield


def history(
    seed: int,
    *,
    streams: int = 1,
    l2: bool = True,
    engines: int = 2,
    turns: int = 8,
    faults: FaultPlan | None = None,
    clock: trio.abc.Clock | None = None,
) -> StreamEngine:
    """Run a random history of a cache on a simulated device; return what an engine has seen."""
    rng = random.Random(seed)
    pages = LONGEST * engines + rng.randrange(8)  # so that nobody waits for others who wait
    room = {"full": pages, "swa": pages, "mamba": rng.choice((8, 24))}
    config = CacheConfig(
        model=MODEL,
        l1=room,
        l2={"full": 40, "swa": 40, "mamba": 20} if l2 else None,
        dispatch=rng.choice(("direct", "mailbox")),
    )

    async def late(*_: object) -> None:
        for _ in range(rng.choice((0, 2, 20))):
            await trio.lowlevel.checkpoint()

    async def main(device: SimulatedDevice) -> StreamEngine:
        async with open_cache(config, before_copy=late, faults=faults) as cache:
            made = [device.new_stream() for _ in range(streams)]
            engine = StreamEngine(cache, rng, made)
            async with trio.open_nursery() as nursery:
                for number in range(engines):
                    nursery.start_soon(engine.serve, turns, name=f"engine {number}")
            device.synchronize()
            await cache.settle()
            await cache.check()
            stats = await cache.stats()
            engine.done["l1 hit"], engine.done["l2 hit"] = stats.hit_tokens.l1, stats.hit_tokens.l2
            engine.done.update(stats.moved_bytes)
            engine.done["recoveries"] = sum(stats.recoveries.values())
            for part in stats.components:
                engine.done[f"{part.component} evicted"] = part.evicted_l1 + part.demoted
        return engine

    with simulated_device(seed) as device:
        return trio.run(main, device, clock=clock or trio.testing.MockClock())
