"""`banyankv demo` and `banyankv serve`, as one types them."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest
from banyankv.cli import main as cli
from banyankv.integrations import demo, loading
from banyankv.integrations.leased_cache import LeasedCache

SMALL = {"CONVERSATIONS": 2, "TURNS": 3, "RESTART": 2, "SYSTEM": 48, "QUESTION": 150, "ANSWER": 4}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(demo, "L1_TOKENS", 512)


def test_demo_shows_the_same_answers_and_what_was_saved(tmp_path, capsys):
    written = tmp_path / "turns.json"
    assert cli.main(["demo", "--json", str(written), "--plot", str(tmp_path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "All 6 answers are the same with the cache and without" in told
    assert (tmp_path / "demo.svg").read_text().startswith("<?xml")
    turns = json.loads(written.read_text())
    hits = [(t["turn"], t["hit"]["l1"], t["hit"]["l2"], t["hit"]["l3"]) for t in turns]
    assert [turn for turn, *_ in hits] == [1, 1, 2, 2, 3, 3]
    assert hits[0] == (1, 0, 0, 0)
    assert hits[1] == (1, 48, 0, 0)
    assert [l3 for turn, *_, l3 in hits if turn == 3] == [256, 256]
    reused = sum(sum(hit) for _, *hit in hits)
    assert f"{reused:,} of {sum(turn['prompt'] for turn in turns):,} prompt tokens" in told


def test_demo_fails_where_an_answer_is_another_one(monkeypatch, capsys):
    restore = LeasedCache._restore

    def wrong(self, length):
        restore(self, length)
        for layer in self.layers:
            if getattr(layer, "values", None) is not None:
                layer.values.neg_()

    monkeypatch.setattr(LeasedCache, "_restore", wrong)
    assert cli.main(["demo"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "DIFFERENT: conversation 2, turn 1" in told
    assert "the same with the cache and without" not in told


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["demo", "--model", "gpt-9"], "gpt-9"),
        (["demo", "--model", "jamba"], "begins from an empty state"),
        (["serve", "gpt-9"], "gpt-9"),
        (["serve", "--waiting", "0"], "--waiting"),
        (["serve", "--port", "65536"], "65536"),
        (["verify-layers", "lara-mini", "--tokens", "-5"], "-5"),
        (["serve", "--store", "x", "--l2-tokens", "0"], "--l2-tokens"),
    ],
)
def test_wrong_options_are_one_line_and_code_2(arguments, complaint, capsys):
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["demo", "--json", "/no/such/folder/x.json"], "/no/such/folder"),
        (["demo", "--plot", "/dev/null/x"], "/dev/null"),
        (["verify-layers", "lfm2", "--json", "/no/such/folder/x.json"], "/no/such/folder"),
        (["verify-layers", "lfm2", "--atol", "nan"], "--atol"),
        (["verify-layers", "lfm2", "--atol", "inf"], "--atol"),
    ],
)
def test_what_must_fail_fails_before_the_work(arguments, complaint, capsys, monkeypatch):
    monkeypatch.setattr(loading, "load", None)
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


def test_serve_listens_until_it_is_told_to_end():
    program = "from banyankv.cli.main import main; raise SystemExit(main())"
    command = [sys.executable, "-c", program, "serve", "--port", "0", "--grace", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        told = server.stdout.readline()
        url = next(word for word in told.split() if word.startswith("http"))
        assert "reference server" in told
        body = json.dumps({"model": "lara-mini", "prompt": "hi"}).encode()
        with urllib.request.urlopen(f"{url}/completions", body) as answer:
            assert json.load(answer)["usage"]["total_tokens"] == 18
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
        assert server.stderr.read() == ""
