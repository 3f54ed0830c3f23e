"""Publishing, reuse and locks: each method is one step of the cache, checked against the model."""

from __future__ import annotations

from collections.abc import Iterable

from ...components import messages as m
from ...spec import Tier
from .ground import SPACE, Ground, Held, Lease, Use, pack, unpack


class Reuse(Ground):
    """Hand pages over, find what can be reused, and hold it."""

    # -- publishing -------------------------------------------------------------------------------------

    def publish(
        self,
        prompt: str,
        own: int = 0,
        stands: Iterable[int] = (),
        cuts: Iterable[int] = (),
        lease: Lease | None = None,
        priority: int = 0,
    ) -> None:
        """Hand over the pages from `own` on (for a snapshot: states that stand at `stands`)."""
        self.now += 1
        actor, component, l1 = self.actor, self.component, self.held[Tier.L1]
        start = len(lease.prompt) if lease else 0
        parent = lease.node if lease else m.ROOT
        prompt = self._short_of_arrivals(prompt, start, parent)
        if len(prompt) <= start:
            return
        own = start if component.base else min(max(own, start), len(prompt))
        known = max(self.known(prompt), start)
        stands = sorted(at for at in stands if start < at <= len(prompt))
        if known > start:
            self.boundary(prompt[:known])
        for at in stands if component.snapshot else (own,):
            if start < at < known:
                inside = self.walk(prompt[: at + 1]).path[-1]
                if component.snapshot or actor.lacks(m.Lacks(inside, Tier.L1)):
                    self.boundary(prompt[:at])
        old = self.walk(prompt[start:known], parent)
        path, ends = old.path, old.ends
        grown: m.Grown | m.Walked = m.Grown((), ())
        if known < len(prompt):
            places = {*cuts, *(stands if component.snapshot else (own,))}
            insert = m.Insert(
                SPACE,
                self.tokens(prompt[known:]),
                path[-1] if path else parent,
                tuple(at * self.page for at in sorted(places) if known < at < len(prompt)),
            )
            grown = self.tree.insert(insert)
            path, ends = (*path, *grown.path), (*ends, *grown.ends)
        mine = self.new_pages(len(stands) if component.snapshot else len(prompt) - own)
        states: dict[int, int] = dict(zip(stands, mine, strict=True)) if component.snapshot else {}
        at_end = dict(zip(ends, path, strict=True))
        held = lease.receipts if lease else ()
        if component.snapshot:
            starts = dict(zip(ends, (start * self.page, *ends), strict=False))
            kept = tuple(
                m.State(at_end[end], starts[end], end, pack([slot]))
                for end, slot in ((at * self.page, slot) for at, slot in states.items())
            )
            self._used_states(prompt, stands, priority)
            adopted = actor.keep(m.Keep(Tier.L1, kept, self.now, priority))
            relocked = m.Relocked(held, 0)
        else:
            self._used(prompt, start, priority)
            mine_known = max(0, known - own)
            adopted = actor.adopt(
                m.Adopt(
                    Tier.L1,
                    old.path,
                    old.ends,
                    own * self.page,
                    pack(mine[:mine_known]),
                    self.now,
                    priority,
                )
            )
            relocked = m.Relocked((), 0)
            if grown.path:
                relocked = actor.grow(
                    m.Grow(
                        tier=Tier.L1,
                        parent=old.path[-1] if old.path else parent,
                        path=grown.path,
                        ends=grown.ends,
                        own=max(own, known) * self.page,
                        pages=pack(mine[mine_known:]),
                        held=held,
                        relock=lease is not None,
                        now=self.now,
                        priority=priority,
                    )
                )
            elif lease is not None:
                relocked = actor.relock(m.Relock(path[-1], held))
        offered = states or dict(zip(range(own + 1, len(prompt) + 1), mine, strict=False))
        free: list[int] = []
        patches: dict[int, int] = {}
        gained: set[str] = set()
        for end, page in offered.items():
            unit = prompt[:end]
            if unit in l1:
                free.append(page)
                patches[end - 1] = l1[unit].page
            else:
                l1[unit] = Held(page)
                gained.add(unit)
        assert unpack(adopted.free) == free
        told = {
            at // self.page + k: page
            for at, pages in adopted.patches
            for k, page in enumerate(unpack(pages))
        }
        assert told == ({} if component.snapshot else patches)
        nodes = self.nodes()
        attached = adopted.attached if component.snapshot else (*adopted.attached, *grown.path)
        tombs = {id for id in grown.path if nodes[id].end <= own} - {*adopted.attached}
        told_gained = {u for id in attached for u in self.units(nodes[id])}
        assert told_gained - {u for id in tombs for u in self.units(nodes[id])} == gained
        if lease is not None:
            self._relocked(lease, relocked, prompt, path[-1])

    def _short_of_arrivals(self, prompt: str, start: int, parent: int) -> str:
        walked = self.walk(prompt[start:], parent)
        stop = self.actor.first_arriving(m.Arriving(walked.path))
        nodes = self.nodes()
        l1 = self.held[Tier.L1]
        arriving = [
            any(unit in l1 and l1[unit].writer for unit in self.units(nodes[id]))
            for id in walked.path
        ]
        assert stop == (arriving.index(True) if True in arriving else len(arriving))
        return prompt if stop == len(arriving) else prompt[: nodes[walked.path[stop]].start]

    def _used(self, prompt: str, start: int, priority: int) -> None:
        for k in range(start, len(prompt)):
            use = self.uses.get(prompt[: k + 1])
            if use is None:
                use = self.uses[prompt[: k + 1]] = Use(self.now, self.now)
            else:
                use.touch(self.now)
            use.priority = max(use.priority, priority)

    def _used_states(self, prompt: str, stands: Iterable[int], priority: int) -> None:
        """Note the use of what is published again; where nothing was held, a new record is made."""
        for at in stands:
            unit = prompt[:at]
            if unit not in self.uses or not self.recorded(unit):
                self.uses[unit] = Use(self.now, self.now)
            else:
                self.uses[unit].touch(self.now)
            self.uses[unit].priority = max(self.uses[unit].priority, priority)
        for k in range(len(prompt)):
            self.uses.setdefault(prompt[: k + 1], Use(self.now, self.now))

    def _relocked(self, lease: Lease, adopted: m.Relocked, prompt: str, node: int) -> None:
        lease.receipts, lease.prompt, lease.node = adopted.receipts, prompt, node
        lease.at = max(lease.at, len(prompt) * self.page)
        if not self.component.snapshot:
            cover = self.cover(node)
            lease.cover = {unit for at in cover for unit in at.pages}
            assert adopted.low_end <= min((at.end * self.page for at in cover), default=1 << 30)

    def new_pages(self, count: int) -> list[int]:
        self.last_page += count
        return list(range(self.last_page - count + 1, self.last_page + 1))

    # -- reuse ------------------------------------------------------------------------------------------

    def usable(self, unit: str, *, host: bool) -> bool:
        l1, l2 = (held.get(unit) for held in self.held)
        if l1 is not None and (host or not l1.writer):
            return True
        return host and l2 is not None and not l2.writer

    def reach(self, prompt: str, limit: int, *, host: bool) -> m.Reached:
        """Ask for the deepest good boundary, and compare with all of them tried page by page.

        Where nodes end does not count: a boundary inside an edge is as good as one at its end.
        """
        walked = self.walk(prompt)
        reached: m.Reached = self.actor.reach(
            m.Reach(walked.path, walked.ends, limit * self.page, walked.partial, host)
        )
        most = min(limit, walked.ends[-1] // self.page) if walked.ends else 0

        def lacking(end: int, *, host: bool) -> list[str]:
            if self.component.snapshot:
                return [] if self.usable(prompt[:end], host=host) else [prompt[:end]]
            units = [prompt[: page + 1] for page in self.needed(end)]
            return [unit for unit in units if not self.usable(unit, host=host)]

        best = next((end for end in range(most, 0, -1) if not lacking(end, host=host)), 0)
        assert reached.boundary == best * self.page
        assert reached.resident == (not best or not lacking(best, host=False))
        assert (reached.hole is None) == (best == most)
        if reached.hole is not None:
            hole = self.nodes()[reached.hole]
            assert hole.start <= best < hole.end
            if not self.component.snapshot:
                assert not any(self.usable(unit, host=host) for unit in hole.pages)
        return reached

    def lock(self, prompt: str, priority: int = 0) -> tuple[Lease, m.Locked]:
        self.now += 1
        node = self.boundary(prompt)
        cover = self.cover(node)
        locked = self.actor.lock(m.Lock(node, self.now, priority))
        for at in cover:
            for unit in at.pages:
                self.uses[unit].touch(self.now)
                self.uses[unit].hits += 1
                self.uses[unit].priority = max(self.uses[unit].priority, priority)
        units = {unit for at in cover for unit in self.units(at)}
        lease = Lease(prompt, node, locked.receipts, units, len(prompt) * self.page)
        self.leases.append(lease)
        self._tabled(lease, locked)
        low = min((at.end for at in cover), default=len(prompt))
        assert locked.low_end == low * self.page
        return lease, locked

    def claim(self, prompt: str, limit: int, *, host: bool) -> Lease | None:
        """Claim, and compare with asking for the boundary first and locking it then."""
        reached = self.reach(prompt, limit, host=host).boundary // self.page
        walked = self.walk(prompt)
        if not walked.path:
            return None
        self.now += 1
        claim = m.Claim(
            walked.path, walked.ends, limit * self.page, walked.partial, host, self.now, 3
        )
        claimed = self.actor.claim(claim)
        assert claimed.boundary == reached * self.page
        ends = walked.ends[:-1] if walked.partial else walked.ends
        if claimed.boundary not in ends:  # none, or one inside an edge
            assert claimed.lock is None
            return None
        assert claimed.lock is not None
        prompt, node = prompt[:reached], walked.path[walked.ends.index(claimed.boundary)]
        cover = self.cover(node)
        units = {unit for at in cover for unit in self.units(at)}
        for unit in {unit for at in cover for unit in at.pages}:
            self.uses[unit].touch(self.now)
            self.uses[unit].hits += 1
            self.uses[unit].priority = max(self.uses[unit].priority, 3)
        again = self.actor.lock(m.Lock(node))  # no use of its own
        unlocked = self.component.snapshot and self.usable(prompt, host=False)
        assert claimed.lock.receipts == (() if unlocked else again.receipts)
        assert (claimed.lock.start, claimed.lock.pages) == (again.start, again.pages)
        assert claimed.lock.missing == again.missing
        assert claimed.lock.joins == again.joins
        assert claimed.lock.low_end == again.low_end
        self.actor.unlock(m.Unlock(again.receipts))
        if unlocked:
            return None
        lease = Lease(prompt, node, claimed.lock.receipts, units, claimed.boundary)
        self.leases.append(lease)
        return lease

    def table(self, lease: Lease) -> m.Locked:
        answer: m.Locked = self.actor.table(m.Table(lease.node, lease.receipts))
        assert answer.receipts == lease.receipts
        self._tabled(lease, answer)
        return answer

    def _tabled(self, lease: Lease, answer: m.Locked) -> None:
        """Compare a page table with what each needed page holds."""
        l1, prompt = self.held[Tier.L1], lease.prompt
        cover = self.cover(lease.node)
        lacking = {at.id for at in cover if self.units(at)[-1] not in l1}
        size = {at.id: 1 if self.component.snapshot else at.end - at.start for at in cover}
        assert sorted(answer.missing) == sorted((id, size[id]) for id in lacking)
        needed = self.needed(len(prompt))
        units = [prompt] if self.component.snapshot else [prompt[: k + 1] for k in needed]
        writers = {l1[unit].writer for unit in units if unit in l1} - {0}
        assert set(answer.joins) == writers
        first = needed[0] if needed else len(prompt)
        assert answer.start == first * self.page
        if lacking or writers:
            assert answer.pages == b""
        elif self.component.snapshot:
            assert unpack(answer.pages) == [l1[prompt].page]
        else:
            expected = [
                l1[prompt[: k + 1]].page if k in needed else -1 for k in range(first, len(prompt))
            ]
            assert unpack(answer.pages) == expected

    def unlock(self, lease: Lease) -> None:
        self.leases.remove(lease)
        self.actor.unlock(m.Unlock(lease.receipts))

    def recede(self, lease: Lease, tokens: int) -> None:
        """Let the lease's request go on by so many tokens, and its window with it."""
        lease.at += tokens
        start = self.component.keep_from(lease.at)
        receded = self.actor.recede(m.Recede(lease.receipts, start))
        lease.receipts = receded.receipts
        nodes = [at for at in self.path(lease.node) if lease.cover.issuperset(at.pages)]
        kept = [at for at in nodes if at.end * self.page > start]
        lease.cover = {unit for at in kept for unit in at.pages}
        if kept:
            assert receded.low_end <= kept[0].end * self.page
