"""Messages: frozen values that name the type of their answer."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

import msgspec

Answer_co = TypeVar("Answer_co", covariant=True)


class Message(msgspec.Struct, Generic[Answer_co], frozen=True, gc=False):
    """Base of all messages: `class Walk(Message[Walked], frozen=True)` is answered by a `Walked`.

    One that nobody waits for is a `Message[None]`. Without `gc` the garbage collector never looks at
    one, so fields hold plain values: no cycles.
    """

    withdrawable: ClassVar[bool] = True
    """Whether it is taken back where its asker leaves while it is queued; else it is handled then too."""


class Reply(msgspec.Struct, frozen=True, gc=False):
    """Base of answers that have fields, and of their parts; plain values as in a message."""
