"""What the page tiers L1 and L2 have in common: pools, quarantine and cooling, as a leaf actor."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ..actors import Leaf, handles
from ..errors import ConfigError, IntegrityError
from ..spec import PAGE_ID_BYTES, PageList
from .allocator import PagePool
from .audit_messages import BeginPages, CountPages, Faults, JudgePages
from .fences import Fences, NoFences
from .messages import Allocate, Allocated, Free, FreePages, Over, PoolUsage, Short, Usage
from .page_audit import PageAudit


class _Pools(dict[str, PagePool]):
    def __missing__(self, component: str) -> PagePool:
        raise ConfigError(f"no pool {component!r} on this tier, only {', '.join(self)}")


class PageTier(Leaf):
    """Own the page ids of one tier: give them out, take them back, hold back what is in use.

    A freed page goes three ways: to the free list; into the quarantine of the transfer that still
    reads or writes it, until that transfer's `Over`; or, with a fence that the device has not
    passed, to the cooling queue, which is looked at by every `Allocate`. Quarantine comes before
    cooling. `Usage` counts cooling pages as quarantined.

    The order of `Free` and `Over` is the sender's duty: a page freed for a transfer that is
    already over stays in quarantine for ever.
    """

    def __init__(self, pools: Iterable[PagePool], fences: Fences | None = None) -> None:
        super().__init__()
        self._pools = _Pools((pool.component, pool) for pool in pools)
        self._fences = NoFences() if fences is None else fences
        self._held: dict[int, list[tuple[PagePool, PageList, int]]] = {}
        self._cooling: deque[tuple[PagePool, PageList, int]] = deque()
        self._audit: PageAudit | None = None

    @handles(Allocate)
    def allocate(self, msg: Allocate) -> Allocated | Short:
        """Take pages of all pools named, or of none. O(pages)."""
        if msg.back:
            self._take_back(msg.back, msg.fence)
        if self._cooling:
            self._free_cooled()
        pools = self._pools
        taken: list[PageList] = []
        try:
            for component, count in msg.want:
                pages = pools[component].take(count)
                if pages is None:
                    if taken:
                        self._undo(msg, taken)
                    return self._short(msg.want)
                taken.append(pages)
        except ConfigError:
            self._undo(msg, taken)
            raise
        if self._audit is not None:
            for (component, _), pages in zip(msg.want, taken, strict=True):
                self._audit.changed(component, pages)
        return Allocated(tuple(taken))

    @handles(Free)
    def free(self, msg: Free) -> None:
        """Take pages back; raises `IntegrityError`, nothing changed, for pages without an owner."""
        self._take_back(msg.items, msg.fence)

    def _take_back(self, items: tuple[tuple[str, PageList, int], ...], fence: int) -> None:
        pools = self._pools
        done = 0
        try:
            for component, pages, _ in items:
                pools[component].owners.remove(pages)
                done += 1
        except Exception:
            for component, pages, _ in items[:done]:
                pools[component].owners.add(pages)
            raise
        cools = fence and not self._fences.passed(fence)
        for component, pages, op in items:
            if self._audit is not None:
                self._audit.changed(component, pages)
            if op:
                if pages:
                    pool = pools[component]
                    pool.quarantined += len(pages) // PAGE_ID_BYTES
                    self._held.setdefault(op, []).append((pool, pages, fence))
            elif cools:
                self._cool(pools[component], pages, fence)
            else:
                pools[component].put(pages)

    @handles(Over)
    def over(self, msg: Over) -> tuple[tuple[str, int], ...]:
        """Free what the transfer's quarantine holds; pages that must cool are not counted."""
        held = self._held.pop(msg.op, None)
        if held is None:
            return ()
        freed: dict[str, int] = {}
        for pool, pages, fence in held:
            if self._audit is not None:
                self._audit.changed(pool.component, pages)
            count = len(pages) // PAGE_ID_BYTES
            pool.quarantined -= count
            if fence and not self._fences.passed(fence):
                self._cool(pool, pages, fence)
            else:
                pool.put(pages)
                freed[pool.component] = freed.get(pool.component, 0) + count
        return tuple(freed.items())

    @handles(Usage)
    def usage(self, msg: Usage) -> tuple[PoolUsage, ...]:
        """Count the pages of each pool, in the model's order."""
        if self._cooling:
            self._free_cooled()
        return self.glance()

    def glance(self) -> tuple[PoolUsage, ...]:
        """Count the pages of each pool as they were a moment ago; safe from another thread."""
        return tuple(_usage(pool) for pool in self._pools.values())

    @handles(FreePages)
    def free_pages(self, msg: FreePages) -> tuple[PageList, PageList]:
        """List the free and the quarantined pages of one pool."""
        pool = self._pools[msg.component]
        held = [pages for items in self._held.values() for p, pages, _ in items if p is pool]
        held += [pages for p, pages, _ in self._cooling if p is pool]
        return pool.free_pages(), b"".join(held)

    # -- audits -----------------------------------------------------------------------------------

    @handles(BeginPages)
    def begin_audit(self, msg: BeginPages) -> frozenset[int]:
        """Begin a round, unless this one has begun."""
        if self._audit is None or self._audit.number != msg.round:
            self._audit = PageAudit(msg.round, self._pools)
        return frozenset(self._held)

    @handles(CountPages)
    def count_pages(self, msg: CountPages) -> Faults:
        """Count owners for an audit."""
        return self._auditing().count(msg)

    @handles(JudgePages)
    def judge_pages(self, msg: JudgePages) -> Faults | None:
        """Judge some more pages for an audit."""
        return self._auditing().judge(msg)

    def _auditing(self) -> PageAudit:
        if self._audit is None:
            raise IntegrityError("no round of an audit has begun")
        return self._audit

    # -- pages freed and not at rest ----------------------------------------------------------------

    def _cool(self, pool: PagePool, pages: PageList, fence: int) -> None:
        pool.quarantined += len(pages) // PAGE_ID_BYTES
        self._cooling.append((pool, pages, fence))

    def _free_cooled(self) -> None:
        """Free from the head of the queue: a fence that has not passed keeps those behind it."""
        cooling = self._cooling
        while cooling and self._fences.passed(cooling[0][2]):
            pool, pages, _ = cooling.popleft()
            if self._audit is not None:
                self._audit.changed(pool.component, pages)
            pool.quarantined -= len(pages) // PAGE_ID_BYTES
            pool.put(pages)

    def _undo(self, msg: Allocate, taken: list[PageList]) -> None:
        """Give back in reverse order, which leaves every free list as it was."""
        for (component, _), pages in zip(
            reversed(msg.want[: len(taken)]), reversed(taken), strict=True
        ):
            pool = self._pools[component]
            pool.owners.remove(pages)
            pool.put(pages)

    def _short(self, want: tuple[tuple[str, int], ...]) -> Short:
        """Say which pools lack pages; each alone may suffice where they share floating slabs."""
        pools = self._pools
        needed = dict(want)
        if len(needed) < len(want):  # some pool is named twice
            needed = {name: sum([n for of, n in want if of == name]) for name in needed}
        lacking: list[tuple[str, int, int, int]] = []
        for component, count in needed.items():
            pool = pools[component]
            free = pool.available()
            if count > free:
                lacking.append((component, count, free, pool.quarantined))
        if not lacking:
            lacking = [
                (name, count, pools[name].available(), pools[name].quarantined)
                for name, count in needed.items()
            ]
        return Short(tuple(lacking))


def _usage(pool: PagePool) -> PoolUsage:
    free = pool.available()
    capacity = free + pool.owned + pool.quarantined
    return PoolUsage(pool.component, capacity, free, pool.quarantined, pool.page_bytes)
