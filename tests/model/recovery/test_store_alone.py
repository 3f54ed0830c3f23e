"""The actor of L3 is made anew alone: L1 and L2 lose nothing by its crash, and nobody waits for it."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from banyankv import CacheConfig, open_cache
from banyankv.actors import Fault, FaultKind, FaultPlan
from banyankv.errors import ActorCrashed
from banyankv.testing import MemoryStore

from ..driving import simulated
from ..engine import config_of, model_of

MODEL = model_of(2, name="store-alone")
TOKENS = list(range(1, 18))


def config(dispatch: str) -> CacheConfig:
    return config_of(MODEL, 64, 64, dispatch)


def crash(receiver: str, message: str, nth: int = 1) -> Fault:
    return Fault(what=FaultKind.CRASH, receiver=receiver, message=message, nth=nth)


async def serve(cache, tokens) -> int:
    async with await cache.acquire(tokens) as lease:
        if len(tokens) > lease.extent:
            await lease.extend(len(tokens) - lease.extent)
        await lease.publish()
        return lease.length


def run(main) -> None:
    with simulated(0, 4):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("message", ["Probe", "Save", "CallOver"])
def test_what_crashes_l3_while_prefixes_are_saved_costs_that_save(dispatch, message):
    async def main() -> None:
        plan = FaultPlan(faults=(crash("/store/l3", message),))
        opened = open_cache(config(dispatch), store=MemoryStore(), faults=plan)
        with trio.fail_after(600):
            async with opened as cache:
                for _ in range(3):
                    await serve(cache, TOKENS)
                    await cache.settle()
                    assert await serve(cache, TOKENS) == 16
                assert (await cache.stats()).recoveries == {}
                await trio.sleep(1)
                assert cache._assembled.system.find("/store/l3").restarts == 1
                await cache.check()

    run(main)


@pytest.mark.parametrize("message", ["Probe", "Fetch", "CallOver"])
def test_who_waits_for_what_l3_crashes_over_goes_on_without_it(dispatch, message):
    async def main() -> None:
        store = MemoryStore()
        with trio.fail_after(600):
            async with open_cache(config(dispatch), store=store) as cache:
                await serve(cache, TOKENS)
                await cache.settle()
            plan = FaultPlan(faults=(crash("/store/l3", message),))
            async with open_cache(config(dispatch), store=store, faults=plan) as cache:
                assert await serve(cache, TOKENS) == 0
                await cache.settle()
                await cache.flush()
                assert await serve(cache, TOKENS) == 16  # the next one finds it again
                assert (await cache.stats()).recoveries == {}
                await cache.check()

    run(main)


def test_statistics_do_not_wait_for_l3_to_be_made_anew(dispatch):
    async def main() -> None:
        plan = FaultPlan(faults=(crash("/store/l3", "Probe"),))
        with trio.fail_after(600):
            async with open_cache(config(dispatch), store=MemoryStore(), faults=plan) as cache:
                await serve(cache, TOKENS)
                ref = cache._assembled.system.find("/store/l3")
                while ref.ready or dispatch == "mailbox":
                    await trio.lowlevel.checkpoint()
                    if ref.crash is not None:
                        break
                before = trio.current_time()
                assert (await cache.stats()).store is not None
                assert trio.current_time() == before

    run(main)


def test_a_recovery_names_the_actor_that_crashed_and_not_l3_before_it(dispatch):
    async def main() -> None:
        plan = FaultPlan(faults=(crash("/store/l3", "Probe"), crash("/tree", "Insert", 2)))
        with trio.fail_after(600):
            async with open_cache(config(dispatch), store=MemoryStore(), faults=plan) as cache:
                await serve(cache, TOKENS)
                await cache.settle()
                async with await cache.acquire([90, 91, 92]) as lease:
                    await lease.extend(3)
                    with pytest.raises(ActorCrashed) as caught:
                        await lease.publish()
                    assert caught.value.path == "/tree"
                    assert caught.value.cause_type.endswith("InjectedCrash")
                    assert "the fault plan crashes /tree at Insert" in caught.value.traceback
                    assert await lease.publish() == 2
                assert (await cache.stats()).recoveries == {"/tree": 1}

    run(main)
