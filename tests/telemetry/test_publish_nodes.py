"""What a publish says of nodes: each counts once, however many components gained payload there."""

from __future__ import annotations

from typing import Any

from banyankv import (
    CacheConfig,
    ModelSpec,
    PagedSpec,
    SnapshotSpec,
    StateTensor,
    Tier,
    open_cache,
)

MODEL = ModelSpec(
    name="m",
    page_size=4,
    components=(
        PagedSpec(name="full"),
        PagedSpec(name="swa", rule="swa", window=8),
        SnapshotSpec(states=(StateTensor("s", (1,)),)),
    ),
)


async def test_a_revived_node_counts_once(sampled: Any) -> None:
    """One node is there, on L2; publishing its tokens again revives it in all three components."""
    room = {"full": 8, "swa": 8, "mamba": 4}
    config = CacheConfig(model=MODEL, l1=room, l2=room)
    prompt = list(range(9))
    async with open_cache(config, telemetry=sampled.telemetry) as cache:
        for _ in range(2):
            lease = cache.try_acquire(prompt)
            assert lease is not None
            assert lease.length == 0
            await lease.extend(8)
            await lease.snapshot(at=8)
            await lease.publish(8)
            await lease.release()
            await cache.settle()
            for name in ("mamba", "swa", "full"):
                await cache.evict(name, 8, Tier.L1)
        assert (await cache.stats()).nodes == 1
    spans = [span for span in sampled.spans() if span.name == "banyankv.publish"]
    assert [span.attributes["banyankv.nodes"] for span in spans] == [1, 1]
