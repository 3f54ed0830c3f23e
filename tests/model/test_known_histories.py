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
    "judge: a node was split after an acquire that waits had locked it": Script(
        kinds=("swa", "l2", "store"),
        page=1,
        window=2,
        chunk=2,
        pages=60,
        slots=16,
        host=16,
        store=True,
        seed=2002193,
        steps=(
            Step("turn"),
            Step("turn"),
            Step("demote"),
            Step("stall"),
            Step("start"),
            Step("acquire", c=43, d=1),
        ),
    ),
    "judge: of two who hear in one round that they are refused, either was the last": Script(
        kinds=("mamba",),
        page=4,
        window=7,
        chunk=3,
        pages=16,
        slots=3,
        host=8,
        seed=2002632,
        steps=(
            Step("turn", 0, 0, 0, 0),
            Step("turn", 0, 0, 1, 9),
            Step("hurry", 3, 0, 0, 2),
            Step("acquire", 0, 0, 0, 0),
            Step("crowd", 0, 0, 0, 0),
            Step("start", 0, 0, 0, 47),
            Step("publish", 36, 42, 31, 3),
            Step("start", 30, 40, 20, 25),
            Step("release", 2, 23, 6, 30),
            Step("start", 17, 11, 35, 23),
            Step("start", 26, 17, 34, 39),
            Step("extend", 7, 5, 36, 45),
            Step("start", 53, 32, 39, 61),
            Step("release", 11, 50, 50, 19),
            Step("extend", 46, 16, 34, 17),
            Step("acquire", 56, 44, 57, 16),
            Step("extend", 45, 42, 42, 15),
            Step("extend", 21, 51, 46, 17),
            Step("jump", 42, 20, 29, 36),
        ),
    ),
}


@pytest.mark.parametrize("what", KNOWN)
def test_known_histories(what: str) -> None:
    assert not fault_of(KNOWN[what])
