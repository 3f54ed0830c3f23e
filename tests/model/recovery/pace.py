"""How long a recovery takes.

    python -m tests.model.recovery.pace

prints, for 10 and 1,000 live leases of 8,192 tokens each that share half of them, the time from the crash
to the first answer after it, and how much of it the supervisor waits.
"""

from __future__ import annotations

import logging
import time

import trio
from banyankv import CacheConfig, ModelSpec, PagedSpec, SnapshotSpec, open_cache
from banyankv.actors.specs import Backoff
from banyankv.errors import IntegrityError
from banyankv.spec import StateTensor

TOKENS, PAGE = 8192, 16
MODEL = ModelSpec(
    name="pace",
    page_size=PAGE,
    components=(
        PagedSpec(name="full", head_dim=1, tensors=1),
        PagedSpec(name="swa", rule="swa", window=1024, head_dim=1, tensors=1),
        SnapshotSpec(states=(StateTensor("s", (1,), "float32"),)),
    ),
)


async def recovery(count: int) -> tuple[float, float]:
    """Return the seconds of a recovery with so many leases, and of its backoff."""
    pages = (count + 2) * TOKENS // PAGE
    config = CacheConfig(model=MODEL, l1={"full": pages, "swa": pages, "mamba": 4 * count + 16})
    async with open_cache(config) as cache:
        leases = []
        for index in range(count):
            prompt = [
                *range(TOKENS // 2),
                *range(10_000 * (index + 1), 10_000 * (index + 1) + 4096),
            ]
            lease = await cache.acquire(prompt)
            if lease.extent < TOKENS // 2:
                await lease.extend(TOKENS // 2 - lease.extent)
                await lease.snapshot(at=TOKENS // 2)
            await lease.extend(TOKENS - lease.extent)
            await lease.publish(TOKENS - TOKENS // 8)
            leases.append(lease)
        began = time.perf_counter()
        cache._assembled.system.find("/tree").condemn(IntegrityError("for once"))
        await cache.peek([1, 2, 3])
        took = time.perf_counter() - began
        await cache.check()
        for lease in leases:
            await lease.release()
    return took, Backoff().first


def main() -> None:
    """Print the table."""
    logging.getLogger("banyankv").setLevel(logging.ERROR)
    print("| leases of 8,192 tokens | recovery | of it backoff |\n|--:|--:|--:|")
    for count in (10, 1000):
        took, backoff = min(trio.run(recovery, count) for _ in range(3 if count < 100 else 1))
        print(f"| {count:,} | {took * 1e3:.0f} ms | {backoff * 1e3:.0f} ms |")


if __name__ == "__main__":
    main()
