"""What an acquire says of where its tokens were is what `peek` had said, also where it splits an edge."""

from __future__ import annotations

from banyankv import CacheConfig, ModelSpec, PagedSpec, Tier, open_cache

MODEL = ModelSpec(
    name="m",
    page_size=4,
    components=(PagedSpec(name="full"), PagedSpec(name="swa", rule="swa", window=8)),
)


async def test_hits_by_tier_where_a_claim_splits_an_edge(dispatch: str) -> None:
    """The window's upper node is on L2 only: nothing of the reuse was on L1."""
    config = CacheConfig(
        model=MODEL,
        l1={"full": 32, "swa": 32},
        l2={"full": 32, "swa": 32},
        dispatch=dispatch,
    )
    prompt = list(range(24))
    async with open_cache(config) as cache:
        async with await cache.acquire(prompt) as lease:
            await lease.extend(24)
            await lease.publish()  # two nodes: [0, 16) and [16, 24)
        await cache.settle()
        await cache.evict("swa", 1, Tier.L1)  # takes [0, 16): the shallow one first
        fork = [*prompt[:20], 99, 98]  # ends inside the second node
        peek = await cache.peek(fork)
        assert (peek.length, peek.device) == (20, 0)
        async with await cache.acquire(fork) as lease:
            assert lease.length == 20
            assert (lease.hit.l1, lease.hit.l2) == (0, 20)
        hits = (await cache.stats()).hit_tokens
        assert (hits.l1, hits.l2) == (0, 20)
