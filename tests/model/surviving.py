"""A bench whose cache crashes: what of it must be there again, who may hear of it, who goes on.

While a crash is to come somewhere in what is asked next, answers are not held against what was there
before: they must only be right. As soon as the cache is well again it is judged as ever, and all that
live leases have published and still hold must be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import trio
import trio.testing
from banyankv import ActorCrashed, Cache, Closed, Namespace, NoCapacity, Tier
from banyankv.actors import Ref
from banyankv.actors.gate import DOWN
from banyankv.runtime import messages as m

from .asking import Waiting
from .crasher import Crasher
from .driving import Gate
from .engine import Turn
from .harness import Bench
from .history_store import HistoryStore
from .reference import Flat, Key

L3 = "/store/l3"
_NAP = 0.05
_PATIENCE = 6.0
"""Seconds after which a cache that does not serve again counts as stuck."""


class Held(NamedTuple):
    """What a lease shows: it must be the same after an operation that crashed."""

    extent: int
    published: int
    tables: dict[str, tuple[int, bytes]]
    states: dict[str, int | None]

    @classmethod
    def by(cls, turn: Turn) -> Held:
        """What the lease of a turn shows now."""
        lease, rules = turn.lease, turn.rules
        tables = {n: (lease.start(n), bytes(lease.pages(n))) for n in rules.paged}
        return cls(
            lease.extent, lease.published, tables, {n: lease.state(n) for n in rules.snapshots}
        )

    def judge(self, turn: Turn) -> None:
        """A lease is as before; but windows may have let go what they had passed."""
        now = Held.by(turn)
        assert (now.extent, now.published, now.states) == (
            self.extent,
            self.published,
            self.states,
        ), f"an operation that crashed has changed {self} into {now}"
        for name, (start, pages) in now.tables.items():
            assert start >= self.tables[name][0]
            assert self.tables[name][1].endswith(pages), f"{name}: the table has changed"


class SurvivingBench(Bench):
    """A cache whose actors crash when a history says so."""

    def __init__(
        self,
        cache: Cache,
        gate: Gate,
        nursery: trio.Nursery,
        history_store: HistoryStore | None,
        crasher: Crasher,
    ) -> None:
        super().__init__(cache, gate, nursery, history_store)
        self.crasher = crasher
        self._judged = len(crasher.fired)
        """Crashes that have been judged."""
        self._asked: dict[int, int] = {}
        """id(request) -> how many crashes there had been when it was asked."""
        self._loose = False
        nursery.start_soon(self._let_time_pass)

    # -- crashes ---------------------------------------------------------------------------------------

    @property
    def actors(self) -> list[Ref[Any]]:
        """All actors of the cache."""
        return list(self.cache._assembled.system.refs.values())

    @property
    def well(self) -> bool:
        """Whether all actors are at work again."""
        return not any(ref.gate & DOWN and not ref.stopped for ref in self.actors)

    async def _let_time_pass(self) -> None:
        """Move the clock while the cache is down: everybody waits for its supervisor then."""
        while True:
            await self.crasher.news.wait()
            self.crasher.news = trio.Event()
            await self.recovered()

    async def recovered(self) -> None:
        """Let the time pass that the cache needs to serve again."""
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        since = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        while not self.well:
            assert trio.current_time() < since + _PATIENCE, "the cache does not recover"
            clock.jump(_NAP)
            await trio.testing.wait_all_tasks_blocked()

    async def crash_now(self, paths: Sequence[str]) -> None:
        """Crash actors between two messages; where nothing else is under way, nothing else may leave."""
        calm = not (self.crasher.armed or self.pending or self.held or self.crashed)
        before = await self.look()
        stats = await self.cache.stats()
        calm = calm and not (stats.in_flight or stats.due or stats.waiting)
        fell = [path for path in paths if self._crash(path)]
        await self.recovered()
        if not calm or not fell:
            return
        after = await self.look()
        if set(fell) == {L3}:
            assert (after.held, after.ends) == (before.held, before.ends), "L3 took others along"
            return
        gone = {tier: before.pages(self.rules.names[0], tier) for tier in (Tier.L1, Tier.L2)}
        for name in self.rules.names:
            assert after.pages(name, Tier.L1) == self.lasting(name, before), f"{name} after a crash"
        kept = after.pages(self.rules.names[0], Tier.L1)
        assert after.known == kept, "a node without pages"
        now = await self.cache.stats()
        for tier, left in ((Tier.L1, gone[Tier.L1] - kept), (Tier.L2, gone[Tier.L2])):
            name = tier.name.lower()
            told = now.forgotten_tokens.get(name, 0) - stats.forgotten_tokens.get(name, 0)
            assert told == len(left) * self.rules.page, f"{told} tokens of {name} said forgotten"
        assert sum(now.recoveries.values()) > sum(stats.recoveries.values())

    def lasting(self, name: str, before: Flat) -> frozenset[Key]:
        """What a crash leaves on L1 of a component: what live leases have published and still hold."""
        keys: set[Key] = set()
        for turn in self.turns if name in self.rules.paged else ():
            tokens, start = tuple(turn.tokens), turn.lease.start(name)
            for end in self.rules.pages(name, turn.lease.published):
                key = Key(turn.namespace, tokens[:end])
                if end > start and key in before.pages(name, Tier.L1):
                    keys.add(key)
        return frozenset(keys)

    def _crash(self, path: str) -> bool:
        return self.crasher.now(self.cache._assembled.system.find(path))

    @property
    def crashed(self) -> bool:
        """Whether there was a crash that has not been judged yet."""
        return len(self.crasher.fired) > self._judged

    @property
    def rough(self) -> bool:
        """Whether a crash may come in between at any time, or has."""
        return self.crasher.armed or self.crashed or not self.well

    def blame(self, error: ActorCrashed, *kinds: type[Any], lease: int | None = None) -> None:
        """Only whose operation was cut off by a crash hears of it."""
        for victim in self.crasher.victims:
            if isinstance(victim, kinds) and lease in (None, getattr(victim, "lease", lease)):
                self.crasher.victims.remove(victim)
                return
        raise AssertionError(f"whose operation was not cut off heard of {error}") from error

    # -- judging ---------------------------------------------------------------------------------------

    async def look(self) -> Flat:
        while True:
            try:
                return await super().look()
            except ActorCrashed as error:
                self.blame(error, m.Inspect)

    async def rest(self) -> None:
        fired = -1
        while fired != len(self.crasher.fired):
            fired = len(self.crasher.fired)
            await self.recovered()
            await super().rest()

    async def _settle(self, settling: Waiting) -> None:
        while not settling.over:
            try:
                await super()._settle(settling)
            except ActorCrashed as error:
                self.blame(error, m.Settle)

    async def judge_moment(self, *, at_rest: bool) -> Flat:
        if self.crashed:
            self.changes += 1
            if L3 in self.crasher.fired[self._judged :] and self.history_store is not None:
                self.history_store.harmed = True
            if set(self.crasher.fired[self._judged :]) != {L3}:
                await self._put_back()
            self._judged = len(self.crasher.fired)
            self.refused.clear()
        for request in self.pending:
            late = request.turn is not None and request.deadline <= trio.current_time()
            assert request.over or not late, f"an extend waits beyond its deadline: {request}"
        return await super().judge_moment(at_rest=at_rest)

    async def _put_back(self) -> None:
        """All that live leases hold is there; what their locks cover is as the tree is now, or less."""
        flat = await self.look()
        for turn in self.turns:
            self._cover_loosely(turn)
            for name in self.rules.paged:
                start = turn.lease.start(name)
                for end in self.rules.pages(name, turn.lease.published):
                    key = Key(turn.namespace, tuple(turn.tokens[:end]))
                    held = end <= start or key in flat.pages(name, Tier.L1)
                    assert held, f"a crash took {name} from a live lease at {end} of {turn.tokens}"

    def cover(self, turn: Turn, *trees: Flat) -> None:
        if self._loose or self.rough:
            self._cover_loosely(turn)
        else:
            super().cover(turn, *trees)

    def _cover_loosely(self, turn: Turn) -> None:
        """Nobody knows in which tree it was locked: it locks what it needs, and may lock all above."""
        at = turn.lease.published
        anchor = Key(turn.namespace, tuple(turn.tokens[:at]))
        self.covers[id(turn)] = {
            name: (anchor, 0) for name in self.rules.paged if at and self.rules.low(name, at) < at
        }

    async def judge_refusals(self) -> None:
        if self.rough:
            self.refused.clear()
        await super().judge_refusals()

    # -- asking ----------------------------------------------------------------------------------------

    async def ask(
        self, namespace: Namespace, tokens: Sequence[int], deadline: float | None = None
    ) -> Waiting:
        if self.rough:
            request = Waiting(trio.CancelScope(), namespace, tuple(tokens), self.changes)
            if deadline is not None:
                request.deadline = trio.current_time() + deadline
            self.nursery.start_soon(self._acquire, request, deadline)
        else:
            request = await super().ask(namespace, tokens, deadline)
        self._asked[id(request)] = len(self.crasher.fired) - self.rough
        return request

    async def acquire(
        self, namespace: Namespace, tokens: Sequence[int], deadline: float | None = None
    ) -> Turn | None:
        if self.rough:
            return await self.answered(await self.ask(namespace, tokens, deadline))
        return await super().acquire(namespace, tokens, deadline)

    async def _take(self, request: Waiting) -> Turn | None:
        fired = len(self.crasher.fired)
        if isinstance(request.error, ActorCrashed):
            turn = request.turn
            if turn is None:
                self.blame(request.error, m.Acquire)
            else:
                self.blame(request.error, m.Extend, lease=turn.lease.id)
                turn.busy = False
            return None
        self._loose = self._asked.pop(id(request), fired) != fired
        if self._loose:
            request.before = None
        try:
            return await super()._take(request)
        except ActorCrashed as error:  # while it kept a state
            self.blame(error, m.Snapshot)
            return request.turn
        finally:
            self._loose = False

    async def try_acquire(self, namespace: Namespace, tokens: Sequence[int]) -> Turn | None:
        if not self.rough:
            return await super().try_acquire(namespace, tokens)
        try:
            lease = self.cache.try_acquire(list(tokens), namespace=namespace)
        except ActorCrashed as error:
            self.blame(error, m.Acquire)
            return None
        return None if lease is None else await self.adopt(lease, namespace, tokens)

    async def batch(self, namespace: Namespace, prompts: Sequence[Sequence[int]]) -> None:
        if not self.rough:
            await super().batch(namespace, prompts)
            return
        try:
            leases = await self.cache.acquire_batch([list(p) for p in prompts], namespace=namespace)
        except ActorCrashed as error:
            self.blame(error, m.AcquireBatch)
            return
        for prompt, lease in zip(prompts, leases, strict=True):
            await self.adopt(lease, namespace, prompt)

    # -- turns -----------------------------------------------------------------------------------------

    async def extend(self, turn: Turn, count: int, keep: bool) -> bool:
        if not self.rough:
            return await super().extend(turn, count, keep)
        held = Held.by(turn)
        try:
            await turn.lease.extend(count, deadline=0.0)
        except NoCapacity:
            held.judge(turn)
            return False
        except ActorCrashed as error:
            self.blame(error, m.Extend, lease=turn.lease.id)
            held.judge(turn)
            return False
        held = Held.by(turn)
        try:
            await turn.computed_room(keep)
        except ActorCrashed as error:
            self.blame(error, m.Snapshot, lease=turn.lease.id)
            held.judge(turn)
        return True

    async def keep(self, turn: Turn) -> None:
        held = Held.by(turn)
        try:
            await turn.keep()
        except ActorCrashed as error:
            self.blame(error, m.Snapshot, lease=turn.lease.id)
            held.judge(turn)

    async def speculate(self, turn: Turn, drafts: list[int], told: bool, accepted: int) -> None:
        if not self.rough:
            await super().speculate(turn, drafts, told, accepted)
            return
        extent = turn.lease.extent
        try:
            await turn.speculate(drafts, told, accepted)
        except NoCapacity:
            pass
        except ActorCrashed as error:
            self.blame(error, m.Extend, m.Trim, lease=turn.lease.id)
        while turn.lease.extent != len(turn.tokens) or told:
            surplus = turn.lease.extent - len(turn.tokens) if turn.lease.extent > extent else 0
            try:
                await turn.lease.trim(surplus)
            except ActorCrashed as error:
                self.blame(error, m.Trim, lease=turn.lease.id)
            else:
                break

    async def publish(self, turn: Turn, upto: int | None) -> int:
        if not self.rough:
            return await super().publish(turn, upto)
        held = Held.by(turn)
        try:
            reached = await turn.publish(upto)
        except ActorCrashed as error:
            self.blame(error, m.Publish, lease=turn.lease.id)
            held.judge(turn)
            return turn.lease.published
        self.cover(turn)
        return reached

    async def release(self, turn: Turn) -> None:
        if not self.rough:
            await super().release(turn)
            return
        await turn.lease.release()
        await turn.lease.release()
        self.leave(turn)

    async def evict(self, component: str, count: int, tier: Tier) -> None:
        if not self.rough:
            await super().evict(component, count, tier)
            return
        try:
            await self.cache.evict(component, count, tier)
        except ActorCrashed as error:
            self.blame(error, m.EvictPages)

    async def flush(self) -> None:
        if not self.rough:
            await super().flush()
            return
        try:
            await self.cache.flush()
        except ActorCrashed as error:
            self.blame(error, m.EvictPages)

    # -- the end ---------------------------------------------------------------------------------------

    async def finish(self) -> None:
        self.crasher.disarm()
        await super().finish()

    async def doom(self) -> None:
        """Crash beyond the supervisor's patience: everybody is refused with `Closed`, and nobody hangs."""
        self.crasher.disarm()
        cache = self.cache._assembled.cache
        for _ in range(100):
            if cache.stopped:
                break
            if cache.actor is not None and cache.crash is None:
                cache.crashed(RuntimeError("the history ends the cache"))
            await self.recovered()
        assert cache.stopped, "the supervisor's patience has no end"
        for request in self.pending:
            assert request.over, f"{request} hangs"
            if request.lease is None and request.error is None:
                continue  # cancelled
            known = isinstance(request.error, (Closed, ActorCrashed, NoCapacity, TimeoutError))
            assert known or request.lease is not None, request
        for call in (self.cache.stats, self.cache.settle, lambda: self.cache.acquire([1, 2])):
            await self._closed(call)
        for turn in self.turns:
            if not turn.busy:
                await self._closed(lambda turn=turn: turn.lease.extend(1))
                await self._closed(lambda turn=turn: turn.lease.publish())
            await turn.lease.release()

    async def _closed(self, call: Any) -> None:
        with trio.fail_after(5):
            try:
                await call()
            except Closed:
                return
        raise AssertionError("a closed cache has answered")
