"""What a child task crashes over is a crash of its actor; who waits for it is tried again."""

from __future__ import annotations

import trio
import trio.testing
from banyankv import Tier, open_cache

from .scene import CHUNK, ON_L2, config, quiet_world


def test_who_waits_for_a_copy_whose_task_crashes_is_tried_again(dispatch):
    async def main() -> None:
        wrong = [False]

        async def before_copy(source: Tier, target: Tier, moves: object) -> None:
            if wrong[0] and target == Tier.L1:
                wrong[0] = False
                raise ValueError("not planned for")

        opened = open_cache(config(dispatch, full=False), before_copy=before_copy)
        with trio.fail_after(600):
            async with opened as cache:
                async with await cache.acquire(ON_L2) as lease:
                    await lease.extend(CHUNK)
                    await lease.snapshot(at=CHUNK)
                    await lease.publish(CHUNK)
                await cache.settle()
                for name in ("mamba", "swa", "full"):
                    await cache.evict(name, 1 << 20)
                wrong[0] = True
                async with await cache.acquire(ON_L2) as lease:  # L2 is forgotten with the crash
                    assert lease.length == 0
                stats = await cache.stats()
                assert stats.recoveries == {"/controller": 1}
                assert stats.forgotten_tokens["l2"] == CHUNK
                await cache.check()

    with quiet_world(1):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
