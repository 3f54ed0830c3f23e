"""`banyankv bench`: every benchmark runs, and its JSON has what is promised. No figure is judged."""

import json
import math

import pytest
from banyankv.benchmarks.goals import LINES
from banyankv.benchmarks.registry import BUILT, NOT_BUILT, title
from banyankv.cli import main as cli

MEASURES = {
    "turns": {"turns/s", "turns/s of CPU time", "hit rate", "÷ floor", "bookkeeping a token"}
    | {"bookkeeping a node", "acquire", "extend", "snapshot", "publish", "release", "acquire p99"},
    "hits": {"acquire+release", "floor", "÷ floor"},
    "misses": {"whole turn", "packing and allocating", "above the floor"},
    "evict": {"one leaf", "floor", "÷ floor", "÷ fewest leaves"},
    "memory": {"a cached token", "a node", "floor: the token and its page ids"}
    | {"latency, end ÷ first tenth", "memory, end ÷ first tenth"},
    "telemetry": {"request", "− off"},
    "hosts": {"hit of 4,096", "batch of 64 hits", "turn"}
    | {"hit of 4,096 ÷ trio", "batch of 64 hits ÷ trio", "turn ÷ trio"},
    "multiturn": {"input tokens/s", "÷ L1", "hit rate", "hit rate, last round", "mean TTFT"}
    | {"mean TTFT, last round", "input tokens/s of CPU time", "÷ L1, CPU time"},
}
OF_PEERS = {
    "turns": {"÷ SGLang Rust", "÷ SGLang Python", "÷ vLLM without hashing"}
    | {"hit rate − SGLang Rust", "hit rate − SGLang Python"},
    "hits": {"SGLang Rust", "÷ SGLang Rust"},
    "evict": {"SGLang Rust", "÷ SGLang Rust"},
    "publish": {"SGLang Rust", "÷ SGLang Rust"},
    "memory": {"SGLang Rust, a token", "÷ SGLang Rust"},
}


def bench(tmp_path, *arguments):
    """Run small and return the exit code and what `--json` wrote."""
    written = tmp_path / "report.json"
    code = cli.main(
        ["bench", *map(str, arguments), "--tiny", "--rounds", "1", "--json", str(written)]
    )
    return code, json.loads(written.read_text()) if written.exists() else None


def measures(report):
    return {row["measure"] for row in report["rows"]}


@pytest.mark.parametrize("name", BUILT)
def test_benchmark_runs_alone(name, tmp_path, capsys):
    code, report = bench(tmp_path, name)
    assert code == 0
    assert {row["benchmark"] for row in report["rows"]} == {name}
    assert measures(report) >= MEASURES.get(name, {"ours", "floor", "÷ floor"})
    for row in report["rows"]:
        figure = row["figure"]
        assert all(math.isfinite(figure[key]) for key in ("low", "median", "high"))
        assert figure["low"] <= figure["median"] <= figure["high"]
        assert row["case"]
    assert name in capsys.readouterr().out


def test_report_names_the_machine_and_the_goals_of_what_ran(tmp_path):
    _, report = bench(tmp_path, "actors", "misses")
    machine = report["machine"]
    assert machine["cpu"]
    assert machine["cores"] >= 1
    assert machine["torch"]
    assert machine["python"].startswith("3.")
    assert machine["loop_us"]["low"] > 0
    goals = [line.text for line in LINES if line.benchmark == "misses"]
    assert goals
    assert [goal["measure"] for goal in report["goals"]] == goals
    assert all({"value", "goal", "met"} <= goal.keys() for goal in report["goals"])


def test_batch_measures_both_ways_of_acquiring(tmp_path):
    _, report = bench(tmp_path, "batch")
    ways = {row["case"]["by"] for row in report["rows"]}
    assert ways == {"batch", "one by one"}
    assert any(row["measure"] == "÷ one by one" for row in report["rows"])


def test_benchmarks_without_a_subject_say_so(tmp_path, capsys):
    code, report = bench(tmp_path, *NOT_BUILT)
    assert code == 0
    assert report["rows"] == []
    printed = capsys.readouterr().out
    for name in NOT_BUILT:
        assert any(note.startswith(f"{name}: not built") for note in report["notes"])
        assert f"{name}: not built" in printed


@pytest.mark.parametrize("name", OF_PEERS)
def test_peers_run_between_our_rounds(name, tmp_path, harnesses):
    code, report = bench(tmp_path, name, "--peers", harnesses)
    assert code == 0
    assert measures(report) >= OF_PEERS[name]
    of_goals = [line for line in LINES if line.benchmark == name]
    judged = {goal["measure"]: goal for goal in report["goals"]}
    assert all(judged[line.text]["met"] is not None for line in of_goals)


def test_ratios_are_ours_by_theirs(tmp_path, harnesses):
    _, report = bench(tmp_path, "evict", "--peers", harnesses)
    figures = {
        (tuple(row["case"].items()), row["measure"]): row["figure"]["median"]
        for row in report["rows"]
    }
    found = [case for case, measure in figures if measure == "÷ SGLang Rust"]
    assert found
    for case in found:
        assert figures[case, "SGLang Rust"] == 4000
        assert figures[case, "÷ SGLang Rust"] == pytest.approx(figures[case, "one leaf"] / 4000)


def test_pictures(tmp_path):
    code, _ = bench(tmp_path, "actors", "alloc", "--plot", tmp_path / "plots")
    assert code == 0
    drawn = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert drawn == ["actors.png", "alloc.png"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nothing"], "no benchmark 'nothing'"),
        (["actors", "--rounds", "0"], "--rounds"),
        (["actors", "--gate", "-1"], "--gate"),
        (["memory", "--turns", "10"], "--turns"),
        (["turns", "--peers", "nowhere"], "nowhere"),
    ],
)
def test_wrong_options_are_one_line_and_code_2(arguments, complaint, capsys):
    assert cli.main(["bench", *arguments]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", BUILT)
def test_every_benchmark_has_a_title(name):
    assert title(name).startswith(f"{name}: ")
