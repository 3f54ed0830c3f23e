"""What an audit asks a tier: whether each page has one owner, as it was when a round began.

Each message carries its number in the round; one that comes twice counts once.
"""

from __future__ import annotations

from ..actors import Message
from ..spec import PageList

Faults = tuple[tuple[str, str], ...]
"""What was found: the law that is broken (as in `runtime/checking.py`), and by what."""


class BeginPages(Message[frozenset[int]], frozen=True):
    """Begin a round in this operation; answered by the transfers that hold pages in quarantine."""

    round: int


class CountPages(Message[Faults], frozen=True):
    """Count pages that somebody held when the round began, as (component, pages)."""

    number: int
    items: tuple[tuple[str, PageList], ...]


class JudgePages(Message[Faults | None], frozen=True):
    """Judge some more pages, all owners having been counted; None where there are no more."""

    number: int
