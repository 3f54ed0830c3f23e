"""Where a prompt's states and windows are worth keeping: the places where somebody will come back.

    0 ....... fork ........ spacing ........ the same prompt .. its continuation ... end
              full_match    every n tokens   floor(end - 1)     floor(end)

A recurrent state exists only where a forward ends, so the prefill of a model with states is cut at each
mark. A window needs no cut: all tokens of a forward are written, and what is published behind the
forward that passes a mark has the window there.
"""

from __future__ import annotations

from collections.abc import Iterable


def marks(
    *,
    length: int,
    page: int,
    reused: int,
    fork: int,
    spacing: int = 0,
    keep: Iterable[int] = (),
) -> list[int]:
    """Return the marks of a prompt of `length` tokens, ascending, all whole pages and behind `reused`.

    `fork` is how far other conversations share the prompt (`Lease.full_match`), `spacing` a distance
    in tokens (0 for none), `keep` further positions. All are floored to a page.
    """
    places = {length, length - 1, fork, *keep}
    if spacing:
        places.update(range(spacing, length, spacing))
    floors = {place // page * page for place in places if place <= length}
    return sorted(mark for mark in floors if mark > reused)
