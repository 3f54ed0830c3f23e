"""The independent script itself: worked by hand on small traces, and the figure of the big one."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "infinite_hit_rate", Path(__file__).parents[1] / "infinite_hit_rate.py"
)
script = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(script)


@pytest.mark.parametrize(
    ("requests", "page_size", "hits"),
    [
        ([(1024, [0, 1]), (1024, [0, 1])], 16, [0, 1008]),
        ([(1024, [0, 1]), (1024, [0, 1])], 1, [0, 1023]),
        ([(1024, [0, 1]), (1536, [0, 2, 3]), (1530, [0, 2, 4])], 16, [0, 512, 1024]),
        # The partial block 1: published as 80 of its 88 tokens.
        ([(600, [0, 1]), (1024, [0, 1]), (600, [0, 1])], 16, [0, 592, 592]),
        # Pages larger than a block: 600 tokens are no page, 1,300 are one.
        ([(600, [0, 1]), (1300, [0, 1, 2]), (1300, [0, 1, 2])], 1024, [0, 0, 1024]),
        ([(5, [0]), (5, [0])], 16, [0, 0]),
    ],
)
def test_hits_worked_by_hand(requests, page_size, hits):
    assert script.hit_tokens(requests, page_size) == hits


def test_states_worked_by_hand():
    requests = [
        (1200, [0, 1, 2]),  # leaves a state at 1,024
        (1500, [0, 1, 3]),  # reuses it, leaves one at 1,280
        (1000, [0, 4]),  # shares 512, where no state is: leaves one there, and at 768
        (1000, [0, 5]),  # reuses the one at 512
        (1000, [0, 4]),  # shares 992 of 1,000: the state at 768
    ]
    assert script.hit_tokens(requests, states=True) == [0, 1024, 0, 512, 768]


def test_the_conversation_trace(traces):
    requests = script.read(traces / "mooncake_conversation_trace.jsonl")
    tokens = sum(length for length, _ in requests)
    assert (len(requests), tokens) == (12031, 144793823)
    assert sum(script.hit_tokens(requests)) / tokens == pytest.approx(0.374, abs=0.0005)
