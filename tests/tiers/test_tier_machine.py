"""A tier of any kind against sets, step by step."""

from __future__ import annotations

from banyankv.spec import ModelSpec, PagedSpec, SnapshotSpec, StateTensor
from banyankv.tiers.arena import HostArena
from banyankv.tiers.l1 import L1Tier
from banyankv.tiers.l2 import L2Tier
from banyankv.tiers.messages import Allocate, Free, FreePages, Over, Short, Usage
from banyankv.tiers.pools import DevicePools
from banyankv.tiers.tier import PageTier
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from .pages import ManualFences, ids, packed


class TierMachine(RuleBasedStateMachine):
    """A tier against sets: who owns a page, which operation holds it, which fence cools it."""

    @initialize(elastic=st.booleans())
    def start(self, elastic: bool) -> None:
        model = ModelSpec(
            name="m",
            page_size=2,
            components=(PagedSpec(name="full"), SnapshotSpec(states=(StateTensor("s", (3,)),))),
        )
        pages = {"full": 12, "mamba": 5}
        self.fences = ManualFences()
        self.tier: PageTier = (
            L2Tier(HostArena.for_pages(model, pages))
            if elastic
            else L1Tier(DevicePools(model, pages), self.fences)
        )
        self.elastic = elastic
        self.owned: dict[str, set[int]] = {"full": set(), "mamba": set()}
        self.held: list[tuple[str, int, int, int]] = []  # component, page, operation, fence
        self.fence = 0
        self.start_usage = self.tier.usage(Usage())

    @rule(full=st.integers(0, 8), mamba=st.integers(0, 3))
    def allocate(self, full: int, mamba: int) -> None:
        self._cool()
        room = {u.component: u.free for u in self.tier.usage(Usage())}
        answer = self.tier.allocate(Allocate((("full", full), ("mamba", mamba))))
        if isinstance(answer, Short):
            assert self.elastic or full > room["full"] or mamba > room["mamba"]
            assert {u.component: u.free for u in self.tier.usage(Usage())} == room
            return
        for name, pages in zip(("full", "mamba"), answer.pages, strict=True):
            taken = set(ids(pages))
            assert len(taken) == (full if name == "full" else mamba)
            assert not taken & self.owned[name]
            assert not taken & {page for c, page, _, _ in self.held if c == name}
            self.owned[name] |= taken

    @rule(name=st.sampled_from(["full", "mamba"]), op=st.integers(0, 3), data=st.data())
    def free(self, name: str, op: int, data: st.DataObject) -> None:
        if not self.owned[name]:
            return
        pages = data.draw(st.lists(st.sampled_from(sorted(self.owned[name])), unique=True))
        fence = 0
        if not self.elastic and data.draw(st.booleans()):
            self.fence = fence = self.fence + 1
        items = ((name, packed(*pages), op),)
        if data.draw(st.booleans()):
            self.tier.free(Free(items, fence))
        else:
            self.tier.allocate(Allocate((), items, fence))
        self.owned[name] -= set(pages)
        if op or fence:
            self.held += [(name, page, op, fence) for page in pages]

    @rule(op=st.integers(1, 3))
    def over(self, op: int) -> None:
        mine = [item for item in self.held if item[2] == op]
        freed = [item for item in mine if item[3] <= self.fences.done]
        counts = {n: sum(item[0] == n for item in freed) for n in ("full", "mamba")}
        assert dict(self.tier.over(Over(op))) == {n: c for n, c in counts.items() if c}
        self.held = [item for item in self.held if item[2] != op]
        self.held += [(c, page, 0, fence) for c, page, _, fence in mine if fence > self.fences.done]

    @rule()
    def pass_fences(self) -> None:
        self.fences.done = self.fence

    def _cool(self) -> None:
        """The queue may keep pages behind a head that has not passed, never pages all passed."""
        if self.fences.done == self.fence:
            self.held = [item for item in self.held if item[2] or item[3] > self.fence]

    @invariant()
    def every_page_has_one_owner(self) -> None:
        usages = self.tier.usage(Usage())
        self._cool()
        for use in usages:
            name = use.component
            free, held = (ids(pages) for pages in self.tier.free_pages(FreePages(name)))
            everything = [*free, *held, *self.owned[name]]
            assert len(set(everything)) == len(everything)
            assert use.capacity == use.free + use.quarantined + len(self.owned[name])
            assert use.quarantined == len(held)
            if self.fences.done == self.fence:
                assert set(held) == {page for c, page, _, _ in self.held if c == name}
            if not self.elastic:
                assert use.free == len(free)
                assert use.capacity == len(everything)

    def teardown(self) -> None:
        self.fences.done = self.fence
        for name, pages in self.owned.items():
            self.tier.free(Free(((name, packed(*pages), 0),)))
        for op in (1, 2, 3):
            self.tier.over(Over(op))
        assert self.tier.usage(Usage()) == self.start_usage


TestTierMachine = TierMachine.TestCase
TestTierMachine.settings = settings(stateful_step_count=30, deadline=None)
