"""What the kernel tells an actor about itself, by way of its control lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .reply import ReplyToken


class Abandoned:
    """The asker of a deferred reply left. Never leaves the process, so it may hold the token itself."""

    __slots__ = ("token",)

    def __init__(self, token: ReplyToken) -> None:
        self.token = token


class Prepare:
    """A life has begun: what a coordinator does before it hears anybody."""

    __slots__ = ()


class Unwanted:
    """An answer was given and reached nobody: its asker was cancelled before it could run on."""

    __slots__ = ("token",)

    def __init__(self, token: ReplyToken) -> None:
        self.token = token
