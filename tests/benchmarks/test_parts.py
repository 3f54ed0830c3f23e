"""What benchmarks are made of: rounds, the gate, goals, floors, the workload, harnesses."""

import hashlib
from functools import partial

import pytest
from banyankv.benchmarks import pace, workload
from banyankv.benchmarks.floors import BarePath, cut
from banyankv.benchmarks.goals import Line
from banyankv.benchmarks.pace import Pace
from banyankv.benchmarks.peers import SGLANG, Peers, find
from banyankv.benchmarks.results import Row, Spread
from banyankv.errors import ConfigError

from .conftest import write_harnesses


async def figure(log, name, values):
    log.append(name)
    return {"µs": next(values)}


async def test_contenders_take_turns_and_ratios_stay_within_a_round():
    log = []
    samples = await Pace(rounds=3).interleave(
        {
            "a": partial(figure, log, "a", iter([10.0, 100.0, 20.0])),
            "b": partial(figure, log, "b", iter([5.0, 50.0, 5.0])),
        }
    )
    assert log == ["a", "b", "a", "b", "a", "b"]
    assert samples.ratio("µs", "a", "b") == Spread(2.0, 2.0, 4.0, 3)
    assert samples.difference("µs", "a", "b") == Spread(15.0, 5.0, 50.0, 3)
    assert samples.spread("b", "µs") == Spread(5.0, 5.0, 50.0, 3)


async def test_the_gate_measures_again_and_leaves_slow_rounds_out(monkeypatch):
    # Before and after: slow then fast; all three tries of the second round slow; three fast ones.
    loops = iter([900, 600, 600, 600] + [900] * 6 + [600] * 6)
    monkeypatch.setattr(pace, "loop_us", lambda: next(loops))
    values = iter([1.0, 2.0, 90.0, 91.0, 92.0, 3.0, 4.0, 5.0])
    measured = Pace(rounds=5, gate=700)
    samples = await measured.interleave({"a": partial(figure, [], "a", values)})
    assert samples.spread("a", "µs") == Spread(3.5, 2.0, 5.0, 4)
    assert measured.slow_rounds == 1
    assert max(measured.loops) == 900


async def test_too_few_fast_rounds_are_no_reason_to_hide_the_others(monkeypatch):
    monkeypatch.setattr(pace, "loop_us", lambda: 900.0)
    measured = Pace(rounds=2, gate=700)
    samples = await measured.interleave({"a": partial(figure, [], "a", iter(range(6)))})
    assert samples.spread("a", "µs").rounds == 2
    assert measured.slow_rounds == 2


def row(median, **case):
    return Row("turns", case, "÷ them", "×", Spread(median, median, median, 1))


def test_a_goal_is_judged_by_the_worst_row_of_its_case():
    line = Line("twice as fast", "≥", 2, "turns", "÷ them", {"model": "FULL"})
    rows = [
        row(3.0, model="FULL", order="a"),
        row(1.5, model="FULL", order="b"),
        row(0.1, model="X"),
    ]
    goal = line.judge(rows)
    assert (goal.value, goal.met, goal.case) == (1.5, False, "FULL, b")
    assert line.judge(rows[:1]).met is True
    assert line.judge(rows[2:]).met is None
    upper = Line("little", "≤", 2, "turns", "÷ them", {"model": "FULL"})
    assert upper.judge(rows).value == 3.0
    assert upper.judge(rows).met is False


def test_a_bare_path_is_followed_as_far_as_it_agrees():
    tokens = workload.session_tokens(1)[0][: 4 * 2048]
    path = BarePath(cut(tokens, 512), page=16)
    page_ids = 512 // 16 * 4
    assert len(path.walk(tokens)) == 4 * page_ids
    assert len(path.walk(tokens, nodes=2)) == 2 * page_ids
    assert len(path.walk(tokens[:6000] + bytes(100))) == 2 * page_ids
    assert path.walk(bytes(8192)) == b""


@pytest.mark.parametrize(
    ("kind", "digest"), [("uniform", "eef8147043b918cc"), ("rolling", "2445156555a15962")]
)
def test_the_order_of_turns_is_the_harnesses(kind, digest):
    order = workload.turn_order(kind)
    assert hashlib.sha256(bytes(order)).hexdigest()[:16] == digest
    assert sorted(set(order)) == list(range(workload.SESSIONS))
    assert len(order) == workload.SESSIONS * workload.TURNS


def test_the_tokens_are_the_harnesses():
    tokens = b"".join(workload.session_tokens(3))
    assert hashlib.sha256(tokens).hexdigest()[:16] == "31cb7a82ac7484f2"


async def test_a_harness_is_run_with_the_gate(harnesses):
    rows = await Peers(harnesses, gate=850).run(SGLANG, "replay", "--page", "16")
    assert find(rows, op="replay")["hit_rate"] == 0.25
    assert (harnesses / "log").read_text() == "replay --page 16 --gate 850\n"


async def test_a_harness_that_fails_is_an_error_with_its_last_words(harnesses):
    (harnesses / SGLANG).write_text("import sys; sys.exit('no kernels here')")
    with pytest.raises(ConfigError, match="no kernels here"):
        await Peers(harnesses).run(SGLANG, "replay")


def test_a_row_that_is_missing_is_an_error():
    with pytest.raises(ConfigError, match="evict1pages"):
        find([{"op": "match"}], op="evict1pages")


def test_a_harness_with_other_tokens_is_refused(tmp_path):
    other = "def replay_trace(kind):\n    return [0]\n"
    with pytest.raises(ConfigError, match="another uniform order"):
        Peers(write_harnesses(tmp_path, other))
