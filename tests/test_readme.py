"""The README and the tutorial do what they say: their programs run, their commands are CI's."""

import re
import subprocess
import sys
from pathlib import Path

import banyankv
import pytest

ROOT = Path(banyankv.__file__).parent
README = (ROOT / "README.md").read_text()


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(program, folder):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def said(program):
    """What a program's comments say that its prints print."""
    return re.findall(r"^ *print\(.*\)  # (.+)$", program, re.MULTILINE)


def test_the_program_in_the_readme_embeds_a_cache(tmp_path):
    [program] = blocks(README, "python")
    assert said(program) == ["0", "512"]
    assert run(program, tmp_path) == "0 tokens reused\n512 tokens reused\n"


@pytest.mark.parametrize(
    "page",
    [
        "tutorial.md",
        "how-to/speculative-decoding.md",
        "how-to/testing.md",
        "how-to/threads.md",
        "how-to/asyncio.md",
    ],
)
def test_each_program_of_a_page_prints_what_it_says(tmp_path, page):
    programs = blocks((ROOT / "docs" / page).read_text(), "python")
    assert programs
    whole = "\n".join(programs)
    assert said(whole)
    assert run(whole, tmp_path).splitlines() == said(whole)


def test_ci_runs_the_readmes_command_for_the_tests():
    first, tests = blocks(README, "sh")
    assert tests in (ROOT / ".ci" / "run").read_text()
    assert first.splitlines()[-1].endswith("banyankv demo")


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md"])
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
