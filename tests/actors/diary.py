"""A diary of lives: children that write down when they start and stop, and how to crash one."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from banyankv.actors import (
    ActorSystem,
    Backoff,
    ChildSpec,
    Ref,
    Strategy,
    SupervisorSpec,
)
from banyankv.errors import ActorCrashed

from .cast import Boom, Counter

AT_ONCE = Backoff(first=0.0, jitter=0.0)


class Diary:
    """What happened to the children, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def child(self, name: str, **options: Any) -> ChildSpec:
        diary = self.lines

        class Child(Counter):
            def on_start(self) -> None:
                diary.append(f"+{name}")

            def on_stop(self, cause: BaseException | None) -> None:
                diary.append(f"{'!' if cause else '-'}{name}")

        return ChildSpec(factory=Child, name=name, **options)

    def take(self) -> str:
        lines, self.lines[:] = " ".join(self.lines), []
        return lines


async def crash(ref: Ref[Any]) -> None:
    with pytest.raises(ActorCrashed):
        await ref.ask(Boom())
    await trio.testing.wait_all_tasks_blocked()


async def three(
    system: ActorSystem, diary: Diary, strategy: Strategy, **options: Any
) -> list[Ref[Any]]:
    options.setdefault("backoff", AT_ONCE)
    spec = SupervisorSpec(
        name="s",
        strategy=strategy,
        children=tuple(diary.child(name) for name in "abc"),
        **options,
    )
    await system.start_children(spec)
    return [system.find(f"/s/{name}") for name in "abc"]
