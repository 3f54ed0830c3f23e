"""The two published figures, by name."""

from __future__ import annotations

from banyankv import Namespace, Tier

from .engine import config_of, model_of
from .harness import NOBODY, Bench, bench_of
from .reference import Key

PROMPT = tuple(range(16))


async def four_nodes(bench: Bench) -> None:
    """n1..n4 of four tokens each: SWA and a state on n1 and n2, only FULL on n3 and n4."""
    await bench.serve(PROMPT[:8], keep=(4, 8), publish=(4, 8))
    longer = (*PROMPT, *range(100, 108))
    # By the time the prompt's second half is published, its windows have been given back.
    turn = await bench.start(longer, stops=(10, 12, 14, 16, 18, 20, 22))
    assert turn.lease.start("swa") >= 16
    for upto in (12, 16):
        await bench.publish(turn, upto)
    await bench.release(turn)
    await bench.settled()


async def test_walk_n1_to_n4() -> None:
    """n1 and n2 are accepted, n3 and n4 rejected: n2 is kept, although FULL agrees through n4."""
    async with bench_of(config_of(model_of(2, window=4, states=True), 64)) as bench:
        await four_nodes(bench)
        flat = await bench.look()
        assert {len(key.prefix) for key in flat.ends} == {4, 8, 12, 16}
        accepted = {
            at: all(
                bench.referee.allows(flat, name, Key(NOBODY, PROMPT[:at]))
                for name in bench.rules.names
            )
            for at in (4, 8, 12, 16)
        }
        assert accepted == {4: True, 8: True, 12: False, 16: False}
        turn = await bench.acquire(NOBODY, (*PROMPT, 7))
        assert turn is not None
        assert turn.lease.length == 8
        assert turn.lease.full_match == 16
        assert await bench.hit((*PROMPT, 7), namespace=Namespace(salt="")) == 0


async def test_six_pages_f0_to_f5_with_s0_and_s1() -> None:
    """Six pages of FULL are loaded, and of SWA the two that belong to F4 and F5."""
    page = 4
    model = model_of(page, window=2 * page)
    async with bench_of(config_of(model, 32, 32)) as bench:
        prompt = tuple(range(6 * page))
        await bench.serve(prompt)
        for name in ("swa", "full"):
            await bench.evict(name, 32, Tier.L1)
        assert not (await bench.look()).pages("full", Tier.L1)
        moved = (await bench.cache.stats()).moved_bytes["l2_l1"]
        turn = await bench.acquire(NOBODY, (*prompt, 7))
        assert turn is not None
        lease = turn.lease
        assert (lease.length, lease.hit.l1, lease.hit.l2) == (6 * page, 0, 6 * page)
        assert len(lease.pages("full")) == 6
        assert len(lease.pages("swa")) == 2
        assert lease.start("swa") == 4 * page
        assert len((await bench.look()).pages("full", Tier.L1)) == 6
        token_bytes = model.components[0].token_bytes  # type: ignore[union-attr]
        assert (await bench.cache.stats()).moved_bytes["l2_l1"] - moved == (
            6 + 2
        ) * page * token_bytes
