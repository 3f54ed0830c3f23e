"""Page lists, and fences that a test passes."""

from __future__ import annotations

from array import array

from banyankv.tiers.fences import NoFences


def packed(*pages: int) -> bytes:
    return array("i", pages).tobytes()


def ids(pages: bytes) -> list[int]:
    return array("i", pages).tolist()


class ManualFences(NoFences):
    """Fences that pass when the test says so."""

    def __init__(self) -> None:
        self.done = 0

    def passed(self, fence: int) -> bool:
        return fence <= self.done
