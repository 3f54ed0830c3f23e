"""The cast: small actors and messages that the kernel's tests play with."""

from __future__ import annotations

from typing import Any

import trio
from banyankv.actors import (
    Actor,
    Coordinator,
    Down,
    Fact,
    Hop,
    Leaf,
    Message,
    Ref,
    ReplyToken,
    handles,
)
from banyankv.errors import ConfigError


class Add(Message[int], frozen=True):
    n: int = 1


class Note(Message[int], frozen=True):
    """Written down in order; a pair of writer and number."""

    who: int
    number: int


class Blob(Message[bytes], frozen=True):
    data: bytes


class Refuse(Message[None], frozen=True):
    pass


class Boom(Message[None], frozen=True):
    pass


class Later(Message[int], frozen=True):
    """Answered by a later Answer."""

    who: str = ""


class Answer(Message[int | None], frozen=True):
    value: int = 0


class Work(Message[int], frozen=True):
    """Answered by a child task after some seconds."""

    seconds: float


class Worked(Message[None], frozen=True):
    id: int


class Who(Message[tuple[Any, float]], frozen=True):
    """What a handler sees of its message's trace and deadline."""


class Forgotten(Message[None], frozen=True):
    """Nobody handles it."""


class End(Message[None], frozen=True):
    """Ends the actor's life in order."""


class Counter(Leaf):
    """Adds, notes, refuses, crashes, answers later."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.notes: list[Any] = []
        self.waiting: list[ReplyToken] = []
        self.abandoned_tokens: list[ReplyToken] = []
        self.orphans: list[tuple[Any, Any]] = []
        self.working: dict[int, ReplyToken] = {}
        self.last = 0

    @handles(Add)
    def add(self, msg: Add) -> int:
        self.total += msg.n
        return self.total

    @handles(Note)
    def note(self, msg: Note) -> int:
        self.notes.append(msg)
        return len(self.notes)

    @handles(Blob)
    def blob(self, msg: Blob) -> bytes:
        return msg.data

    @handles(Refuse)
    def refuse(self, msg: Refuse) -> None:
        raise ConfigError("no")

    @handles(Boom)
    def boom(self, msg: Boom) -> None:
        raise ValueError("boom")

    @handles(Later)
    def later(self, msg: Later) -> None:
        self.waiting.append(self.defer())

    @handles(Answer)
    def answer(self, msg: Answer) -> int:
        waiting, self.waiting = self.waiting, []
        for token in waiting:
            token.reply(msg.value)
        return len(waiting)

    @handles(Work)
    def work(self, msg: Work) -> None:
        self.last += 1
        self.working[self.last] = self.defer()
        self.start(self._work, self.last, msg.seconds)

    async def _work(self, id: int, seconds: float) -> None:
        await trio.sleep(seconds)
        self.ref.tell(Worked(id))

    @handles(Worked)
    def worked(self, msg: Worked) -> None:
        self.working.pop(msg.id).reply(msg.id)

    @handles(Who)
    def who(self, msg: Who) -> tuple[Any, float]:
        return self.trace, self.deadline

    @handles(End)
    def end(self, msg: End) -> None:
        self.stop()

    def abandoned(self, token: ReplyToken) -> None:
        self.abandoned_tokens.append(token)
        if token in self.waiting:
            self.waiting.remove(token)

    def orphaned(self, msg: Any, result: Any) -> None:
        self.orphans.append((msg, result))


class Twice(Message[tuple[int, int]], frozen=True):
    n: int = 1


class Pass(Message[Any], frozen=True):
    """Asks below what it carries by name."""

    what: str
    seconds: float = 0.0


class Sleepy(Message[None], frozen=True):
    """Awaits what no operation may await."""


class Boss(Coordinator):
    """An actor above a Counter."""

    def __init__(self, below: Ref[Any]) -> None:
        super().__init__()
        self.below = below
        self.inside = 0
        self.orphans: list[tuple[Any, Any]] = []
        self.waiting: list[ReplyToken] = []

    @handles(Twice)
    async def twice(self, msg: Twice) -> tuple[int, int]:
        if self.inside:
            raise RuntimeError("two operations at once")
        self.inside += 1
        try:
            first = await self.below.ask(Add(msg.n))
            second = await self.below.ask(Add(msg.n))
        finally:
            self.inside -= 1
        return first, second

    @handles(Pass)
    async def pass_on(self, msg: Pass) -> Any:
        messages = {
            "boom": Boom(),
            "refuse": Refuse(),
            "later": Later(),
            "who": Who(),
            "work": Work(msg.seconds),
            "deep": Pass("work", msg.seconds),
        }
        return await self.below.ask(messages[msg.what])

    @handles(Sleepy)
    async def sleepy(self, msg: Sleepy) -> None:
        await trio.sleep(1)

    @handles(Later)
    async def later(self, msg: Later) -> None:
        self.waiting.append(self.defer())
        await self.below.ask(Add())

    @handles(Answer)
    async def answer(self, msg: Answer) -> None:
        await self.below.ask(Add())
        for token in self.waiting:
            token.reply(msg.value)
        self.waiting.clear()

    def orphaned(self, msg: Any, result: Any) -> None:
        self.orphans.append((msg, result))


class Watcher(Leaf):
    """Hears of others that go down."""

    def __init__(self, other: Ref[Any]) -> None:
        super().__init__()
        self.other = other
        self.downs: list[Down] = []

    def on_start(self) -> None:
        self.monitor(self.other)

    def on_down(self, down: Down) -> None:
        self.downs.append(down)


class Log:
    """An observer that keeps everything."""

    def __init__(self, *, hops: bool = False) -> None:
        self.hops = hops
        self.facts: list[Fact] = []
        self.seen: list[Hop] = []

    def fact(self, fact: Fact) -> None:
        self.facts.append(fact)

    def hop(self, hop: Hop) -> None:
        self.seen.append(hop)


def behind(ref: Ref[Any]) -> Any:
    """Look at the actor behind a reference."""
    actor: Actor | None = ref.actor
    if actor is None:
        raise ConfigError(f"{ref.path} has no actor now")
    return actor


def tasks() -> list[trio.lowlevel.Task]:
    found = []
    queue = [trio.lowlevel.current_root_task()]
    while queue:
        task = queue.pop()
        if task is not None:
            found.append(task)
            queue += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found
