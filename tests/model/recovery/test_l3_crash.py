"""L3's actor crashes while a thread of it still writes: the pages stay its own until that is over."""

import threading

import trio
from banyankv import Namespace, open_cache
from banyankv.testing import MemoryStore
from banyankv.tiers.arena import HostArena

from ..engine import Turn, config_of, model_of

MODEL = model_of(2, name="a")
NAMESPACE = Namespace()
STORED, OTHER = list(range(1, 300)), list(range(1000, 1299))


async def serve(cache, tokens):
    async with await cache.acquire(tokens, namespace=NAMESPACE) as lease:
        turn = Turn(cache, lease, NAMESPACE, tokens)
        turn.verify()
        await lease.extend(len(tokens) - lease.extent)
        turn.compute()
        turn.verify()
        await lease.publish()
        return lease.length


async def take_and_release(cache):
    await (await cache.acquire(STORED, namespace=NAMESPACE)).release()


async def test_a_page_that_a_crashed_life_still_writes_gets_no_other_owner(monkeypatch):
    inside, go, done = threading.Event(), threading.Event(), threading.Event()
    scatter = HostArena.scatter

    def late(arena, component, pages, body):
        inside.set()
        go.wait(20)
        scatter(arena, component, pages, body)
        done.set()

    store = MemoryStore()
    async with open_cache(config_of(MODEL, 300, 150), store=store) as cache:
        await serve(cache, STORED)
        await cache.settle()
    async with (
        open_cache(config_of(MODEL, 300, 150), store=store) as cache,
        trio.open_nursery() as nursery,
    ):
        lease = await cache.acquire(OTHER, namespace=NAMESPACE)
        monkeypatch.setattr(HostArena, "scatter", late)
        nursery.start_soon(take_and_release, cache)
        await trio.to_thread.run_sync(inside.wait, 20)
        cache._assembled.system.find("/store/l3").condemn(RuntimeError("on purpose"))
        turn = Turn(cache, lease, NAMESPACE, OTHER)
        await lease.extend(len(OTHER))
        turn.compute()
        await lease.publish()
        await lease.release()
        with trio.move_on_after(
            2
        ):  # its backup wants pages of L2: had it any, it would be over soon
            while not (await cache.stats()).moved_bytes["l1_l2"]:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.01)
        go.set()
        await trio.to_thread.run_sync(done.wait, 20)
        await cache.settle()
        await cache.check()
        assert not (await cache.stats()).recoveries
        await cache.evict("full", 300)
        await serve(cache, OTHER)  # which compares every byte that it reuses
