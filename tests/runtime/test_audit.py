"""The audit finds what is wrong within two rounds, while requests run, and has the actor crash for it."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
import trio
import trio.testing
from banyankv import (
    Cache,
    CacheConfig,
    ConfigError,
    Lease,
    ModelSpec,
    Namespace,
    PagedSpec,
    SnapshotSpec,
    StateTensor,
    open_cache,
)
from banyankv.actors import Fault, FaultKind, FaultPlan
from banyankv.components.messages import ROOT
from banyankv.runtime.coordinator.promoting import Promote
from banyankv.runtime.messages import Audit, Finding

MODEL = ModelSpec(
    name="m",
    page_size=2,
    components=(
        PagedSpec(name="full"),
        PagedSpec(name="swa", rule="swa", window=4),
        SnapshotSpec(states=(StateTensor("s", (1,), "float32"),)),
    ),
)


def config(**options) -> CacheConfig:
    room = {"full": 400, "swa": 400, "mamba": 200}
    return CacheConfig(model=MODEL, l1=room, l2=room, **options)


class Inside:
    """A cache in use, and the live state of its actors, to be corrupted."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.dice = random.Random(0)
        self.core = self.actor("cache")
        self.tree = self.actor("tree")
        self.leases: list[Lease] = []

    def actor(self, name: str):
        """The actor of this name, as it is in memory."""
        refs = self.cache._port.ref.system.refs
        return next(ref.actor for path, ref in refs.items() if path.endswith(f"/{name}"))

    def presence(self, name: str):
        """The records of a component."""
        return self.actor(name)._presence

    def record(self, name: str, wanted: Callable):
        """Some record that has what a corruption needs."""
        records = self.presence(name).records
        return next(r for id, r in records.items() if id != ROOT and wanted(r))

    def fork(self):
        """Some node with several children."""
        return next(node for node in self.tree._nodes.values() if node.children)

    def private(self):
        """What a lease keeps of FULL, some of it private."""
        live = self.core._leases.values()
        return next(record.shares[0] for record in live if record.shares[0].private())

    async def turn(self, salt: str = "", *, stay: bool = False) -> None:
        """One request that begins as others do; whether its lease stays, with room of its own."""
        prompt = [self.dice.randrange(2) for _ in range(4 + self.dice.randrange(12) // 2 * 2)]
        space = Namespace(salt=salt or None)
        lease = await self.cache.acquire(prompt, namespace=space)
        await lease.extend(len(prompt) - lease.extent)
        await lease.snapshot(at=len(prompt))
        await lease.publish()
        if stay:
            await lease.extend(5)
            self.leases.append(lease)
        else:
            await lease.release()

    async def audit(self, rounds: int, *, busy: bool) -> list[Finding]:
        """Do so many rounds, with turns between the slices."""
        counts = self.core.statistics.counters.audits
        until = counts.rounds + rounds
        found: list[Finding] = []
        while counts.rounds < until:
            found += await self.cache._port.ask(Audit())
            if busy and self.dice.random() < 0.5:
                await self.turn("others")
        return found

    async def release(self) -> None:
        """End the leases that have stayed."""
        for lease in self.leases:
            await lease.release()


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("banyankv.runtime.coordinator.audit_round.NODES", 5)
    monkeypatch.setattr("banyankv.runtime.coordinator.audit_round.STEPS", 3)


async def test_nothing_is_found_in_a_sound_cache(dispatch: str) -> None:
    async with open_cache(config(dispatch=dispatch)) as cache:
        inside = Inside(cache)
        for n in range(15):
            await inside.turn(stay=n % 5 == 4)
        assert await inside.audit(3, busy=True) == []
        await inside.release()
        assert await inside.audit(2, busy=True) == []
        stats = (await cache.stats()).audits
        assert (stats.rounds, stats.findings) == (5, 0)
        assert stats.slices > 50
        await cache.check()


# -- what is found, for each invariant ------------------------------------------------------------


def page_owned_twice(inside: Inside) -> None:
    one = inside.record("full", lambda r: r.at[0] is not None)
    other = inside.record("full", lambda r: r.at[0] is not None and r is not one)
    other.at[0].pages = one.at[0].pages[:4] + other.at[0].pages[4:]


def page_of_a_lease_in_the_tree(inside: Inside) -> None:
    payload = inside.record("full", lambda r: r.at[0] is not None and not r.lock).at[0]
    payload.pages = inside.private().private()[:4] + payload.pages[4:]


def page_leaked(inside: Inside) -> None:
    inside.actor("l1")._pools["swa"].take(1)


def page_on_l2_leaked(inside: Inside) -> None:
    inside.actor("l2")._pools["full"].take(1)


def page_free_and_held(inside: Inside) -> None:
    held = inside.record("full", lambda r: r.at[0] is not None and r.lock)
    pool = inside.actor("l1")._pools["full"]
    pool.owners.remove(held.at[0].pages[:4])
    pool._free.frombytes(held.at[0].pages[:4])


def page_free_twice(inside: Inside) -> None:
    free = inside.actor("l1")._pools["mamba"]._free
    free.insert(0, free[0])


def page_lost_from_the_free_list(inside: Inside) -> None:
    del inside.actor("l1")._pools["full"]._free[0]


def page_in_quarantine_for_ever(inside: Inside) -> None:
    tier = inside.actor("l1")
    pool = tier._pools["full"]
    pages = pool.take(1)
    pool.owners.remove(pages)
    pool.quarantined += 1
    tier._held[999] = [(pool, pages, 0)]


def lock_too_many(inside: Inside) -> None:
    inside.presence("full").lock(inside.record("full", lambda r: r.lock))


def lock_on_nothing(inside: Inside) -> None:
    inside.presence("swa").lock(inside.record("swa", lambda r: not r.lock and r.at[0] is not None))


def lock_too_few(inside: Inside) -> None:
    inside.presence("swa").unlock(inside.record("swa", lambda r: r.lock))


def state_locked(inside: Inside) -> None:
    inside.presence("mamba").lock(inside.record("mamba", lambda r: r.at[0] is not None))


def child_counter_wrong(inside: Inside) -> None:
    inside.record("full", lambda r: r.kids[0]).kids[0] += 1


def child_counter_of_the_root_wrong(inside: Inside) -> None:
    inside.presence("full").records[ROOT].kids[1] += 1


def cached_sum_wrong(inside: Inside) -> None:
    inside.presence("full").cached[0] += 1


def cached_sum_of_l2_wrong(inside: Inside) -> None:
    inside.presence("mamba").cached[1] -= 1


def payload_sum_wrong(inside: Inside) -> None:
    inside.presence("swa").payloads[1] += 1


def arriving_sum_wrong(inside: Inside) -> None:
    inside.presence("full").arriving[0] += 1


def locked_sum_wrong(inside: Inside) -> None:
    inside.presence("swa").locked += 2


def payload_of_the_wrong_size(inside: Inside) -> None:
    payload = inside.record("swa", lambda r: r.at[0] is not None and r.lock).at[0]
    payload.pages = payload.pages[:-4]


def extent_wrong(inside: Inside) -> None:
    inside.record("swa", lambda r: r.lock).start += 2


def record_lost(inside: Inside) -> None:
    records = inside.presence("mamba").records
    del records[next(id for id in records if id != ROOT)]


def not_queued_for_eviction(inside: Inside) -> None:
    leaf = inside.record("full", lambda r: r.at[0] is not None and not (r.kids[0] or r.lock))
    leaf.at[0].queued = False


def record_that_nobody_knows(inside: Inside) -> None:
    records = inside.presence("mamba").records
    records[inside.tree._last_id + 5] = records[next(id for id in records if id != ROOT)]


def link_to_a_child_lost(inside: Inside) -> None:
    node = inside.fork()
    del node.children[next(iter(node.children))]


def link_to_a_root_child_lost(inside: Inside) -> None:
    root = next(iter(inside.tree._roots.values()))
    root.children.popitem()


def link_to_the_parent_wrong(inside: Inside) -> None:
    node = inside.fork()
    node.below()[0].parent = node.parent


def child_that_is_none(inside: Inside) -> None:
    node = inside.fork()
    node.children[b"nobody's"] = node


def node_forgotten(inside: Inside) -> None:
    del inside.tree._nodes[inside.fork().below()[0].id]


def edge_cut(inside: Inside) -> None:
    node = inside.fork()
    node.key = node.key[:-4]


def table_of_a_lease_wrong(inside: Inside) -> None:
    table = inside.private().table
    table._buffer[table._first] ^= 1


def transfer_that_nobody_works_on(inside: Inside) -> None:
    Promote(inside.core._transfers)


def payload_read_by_a_transfer_that_is_over(inside: Inside) -> None:
    payload = inside.record("full", lambda r: r.at[1] is not None and r.lock).at[1]
    payload.readers += (999,)


def word_to_start_backups_lost(inside: Inside) -> None:
    inside.core._background.woken = True


CORRUPTIONS: dict[Callable[[Inside], None], tuple[str, str]] = {
    page_owned_twice: ("l1", "P2"),
    page_of_a_lease_in_the_tree: ("l1", "P2"),
    page_leaked: ("l1", "P1"),
    page_on_l2_leaked: ("l2", "P1"),
    page_free_and_held: ("l1", "P2"),
    page_free_twice: ("l1", "P2"),
    page_lost_from_the_free_list: ("l1", "P1"),
    page_in_quarantine_for_ever: ("l1", "P3"),
    lock_too_many: ("full", "L3"),
    lock_on_nothing: ("swa", "L3"),
    lock_too_few: ("swa", "L3"),
    state_locked: ("mamba", "L3"),
    child_counter_wrong: ("full", "S9"),
    child_counter_of_the_root_wrong: ("full", "S9"),
    cached_sum_wrong: ("full", "S8"),
    cached_sum_of_l2_wrong: ("mamba", "S8"),
    payload_sum_wrong: ("swa", "S8"),
    arriving_sum_wrong: ("full", "S8"),
    locked_sum_wrong: ("swa", "S8"),
    payload_of_the_wrong_size: ("swa", "T7"),
    extent_wrong: ("swa", "T2"),
    record_lost: ("mamba", "S8"),
    record_that_nobody_knows: ("mamba", "S8"),
    link_to_a_child_lost: ("tree", "T3"),
    link_to_a_root_child_lost: ("tree", "T3"),
    link_to_the_parent_wrong: ("tree", "T3"),
    child_that_is_none: ("tree", "T3"),
    node_forgotten: ("tree", "T3"),
    edge_cut: ("tree", "T2"),
    table_of_a_lease_wrong: ("cache", "L1"),
    transfer_that_nobody_works_on: ("cache", "W2"),
    payload_read_by_a_transfer_that_is_over: ("full", "M1"),
    not_queued_for_eviction: ("full", "E1"),
    word_to_start_backups_lost: ("cache", "W3"),
}


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda corrupt: corrupt.__name__)
async def test_what_is_wrong_is_found_in_two_rounds(
    corrupt: Callable[[Inside], None],
) -> None:
    """The round under way may have passed it; the next one finds it."""
    wrong = CORRUPTIONS[corrupt]
    async with open_cache(config()) as cache:
        inside = Inside(cache)
        for n in range(12):
            await inside.turn(stay=n % 4 == 3)
        await cache.settle()
        assert await inside.audit(1, busy=True) == []
        for _ in range(inside.dice.randrange(20)):
            assert await cache._port.ask(Audit()) == ()
        corrupt(inside)
        found = await inside.audit(2, busy=True)
        by = {(finding.actor.rpartition("/")[2], finding.law) for finding in found}
        assert wrong in by, found


# -- who waits ------------------------------------------------------------------------------------


async def test_backups_that_wait_for_a_transfer_that_is_not_there_are_found(dispatch: str) -> None:
    async with open_cache(config(dispatch=dispatch)) as cache:
        inside = Inside(cache)
        inside.core._due.postponed[1] = None
        assert [finding.law for finding in await inside.audit(1, busy=False)] == ["W5"]


@pytest.mark.parametrize(("lose", "law"), [("place", "W1"), ("alarm", "W4")])
async def test_a_request_that_nobody_will_wake_is_found(lose: str, law: str, dispatch: str) -> None:
    async with (
        open_cache(config(dispatch=dispatch, room_timeout=1e6)) as cache,
        trio.open_nursery() as nursery,
    ):
        inside = Inside(cache)
        first, second = await cache.acquire([1]), await cache.acquire([2])
        await first.extend(790)
        nursery.start_soon(second.extend, 20)
        await trio.testing.wait_all_tasks_blocked()
        assert await inside.audit(2, busy=False) == []
        if lose == "place":
            inside.core._queue.waiting.clear()
        else:
            inside.core._alarm.rung()
        assert [finding.law for finding in await inside.audit(1, busy=False)] == [law]
        nursery.cancel_scope.cancel()


# -- what comes of it -----------------------------------------------------------------------------


async def test_what_the_auditor_finds_is_a_crash_and_the_cache_recovers(
    dispatch: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cache(config(dispatch=dispatch, audit_rate=2000)) as cache:
        inside = Inside(cache)
        for n in range(8):
            await inside.turn(stay=n % 4 == 3)
        counts = inside.core.statistics.counters.audits
        with trio.fail_after(20):
            while counts.rounds < 3:  # noqa: ASYNC110 - the auditor tells nobody
                await trio.sleep(0.01)
            assert not counts.findings
            lock_too_few(inside)
            while not (await cache.stats()).recoveries:  # noqa: ASYNC110 - as above
                await trio.sleep(0.01)
        stats = await cache.stats()
        assert stats.recoveries == {"/swa": 1}
        assert stats.audits.findings
        await cache.check()
        rounds = counts.rounds + 2
        with trio.fail_after(20):
            while counts.rounds < rounds:
                await inside.turn()
                await trio.sleep(0.01)
        assert (await cache.stats()).recoveries == {"/swa": 1}, (
            "it recovers once, and is audited on"
        )
        for lease in inside.leases:
            await lease.extend(1)
        await inside.release()
        await cache.check()
    lines = [record.getMessage() for record in caplog.records if record.name == "banyankv"]
    assert any("audit found" in line and "L3" in line for line in lines)
    assert any("the audit found: L3: swa: node" in line for line in lines), "as the cause"


async def test_a_message_of_an_audit_that_comes_twice_counts_once() -> None:
    twice = Fault(what=FaultKind.DUPLICATE, probability=0.5, times=0)
    names = ("BeginTree", "BeginRecords", "BeginPages", "ScanTree", "ScanRecords", "EndRecords")
    faults = tuple(
        msgspec.structs.replace(twice, message=name)
        for name in (*names, "CountPages", "JudgePages")
    )
    async with open_cache(config(), faults=FaultPlan(faults=faults)) as cache:
        inside = Inside(cache)
        for n in range(10):
            await inside.turn(stay=n % 4 == 3)
        assert await inside.audit(4, busy=True) == []
        await inside.release()


async def test_without_a_rate_nobody_audits() -> None:
    async with open_cache(config()) as cache:
        await Inside(cache).turn()
        assert not any(path.endswith("/audit") for path in cache._port.ref.system.refs)
        assert (await cache.stats()).audits.slices == 0


@pytest.mark.parametrize("rate", [-1, float("inf"), float("nan"), "often", True])
def test_a_rate_is_a_number_from_0_on(rate: object) -> None:
    with pytest.raises(ConfigError, match="audit_rate"):
        config(audit_rate=rate)
