"""What the type checker must refuse: mypy reads this file, and an ignore that is not needed is an error."""

from __future__ import annotations

from banyankv.actors import Coordinator, Leaf, Message, Ref, handles


class Double(Message[int], frozen=True):
    value: int


class Right(Leaf):
    @handles(Double)
    def double(self, msg: Double) -> int:
        return 2 * msg.value


class RightAbove(Coordinator):
    @handles(Double)
    async def double(self, msg: Double) -> int:
        return 2 * msg.value


class Deferring(Leaf):
    @handles(Double)
    def double(self, msg: Double) -> None:
        self.defer()


class Wrong(Leaf):
    @handles(Double)  # type: ignore[arg-type]
    def double(self, msg: Double) -> str:
        return str(msg.value)


class WrongAbove(Coordinator):
    @handles(Double)  # type: ignore[arg-type]
    async def double(self, msg: Double) -> str:
        return str(msg.value)


class NoMessage(Leaf):
    @handles(int)  # type: ignore[arg-type]
    def double(self, msg: int) -> int:
        return 2 * msg


async def ask(ref: Ref[Right]) -> tuple[int, str]:
    right: int = await ref.ask(Double(1))
    wrong: str = await ref.ask(Double(1))  # type: ignore[arg-type]
    wrong = ref.call(Double(1))  # type: ignore[assignment]
    return right, wrong
