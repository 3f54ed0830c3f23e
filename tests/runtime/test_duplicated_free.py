"""A message that comes twice frees nothing twice."""

from __future__ import annotations

from banyankv import CacheConfig, ModelSpec, PagedSpec, open_cache
from banyankv.actors.faults import Fault, FaultKind, FaultPlan


async def test_a_duplicated_free_gives_no_page_to_two_owners() -> None:
    model = ModelSpec(name="m", page_size=4, components=(PagedSpec(name="full"),))
    twice = Fault(what=FaultKind.DUPLICATE, receiver="*/l1", message="Free", times=0)
    config = CacheConfig(model=model, l1={"full": 64}, dispatch="mailbox")
    async with open_cache(config, faults=FaultPlan(faults=(twice,))) as cache:
        for turn in range(4):
            tokens = range(turn * 1000, turn * 1000 + 40)
            async with (
                await cache.acquire(tokens) as one,
                await cache.acquire([*tokens, 7]) as other,
            ):
                for lease in (one, other):
                    await lease.extend(40 - lease.length)
                await one.publish(20)
                assert not {*one.pages("full")} & {*other.pages("full")}
        await cache.evict("full", 100)
        await cache.check()
