"""What the referee holds against a cache: invariants of a moment, and what one call may change."""

from __future__ import annotations

from collections import Counter

import numpy as np
from banyankv import Cache, Namespace, Tier
from banyankv.runtime.checking import check
from banyankv.runtime.coordinator.inspection import Inspection
from banyankv.runtime.messages import Audit
from banyankv.spec import PAGE_ID_BYTES

from .driving import Gate
from .engine import Turn
from .history_store import HistoryStore
from .reference import Flat, Key, Referee, State, floor

Lock = tuple[str, Key]
"""A component and a page."""


def decode(encoded: bytes) -> Namespace:
    """Undo `Namespace.encode`: the tree reports its namespaces framed."""
    fields: list[str | None] = []
    at = 0
    while at < len(encoded):
        if encoded[at] == 0:
            fields.append(None)
            at += 1
        else:
            end = at + 9 + int.from_bytes(encoded[at + 1 : at + 9], "little")
            fields.append(encoded[at + 9 : end].decode())
            at = end
    return Namespace(*fields)


def flatten(seen: Inspection, page: int) -> Flat:
    """Cut the tree's nodes into the pages that the referee knows."""
    held: State = {(part.name, tier): {} for part in seen.components for tier in (Tier.L1, Tier.L2)}
    ends: set[Key] = set()
    known: set[Key] = set()
    locks: dict[tuple[str, Key], int] = {}
    node_of: dict[Key, tuple[int, int]] = {}
    records = {part.name: {r.id: r for r in part.records} for part in seen.components}
    prefixes: dict[int, Key] = {}
    for node in sorted(seen.nodes, key=lambda node: (node.start, node.end)):
        above = prefixes[node.parent].prefix if node.start else ()
        edge = tuple(np.frombuffer(node.key, "<u4").tolist())
        last = prefixes[node.id] = Key(decode(node.namespace), above + edge)
        assert len(last.prefix) == node.end, "a node's tokens reach from its start to its end"
        if node.end == 0:
            continue
        ends.add(last)
        for end in range(node.start + page, node.end + 1, page):
            key = Key(last.namespace, last.prefix[:end])
            assert key not in known, f"two nodes hold the page {key}"
            known.add(key)
            node_of[key] = (node.start, node.end)
            for part in seen.components:
                record = records[part.name].get(node.id)
                if record is None or (part.snapshot and end != node.end):
                    continue
                if record.l1 is not None:
                    held[part.name, Tier.L1][key] = "arriving" if record.l1_writer else "present"
                if record.l2 is not None:
                    held[part.name, Tier.L2][key] = "arriving" if record.l2_writer else "present"
                if record.lock:
                    locks[part.name, key] = record.lock
    return Flat(held, frozenset(ends), frozenset(known), locks, node_of)


