"""Page tables are filled for those who look at them: when one looks must not change what one sees."""

from __future__ import annotations

import pytest
from banyankv import CacheConfig, ModelSpec, PagedSpec, SnapshotSpec, StateTensor, open_cache

MODEL = ModelSpec(
    name="m",
    page_size=4,
    components=(
        PagedSpec(name="full", head_dim=2),
        PagedSpec(name="swa", rule="swa", window=8, head_dim=2),
        SnapshotSpec(states=(StateTensor("s", (1,), "float32"),)),
    ),
)
ROOM = {"full": 100, "swa": 100, "mamba": 9}
PROMPT = list(range(40))


def seen(lease) -> tuple[object, ...]:
    tables = [(lease.start(name), lease.pages(name).tolist()) for name in ("full", "swa")]
    return (*tables, lease.state())


async def life(dispatch: str, *, look: bool) -> list[tuple[object, ...]]:
    """Answer the tables at the end of each stage: of a first request, and of one with duplicates."""
    told: list[tuple[object, ...]] = []

    def stage(lease) -> None:
        if look:
            seen(lease)

    async with open_cache(CacheConfig(model=MODEL, l1=ROOM, dispatch=dispatch)) as cache:
        first, second = await cache.acquire(PROMPT), await cache.acquire(PROMPT)
        for lease in (first, second):
            stage(lease)
            for count in (18, 10, 12):
                await lease.extend(count)
                stage(lease)
            await lease.trim(7)
            stage(lease)
            await lease.extend(7)
            stage(lease)
            await lease.publish(32)
            stage(lease)
            lease.append(range(100, 120))
            await lease.extend(20)
            stage(lease)
            await lease.publish()
            told.append(seen(lease))
            await lease.extend(9)
            told.append(seen(lease))
        for lease in (first, second):
            await lease.release()
        third = await cache.acquire(PROMPT)
        stage(third)
        await third.extend(8)
        await third.extend(8)
        told.append(seen(third))
        await third.release()
        await cache.check()
    return told


async def test_looking_late_shows_what_looking_all_the_time_does(dispatch):
    late, always = await life(dispatch, look=False), await life(dispatch, look=True)
    assert late == always
    first, second = always[0], always[2]
    # Windows have moved, and what the second request computed too was given back for the first's.
    assert first[1][0] > 0
    assert first[:2] == second[:2]


@pytest.mark.parametrize("look", [False, True])
async def test_a_view_outlives_what_comes_after_it(dispatch, look):
    config = CacheConfig(model=MODEL, l1=ROOM, dispatch=dispatch)
    async with open_cache(config) as cache, await cache.acquire(PROMPT) as lease:
        before = lease.pages("full") if look else None
        await lease.extend(20)
        view = lease.pages("full")
        assert len(view) == 5
        await lease.extend(20)
        assert len(view) == 5
        assert lease.pages("full").tolist()[:5] == view.tolist()
        assert before is None or len(before) == 0
