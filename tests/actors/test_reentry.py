"""Reentry: who asks somebody that waits for it is told the cycle."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from banyankv.actors import (
    Coordinator,
    Leaf,
    Ref,
    handles,
    open_system,
)
from banyankv.errors import (
    Reentry,
)

from .cast import (
    Pass,
    behind,
)


class Ring(Coordinator):
    """Asks the next, which asks the next, which asks the first."""

    next: Ref[Any]

    @handles(Pass)
    async def pass_on(self, msg: Pass) -> Any:
        return await self.next.ask(msg)


async def test_reentry_names_the_cycle(dispatch: str) -> None:
    async with open_system("t", dispatch=dispatch) as system:
        refs = [await system.spawn(Ring, name=name) for name in "abc"]
        for ref, other in zip(refs, [*refs[1:], refs[0]], strict=True):
            behind(ref).next = other
        with pytest.raises(Reentry, match=r"^/a -> /b -> /c -> /a$"):
            await refs[0].ask(Pass("on"))
        # a refusal: nobody crashed, and all are free again
        assert [ref.restarts for ref in refs] == [0, 0, 0]
        with pytest.raises(Reentry, match=r"^/b -> /c -> /a -> /b$"):
            await refs[1].ask(Pass("on"))


class Caller(Leaf):
    """A leaf that calls another in its step."""

    other: Ref[Any]

    @handles(Pass)
    def pass_on(self, msg: Pass) -> Any:
        return self.other.call(msg)


async def test_reentry_by_calls_names_the_cycle() -> None:
    async with open_system("t") as system:
        one = await system.spawn(Caller, name="one")
        two = await system.spawn(Caller, name="two")
        behind(one).other = two
        behind(two).other = one
        with pytest.raises(Reentry, match=r"^/one -> /two -> /one$"):
            one.call(Pass("on"))
        one.tell(Pass("on"))
        await trio.testing.wait_all_tasks_blocked()
        assert "/one -> /two -> /one" in system.dead_letters.last[-1].error