class Judge:
    """The referee at one cache: looks at all of it and knows which turns are in hand."""

    def __init__(self, cache: Cache, gate: Gate, history_store: HistoryStore | None = None) -> None:
        self.cache = cache
        self.gate = gate
        self.history_store = history_store
        self.config = cache.config
        self.referee = Referee(cache.config.model)
        self.rules = self.referee.rules
        self.turns: list[Turn] = []
        self.slices = 0
        """Slices of an audit that are done at each look."""
        self.waiting = 0
        """Requests that have not been answered: what they hold, the turns do not explain."""
        self.covers: dict[int, dict[str, tuple[Key, int]]] = {}
        """id(turn) -> what its lease locks: per paged component the anchor and the lowest start."""

    @property
    def held(self) -> bool:
        """Whether copies or the store are held back: not everything comes to rest."""
        return self.gate.stalled or (self.history_store is not None and self.history_store.held)

    async def look(self) -> Flat:
        """The cache as it is, flat."""
        return flatten(await self.cache.inspect(), self.rules.page)

    async def room(self, tier: Tier = Tier.L1) -> dict[str, int]:
        """Pages of each pool of a tier that are free, or will be when a copy is over."""
        return {
            usage.component: usage.free + usage.quarantined
            for usage in (await self.cache.stats()).pools[tier.name.lower()]
        }

    def evictable(self, flat: Flat, component: str, tier: Tier = Tier.L1) -> int:
        """Pages of one component that no lock holds (all of them, for L2)."""
        pages = flat.pages(component, tier)
        return sum(not (tier == Tier.L1 and flat.locks.get((component, key))) for key in pages)

    async def judge_moment(self, *, at_rest: bool) -> Flat:
        """Hold all invariants against the cache as it is; `at_rest` when no copy is in flight."""
        await self._audited()
        seen = await self.cache.inspect()
        check(seen)
        flat = flatten(seen, self.rules.page)
        faults = self.referee.faults(flat, write_through=True)
        assert not faults, faults
        for turn in self.turns:
            turn.verify()
            self._covered(flat, turn)
        self._locks(flat)
        await self._conservation(flat, seen)
        if at_rest and self.config.l2:
            await self._written_through(flat)
        return flat

    async def _audited(self) -> None:
        """Some slices of an audit, which goes on all the time and has nothing to find."""
        for _ in range(self.slices):
            found = await self.cache._port.ask(Audit())
            assert not found, f"the audit cries wolf: {found}"

    async def _written_through(self, flat: Flat) -> None:
        """Where L2 always had room and no copy failed, it has all that L1 has."""
        stats = await self.cache.stats()
        if stats.skipped_backups or any(part.evicted_l2 for part in stats.components):
            return
        for name in self.rules.names:
            lacking = flat.pages(name, Tier.L1) - flat.pages(name, Tier.L2)
            assert not lacking, f"{name} was not written through: {lacking}"

    def _covered(self, flat: Flat, turn: Turn) -> None:
        full, published = self.rules.names[0], turn.lease.published
        for end in range(self.rules.page, published + 1, self.rules.page):
            key = Key(turn.namespace, tuple(turn.tokens[:end]))
            assert key in flat.pages(full, Tier.L1), f"a live lease lost {key}"

    def _explained(self, flat: Flat) -> tuple[Counter[Lock], Counter[Lock]]:
        """How often each page must at least be locked, and may at most be."""
        must: Counter[Lock] = Counter()
        may: Counter[Lock] = Counter()
        for turn in self.turns:
            for name, (anchor, start) in self.covers[id(turn)].items():
                needed = max(start, self._needed(flat, name, anchor, turn.lease.start(name)))
                gaps = self.rules.gaps(name, len(anchor.prefix))
                for end in range(start + self.rules.page, len(anchor.prefix) + 1, self.rules.page):
                    where = (name, Key(anchor.namespace, anchor.prefix[:end]))
                    may[where] += 1
                    must[where] += end > needed and end not in gaps and not turn.busy
        return must, may

    def _locks(self, flat: Flat) -> None:
        must, may = self._explained(flat)
        for where in {*may, *flat.locks}:
            count = flat.locks.get(where, 0)
            assert must[where] <= count <= may[where] or (self.waiting and count > may[where]), (
                f"{where} is locked {count} times, leases explain {must[where]} to {may[where]}"
            )

    def _needed(self, flat: Flat, name: str, anchor: Key, table: int) -> int:
        """Start of the lowest node that boundary `anchor` needs and the running request still uses."""
        at = len(anchor.prefix)
        low = max(table, floor(self.rules.low(name, at), self.rules.page))
        if low >= at:
            return at
        return flat.node_of[Key(anchor.namespace, anchor.prefix[: low + self.rules.page])][0]

    async def _conservation(self, flat: Flat, seen: Inspection) -> None:
        private: Counter[str] = Counter()
        for turn in self.turns:
            for name in self.rules.names:
                private[name] += turn.private(name)
        pools = (await self.cache.stats()).pools
        shared = {part.name: part.shared for part in seen.components}
        for usage in pools["l1"]:
            if any(turn.busy for turn in self.turns):
                break  # their windows may have let go what their tables still show
            name = usage.component
            cached = len(flat.pages(name, Tier.L1))
            copied = len(shared[name][Tier.L1]) // PAGE_ID_BYTES
            explained = usage.free + usage.quarantined + cached + copied + private[name]
            assert explained == usage.capacity or (self.waiting and explained < usage.capacity), (
                f"{name}: {usage} but {cached} cached and {private[name]} private"
            )
        for usage in pools.get("l2", ()):
            cached = len(flat.pages(usage.component, Tier.L2))
            staged = len(seen.staged.get(usage.component, b"")) // PAGE_ID_BYTES
            # Left their node while several copies read them: free when the last of these is over.
            copied = len(shared[usage.component][Tier.L2]) // PAGE_ID_BYTES
            explained = usage.free + usage.quarantined + cached + staged + copied
            assert explained == usage.capacity, (usage, cached, staged, copied)

    def cover(self, turn: Turn, *trees: Flat) -> None:
        """Note what the lease of `turn` locks: whole nodes, from the one where its boundary's need
        begins, as one of `trees` was when it was locked."""
        at = turn.lease.published
        anchor = Key(turn.namespace, tuple(turn.tokens[:at]))
        known = [tree for tree in trees if anchor in tree.known]
        starts = {
            name: min(self._needed(tree, name, anchor, 0) for tree in known)
            for name in self.rules.paged
            if at
        }
        self.covers[id(turn)] = {n: (anchor, start) for n, start in starts.items() if start < at}

    async def judge_peek(self, flat: Flat, namespace: Namespace, tokens: tuple[int, ...]) -> None:
        """`peek` and `explain` agree with the referee and change nothing."""
        seen = await self.cache.inspect()
        peek = await self.cache.peek(list(tokens), namespace=namespace)
        referee = self.referee
        assert peek.length == referee.boundary(flat, namespace, tokens), "peek.length"
        assert peek.device == referee.boundary(flat, namespace, tokens, host=False), "peek.device"
        assert peek.full == referee.full_extent(flat, namespace, tokens), "peek.full"
        for verdict in await self.cache.explain(list(tokens), namespace=namespace):
            own = referee.boundary(flat, namespace, tokens, components=(verdict.component,))
            assert verdict.reach == own, verdict
        if not self.waiting:
            assert await self.cache.inspect() == seen, "looking changed something"

    def judge_length(self, before: Flat, free: dict[str, int], turn: Turn, host: bool) -> None:
        """The hit is a good boundary; and the deepest one, unless room was short for it."""
        lease, tokens = turn.lease, tuple(turn.tokens)
        length, namespace = lease.length, turn.namespace
        turn.verify()
        assert length % self.rules.page == 0 and length <= len(tokens) - 1
        assert length <= lease.full_match <= floor(len(tokens) - 1, self.rules.page)
        assert lease.hit.l1 + lease.hit.l2 + lease.hit.l3 == length
        best = self.referee.boundary(before, namespace, tokens, host=host)
        allowed = [
            len(key.prefix)
            for key in self.referee.candidates(before, namespace, tokens)
            if all(self.referee.allows(before, n, key, host) for n in self.rules.names)
        ]
        lifted = host and self.history_store is not None and length > best
        assert length in allowed or lifted, f"{length} is no good boundary: {allowed}"
        # Who cannot wait has no use for what a held copy still reads.
        if length < best and (host or not self.held):
            self.judge_room(before, free, Key(namespace, tokens[:best]), length)

    def judge_room(self, before: Flat, free: dict[str, int], key: Key, length: int) -> None:
        """Less than boundary `key` is reused only where L1 cannot have room for all that it lacks.

        `free` counts pages that are about to be free too.
        """
        lacking = self.referee.missing_on_l1(before, key)
        ours = {Key(key.namespace, key.prefix[:end]) for end in range(1, len(key.prefix) + 1)}
        room = {
            name: free[name]
            + sum(not before.locks.get((name, page)) for page in before.pages(name, Tier.L1) - ours)
            for name in lacking
        }
        assert any(room[name] < count for name, count in lacking.items()), (
            f"reused {length} of {key}: there was room for all of it: {lacking}, {room}"
        )

    def judge_cuts(
        self,
        before: Flat,
        after: Flat,
        turn: Turn,
        old: int,
        reached: int,
        starts: dict[str, int],
        kept: dict[int, dict[str, int]],
    ) -> None:
        if reached == old:
            assert after.ends == before.ends, "nothing was published, yet something was cut"
            return
        new = {key for key in after.ends - before.ends if key.namespace == turn.namespace}
        assert new == after.ends - before.ends
        tokens, page = tuple(turn.tokens), self.rules.page
        apart = before.walk_end(turn.namespace, tokens[:reached], page)
        caps = {
            floor(start, page)
            for name in self.rules.paged
            for start, _ in self.rules.need(name, reached)
        }
        may = {apart, reached, old, *caps, *starts.values(), *kept}
        for key in new:
            at = len(key.prefix)
            assert key.prefix == tokens[:at] and at in may, f"publish cut at {key}, may at {may}"
        must = {at for at, slots in kept.items() if slots and at <= reached} | {reached}
        for at in must:
            assert Key(turn.namespace, tokens[:at]) in after.ends, f"publish did not cut at {at}"

    def judge_cascade(
        self, before: Flat, gone: dict[str, frozenset[Key]], trigger: str, tier: Tier
    ) -> None:
        full = self.rules.names[0]
        if trigger == full:
            return  # whatever is on a node without FULL is caught by the invariants
        held = before.pages(trigger, tier)
        for key in gone[full]:
            start, end = before.node_of[key]
            del start
            last = {k for k in held if before.node_of[k] == before.node_of[key]}
            assert last, f"{trigger} took {full} from {key}, where it had nothing ({end})"
        for name in self.rules.names[1:]:
            if name == trigger:
                continue
            for key in gone[name] - gone[full]:
                assert name in self.rules.snapshots and trigger not in self.rules.snapshots, (
                    f"{trigger} took {name} from the inner node at {key}"
                )
