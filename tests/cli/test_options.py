"""Options of the command line: sizes, what is refused before the work, help."""

import pytest
import trio
from banyankv.cli import main as cli
from banyankv.cli.output import require_writable
from banyankv.cli.sizes import parse_bytes

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


def test_help_and_version_are_no_errors(capsys):
    assert run("--version") == 0
    assert run("replay", "--help") == 0
    assert "generated:multi-turn" in capsys.readouterr().out


def test_asking_whether_a_file_can_be_written_changes_nothing(tmp_path):
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.write_text("kept")
    require_writable(there, absent, None)
    assert there.read_text() == "kept"
    assert not absent.exists()
