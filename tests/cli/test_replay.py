"""`banyankv replay` and `banyankv check-store`: what they print and write, exit codes, Ctrl-C."""

import json
import signal

import numpy as np
import pytest
from banyankv.cli import main as cli
from banyankv.cli import replay as verb
from banyankv.replay.fingerprints import Fingerprints
from banyankv.replay.workloads import Workload, open_workload

SMALL = "generated:multi-turn:sessions=4,turns=3,new=300"


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


def test_a_broken_trace_line_is_named(tmp_path, capsys):
    path = tmp_path / "t.jsonl"
    path.write_text('{"input_length": 5, "hash_ids": [0]}\n{"input_length": 5}\n')
    assert run("replay", path) == 2
    assert capsys.readouterr().err.startswith(f"banyankv: {path}:2: Object missing required field")


@pytest.mark.parametrize("option", ["--l1-tokens", "--l2-tokens"])
@pytest.mark.parametrize("tokens", [10**15, 10**23])
def test_more_room_than_a_machine_has_is_one_line(option, tokens, capsys):
    assert run("replay", SMALL, option, tokens) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"banyankv: {option[2:4].upper()}: ")
    assert "no room for" in err
    assert err.count("\n") == 1


def test_replay_prints_a_table_and_writes_the_same_figures(tmp_path, capsys):
    figures = tmp_path / "figures.json"
    picture = tmp_path / "picture.png"
    assert run("replay", SMALL, "--json", figures, "--plot", picture) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(figures.read_text())
    assert found["requests"] == 12
    assert found["tokens"] == 4 * (300 + 600 + 900)
    # A later turn finds the whole pages of the one before.
    assert found["hit_tokens"] == {"l1": 4 * (288 + 592), "l2": 0, "l3": 0}
    assert found["hit_rate"] == pytest.approx(4 * 880 / 7200)
    assert found["fingerprints"] == {"checked": 4 * 55, "failed": 0}
    assert found["leaked_pages"] == 0
    assert found["turns_per_second"] > 0
    assert 0 < found["acquire_us"]["p50"] <= found["acquire_us"]["p99"]
    assert set(found["moved_bytes"]) == {"l1_l2", "l2_l1", "l2_l3", "l3_l2"}
    assert found["moved_bytes"]["l1_l2"] > 0
    for line in ("requests", "hit rate", "turns per second", "leaked pages", "L2 → L3"):
        assert line in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_limit_page_size_model_and_concurrency_are_passed_on(tmp_path):
    figures = tmp_path / "figures.json"
    options = ("--limit", 5, "--page-size", 64, "--model", "full+swa", "--concurrency", 3)
    assert run("replay", SMALL, *options, "--json", figures) == 0
    found = json.loads(figures.read_text())
    assert (found["requests"], found["model"]) == (5, "full+swa")


def test_a_second_run_on_the_same_store_starts_warm_and_the_store_is_sound(tmp_path, capsys):
    store, figures, report = tmp_path / "store", tmp_path / "f.json", tmp_path / "r.json"
    options = ("--model", "full+swa+mamba", "--store", store, "--store-bytes", "64MiB")
    assert run("replay", SMALL, *options) == 0
    assert run("replay", SMALL, *options, "--json", figures) == 0
    warm = json.loads(figures.read_text())
    assert warm["hit_tokens"]["l3"] > 0
    assert warm["fingerprints"]["failed"] == 0
    capsys.readouterr()
    assert run("check-store", store, "--json", report) == 0
    assert json.loads(report.read_text())["objects"] > 0
    assert capsys.readouterr().out.rstrip().endswith("\nsound")


def test_a_wrong_page_is_named_and_code_1(capsys, monkeypatch):
    def wrong(self, component, raw, pages, prefixes):
        return np.arange(len(pages))[:1]

    monkeypatch.setattr(Fingerprints, "wrong", wrong)
    assert run("replay", SMALL) == 1
    assert "component 'full': the bytes of page" in capsys.readouterr().err


def test_ctrl_c_prints_what_was_done_and_leaves_a_store_that_can_be_used(
    tmp_path, capsys, monkeypatch
):
    whole = open_workload(SMALL)

    def build(i):
        if i == 5:
            signal.raise_signal(signal.SIGINT)
        return whole.build(i)

    store, figures = tmp_path / "store", tmp_path / "f.json"
    interrupted = Workload(whole.name, whole.lengths, build)
    monkeypatch.setattr(verb, "open_workload", lambda *_: interrupted)
    options = ("--store", store, "--json", figures, "--concurrency", 1)
    assert run("replay", SMALL, *options) == 130
    found = json.loads(figures.read_text())
    assert 5 <= found["requests"] < 12
    assert found["interrupted"]
    assert "hit rate" in capsys.readouterr().out
    assert run("check-store", store) == 0
    monkeypatch.undo()
    assert run("replay", SMALL, "--store", store, "--json", figures) == 0
    assert json.loads(figures.read_text())["hit_tokens"]["l3"] > 0
