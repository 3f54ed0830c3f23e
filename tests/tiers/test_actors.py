"""The tiers as actors: the same answers through a mailbox as in the caller's stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from banyankv.actors import open_system
from banyankv.errors import IntegrityError
from banyankv.spec import ModelSpec
from banyankv.tiers.arena import HostArena
from banyankv.tiers.l1 import L1Tier
from banyankv.tiers.l2 import L2Tier
from banyankv.tiers.messages import Allocate, CopyState, Free, FreePages, Over, Usage
from banyankv.tiers.pools import DevicePools

PAGES = {"full": 12, "latent": 8, "mamba": 5}


async def test_every_message_reaches_its_handler(
    make_model: Callable[..., ModelSpec], dispatch: Any
) -> None:
    model = make_model()
    pools = DevicePools(model, PAGES)
    arena = HostArena.for_pages(model, PAGES)
    async with open_system("tiers", dispatch=dispatch) as system:
        l1 = await system.spawn(lambda: L1Tier(pools), name="l1")
        l2 = await system.spawn(lambda: L2Tier(arena), name="l2")
        for tier in (l1, l2):
            before = await tier.ask(Usage())
            pages = (await tier.ask(Allocate((("full", 3), ("mamba", 1))))).pages
            await tier.ask(Free((("full", pages[0], 5), ("mamba", pages[1], 0))))
            free, held = await tier.ask(FreePages("full"))
            assert held == pages[0]
            assert pages[0] not in free
            with pytest.raises(IntegrityError):
                await tier.ask(Free((("full", pages[0], 0),)))
            assert await tier.ask(Over(5)) == (("full", 3),)
            assert await tier.ask(Usage()) == before
        slots = (await l1.ask(Allocate((("mamba", 1), ("mamba", 1))))).pages
        pools.layer("mamba", 1).zero_()[int.from_bytes(slots[0], "little")] = 3.0
        await l1.ask(CopyState("mamba", *slots))
        assert pools.layer("mamba", 1)[int.from_bytes(slots[1], "little")].tolist() == [3.0] * 5
