"""Random histories of every kind of cache, judged after every step by the flat reference model.

`BANYANKV_HISTORIES` says how many there are in all (by default what CI has time for); they are the same
in every run, by their seeds. A failing one is printed as the shortest script that still fails.
"""

from __future__ import annotations

import os
import pprint

import pytest

from .hunt import fault_of, shortest
from .script import LOWER, MODELS, script_of

HISTORIES = int(os.environ.get("BANYANKV_HISTORIES", "240"))
CACHES = [
    "+".join(("full", *model, *lower))
    for model in MODELS
    for lower in LOWER
    if not ("store" in lower and "sink" in model)  # a store refuses rules with several ranges
]


@pytest.mark.timeout(600 + HISTORIES)
@pytest.mark.parametrize("kinds", CACHES)
def test_random_histories(kinds: str) -> None:
    """After every step the invariants hold, bytes stand where they belong, and nothing is leaked."""
    first = CACHES.index(kinds)
    for seed in range(first, HISTORIES, len(CACHES)):
        script = script_of(seed, kinds)
        fault = fault_of(script)
        if fault:
            small = shortest(script)
            pytest.fail(f"seed {seed}: {fault}\nas short as it gets:\n{pprint.pformat(small)}")
