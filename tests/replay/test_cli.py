"""The command line: options, exit codes, files it writes, Ctrl-C."""

import json
import signal

import numpy as np
import pytest
import trio
from banyankv.cli import main as cli
from banyankv.cli import replay as verb
from banyankv.cli.output import require_writable
from banyankv.cli.sizes import parse_bytes
from banyankv.replay.fingerprints import Fingerprints
from banyankv.replay.workloads import Workload, open_workload
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

SMALL = "generated:multi-turn:sessions=4,turns=3,new=300"


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("text", "size"),
    [("7", 7), ("500MB", 500_000_000), ("8GiB", 8 << 30), ("1.5 kib", 1536), ("3b", 3)],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "5 apples", "-1", "1,5GB"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay"], "TRACE"),
        (["replay", "no-such-file"], "no-such-file: No such file"),
        (["replay", "generated:nothing"], "generated:nothing: no such kind"),
        (["replay", SMALL, "--limit", "many"], 'unable to convert "many" into int'),
        (["replay", SMALL, "--limit", "0"], "at least 1 request"),
        (["replay", SMALL, "--bogus"], "Unknown option: --bogus"),
        (["replay", SMALL, "--model", "half"], "no model 'half'"),
        (["replay", SMALL, "--page-size", "0"], "page_size must be at least 1"),
        (["replay", SMALL, "--policy", "mru"], "'mru' is not one of lru"),
        (["replay", SMALL, "--concurrency", "0"], "--concurrency must be at least 1"),
        (["replay", SMALL, "--l2-tokens", "-1"], "--l2-tokens must be at least 0"),
        (["replay", SMALL, "--l1-tokens", "899"], "cannot hold the longest prompt: give at least"),
        (["replay", SMALL, "--store", "s", "--l2-tokens", "0"], "--store needs an L2"),
        (["replay", SMALL, "--store-bytes", "7x"], "'7x' is not a size"),
        (["replay", SMALL, "--json", "absent/f.json"], "absent/f.json: No such file"),
        (["replay", SMALL, "--json", "/"], "/: Is a directory"),
        (["replay", SMALL, "--json", "a\0b"], "embedded null byte"),
        (["replay", SMALL, "--plot", "absent/f.png"], "absent/f.png: No such file"),
        (["replay", SMALL, "--plot", "picture.xyz"], "ends in .png, .svg, .pdf"),
        (["check-store", "/nonexistent"], "holds no store"),
        (["check-store", "/nonexistent", "--json", "absent/f"], "absent/f: No such file"),
        (["bench", "turns", "--gate", "nan"], "--gate must be 0 µs or more, not nan"),
        (["bench", "turns", "--json", "absent/f"], "absent/f: No such file"),
        (["bench", "turns", "--plot", "/dev/null/f"], "/dev/null/f: Not a directory"),
        (["demo", "--json", "absent/f"], "absent/f: No such file"),
        (["demo", "--plot", "/dev/null/f"], "/dev/null/f: Not a directory"),
        (["verify-layers", "gemma3", "--json", "absent/f"], "absent/f: No such file"),
        (["serve", "--grace", "nan"], "--grace must be 0 seconds or more, not nan"),
        (["serve", "--grace", "-1"], "--grace must be 0 seconds or more, not -1"),
        (["serve", "--l1-tokens", "1"], "give at least --chunk and a page, 272"),
        (["serve", "--l2-tokens", "-4"], "--l2-tokens must be at least 0"),
        (["serve", "--port", "99999"], "--port must be within 0..65535"),
        (["serve", "--chunk", "0"], "--chunk must be at least 1"),
        (["play"], 'Unknown command "play"'),
    ],
)
def test_wrong_options_give_one_clear_line_and_code_2(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(trio, "run", lambda *_: pytest.fail("refused only after the work"))
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("banyankv: ")
    assert err.count("\n") == 1
    assert message in err


def test_a_broken_trace_line_is_named(tmp_path, capsys):
    path = tmp_path / "t.jsonl"
    path.write_text('{"input_length": 5, "hash_ids": [0]}\n{"input_length": 5}\n')
    assert run("replay", path) == 2
    assert capsys.readouterr().err.startswith(f"banyankv: {path}:2: Object missing required field")


def test_help_and_version_are_no_errors(capsys):
    assert run("--version") == 0
    assert run("replay", "--help") == 0
    assert "generated:multi-turn" in capsys.readouterr().out


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


def test_asking_whether_a_file_can_be_written_changes_nothing(tmp_path):
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.write_text("kept")
    require_writable(there, absent, None)
    assert there.read_text() == "kept"
    assert not absent.exists()


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


def test_a_model_whose_tokens_are_not_bytes_is_not_served(tmp_path, capsys):
    config = Gemma3TextConfig(
        vocab_size=300,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
    )
    Gemma3ForCausalLM(config).save_pretrained(tmp_path)
    capsys.readouterr()
    assert run("serve", tmp_path) == 2
    err = capsys.readouterr().err
    assert "banyankv: the model has 300 tokens and this server speaks bytes" in err
    assert "docs/embedding.md" in err
