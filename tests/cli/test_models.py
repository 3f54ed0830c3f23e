"""`banyankv demo`, `serve` and `verify-layers`: the commands that run a model."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest

pytest.importorskip("transformers", reason="needs the extra transformers")

from banyankv.cli import main as cli
from banyankv.integrations import demo, loading
from banyankv.integrations.leased_cache import LeasedCache
from transformers import BloomConfig, BloomForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig

SMALL = {"CONVERSATIONS": 2, "TURNS": 3, "RESTART": 2, "SYSTEM": 48, "QUESTION": 150, "ANSWER": 4}


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(demo, "L1_TOKENS", 512)


def test_demo_shows_the_same_answers_and_what_was_saved(tmp_path, capsys):
    written = tmp_path / "turns.json"
    assert run("demo", "--json", written, "--plot", tmp_path) == 0
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
    assert run("demo") == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "DIFFERENT: conversation 2, turn 1" in told
    assert "the same with the cache and without" not in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--model", "gpt-9"], "gpt-9"),
        (["demo", "--model", "jamba"], "begins from an empty state"),
        (["serve", "gpt-9"], "gpt-9"),
        (["verify-layers", "lara-mini", "--tokens", "-5"], "-5"),
        (["serve", "--l1-tokens", 10**15], "L1: cpu has no room for"),
    ],
)
def test_a_model_that_cannot_be_run_as_asked_is_one_line_and_code_2(arguments, message, capsys):
    assert run(*arguments) == 2
    _, err = capsys.readouterr()
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--json", "absent/f"], "absent/f: No such file"),
        (["demo", "--plot", "/dev/null/f"], "/dev/null/f: Not a directory"),
        (["verify-layers", "lfm2", "--json", "absent/f"], "absent/f: No such file"),
        (["verify-layers", "lfm2", "--atol", "nan"], "--atol"),
        (["verify-layers", "lfm2", "--atol", "inf"], "--atol"),
        (["verify-layers", "lfm2", "--page-size", "0"], "--page-size must be at least 1"),
        (["serve", "--waiting", "0"], "--waiting must be at least 1"),
        (["serve", "--chunk", "0"], "--chunk must be at least 1"),
        (["serve", "--grace", "nan"], "--grace must be 0 seconds or more, not nan"),
        (["serve", "--grace", "-1"], "--grace must be 0 seconds or more, not -1"),
        (["serve", "--l1-tokens", "1"], "give at least --chunk and a page, 272"),
        (["serve", "--l2-tokens", "-4"], "--l2-tokens must be at least 0"),
        (["serve", "--store", "x", "--l2-tokens", "0"], "--store needs an L2"),
        (["serve", "--port", "65536"], "--port must be within 0..65535"),
    ],
)
def test_wrong_options_are_refused_before_a_model_is_made(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(loading, "load", None)
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("banyankv: ")
    assert err.count("\n") == 1
    assert message in err


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


def test_a_model_that_does_not_say_how_long_prompts_may_be_is_not_served(tmp_path, capsys):
    config = BloomConfig(vocab_size=256, hidden_size=8, n_layer=1, n_head=1)
    BloomForCausalLM(config).save_pretrained(tmp_path)
    capsys.readouterr()
    assert run("serve", tmp_path, "--port", 0) == 2
    err = capsys.readouterr().err
    assert "has no max_position_embeddings" in err
    assert err.count("\n") == 1


def test_a_checkpoint_that_lacks_weights_is_one_line_without_a_bar(tmp_path, capsys):
    model = loading.load("gemma3")
    weights = model.state_dict()
    del weights["model.norm.weight"]
    model.save_pretrained(tmp_path, state_dict=weights)
    capsys.readouterr()
    assert run("verify-layers", tmp_path) == 2
    err = capsys.readouterr().err
    assert "the checkpoint lacks 1 weights, first model.norm.weight" in err
    assert err.count("\n") == 1
    assert "\r" not in err
