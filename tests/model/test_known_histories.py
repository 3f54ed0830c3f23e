"""Histories that found a fault once, of the cache or of its judge, as short as they got."""

from __future__ import annotations

import pytest

from .hunt import fault_of
from .script import Script, Step

KNOWN = {
    "L1 has the stem, L2 has not: what the store brought could not stand": Script(
        kinds=("mamba", "l2", "store"),
        page=2,
        window=3,
        chunk=2,
        host=256,
        store=True,
        seed=601384,
        steps=(
            Step("turn", c=1, d=50),
            Step("turn", c=58),
            Step("turn", c=1),
            Step("evict", b=29, c=1),
            Step("acquire", b=3),
            Step("demote"),
            Step("acquire", b=21),
        ),
    ),
    "judge: what came to the store while an acquire waited was nothing to it": Script(
        kinds=("full", "mamba", "l2", "store"),
        page=16,
        window=80,
        chunk=16,
        slots=16,
        host=256,
        store=True,
        seed=700007,
        steps=(
            Step("turn"),
            Step("stall"),
            Step("turn", c=2),
            Step("demote"),
            Step("acquire"),
        ),
    ),
    "judge: what is only arriving on L2 is no source, and the store does not bring it": Script(
        kinds=("l2", "store"),
        page=16,
        window=32,
        chunk=47,
        pages=8,
        store=True,
        seed=2001030,
        steps=(
            Step("turn", a=15, c=40),
            Step("turn", b=3),
            Step("stall"),
            Step("turn", b=3),
            Step("demote"),
            Step("start"),
        ),
    ),
    "one was refused before the release of another, who had been refused, was heard": Script(
        kinds=("sink",),
        page=16,
        window=47,
        chunk=65,
        pages=16,
        slots=3,
        host=256,
        dispatch="mailbox",
        seed=800966,
        steps=(
            Step("turn", c=2),
            Step("turn"),
            Step("acquire", 63),
            Step("extend", 0, 6, 48, 43),
            Step("start", 57, 12, 8, 49),
            Step("acquire", 35, 20, 60, 50),
            Step("acquire", 17, 26, 34, 28),
            Step("start", 30, 33, 17, 6),
            Step("crowd", 16, 15, 7, 61),
            Step("jump", 9, 52, 55, 4),
        ),
    ),
}


@pytest.mark.parametrize("what", KNOWN)
def test_known_histories(what: str) -> None:
    assert not fault_of(KNOWN[what])
