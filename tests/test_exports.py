"""What `import banyankv` gives, and what it does not cost."""

import subprocess
import sys
import tomllib
import types
from importlib import resources
from pathlib import Path

import banyankv

ROOT = Path(banyankv.__file__).parent


def public_names():
    return {
        name
        for name, value in vars(banyankv).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }


def test_the_public_names_are_those_that_are_said_and_no_others():
    assert public_names() == set(banyankv.__all__)
    assert len(banyankv.__all__) == len(set(banyankv.__all__))


def test_every_public_name_is_ours_and_documented():
    for name in banyankv.__all__:
        value = getattr(banyankv, name)
        assert value.__module__.startswith("banyankv."), name
        assert (value.__doc__ or "").strip(), name


def test_modules_at_the_top_are_the_rooms_and_the_two_shared_files():
    # benchmarks and integrations are there once another test of this process has imported them
    rooms = {"actors", "benchmarks", "cli", "components", "hosts", "integrations", "replay"}
    rooms |= {"runtime", "telemetry", "testing", "tiers"}
    hosts = {"asyncio", "threads"}
    modules = {
        name
        for name, value in vars(banyankv).items()
        if isinstance(value, types.ModuleType) and not name.startswith("_")
    }
    assert modules <= rooms | hosts | {"errors", "spec"}


def test_hosts_are_imported_by_their_public_names():
    code = "import banyankv.threads, banyankv.asyncio; from banyankv.threads import open_cache; print(open_cache)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "open_cache" in done.stdout


def test_import_needs_none_of_the_heavy_packages():
    code = (
        "import banyankv, sys;"
        "print([m for m in ('torch', 'lmdb', 'matplotlib', 'opentelemetry.sdk', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


BARE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in ("rich", "cyclopts", "opentelemetry.sdk", "transformers", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
import banyankv
from banyankv.replay.presets import capacities, load_model
from banyankv.replay.run import Replay
from banyankv.replay.workloads import open_workload
import trio

model = load_model("full+swa+mamba")
config = banyankv.CacheConfig(model=model, l1=capacities(model, 4096), l2=capacities(model, 9999))
result = trio.run(Replay(config, open_workload("generated:multi-turn:sessions=2,turns=2")).run)
print(result.sound, result.hit_tokens.total > 0)
try:
    banyankv.configure_telemetry()
except banyankv.ConfigError as error:
    print(error)
from banyankv.cli.entry import main

print(main())
"""


def test_the_library_needs_neither_the_command_lines_packages_nor_the_sdk():
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ran, telemetry, code = done.stdout.splitlines()
    assert ran == "True True"
    assert "pip install 'banyankv[telemetry]'" in telemetry
    assert code == "2"
    assert done.stderr == (
        "banyankv: the command line needs more packages: pip install 'banyankv[cli]'\n"
    )


def test_what_an_embedder_installs_is_what_the_library_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {name.partition(">")[0] for name in project["dependencies"]}
    assert needed == {
        "trio",
        "torch",
        "numpy",
        "msgspec",
        "structlog",
        "opentelemetry-api",
        "lmdb",
    }


def test_the_package_is_marked_as_typed():
    assert resources.files("banyankv").joinpath("py.typed").is_file()


def test_every_package_folder_is_in_the_wheel():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent.relative_to(ROOT) for path in ROOT.glob("[a-z]*/**/__init__.py")}
    packages = {
        ".".join(("banyankv", *folder.parts))
        for folder in folders
        if folder.parts[0] not in ("tests", "build")
    }
    assert set(setuptools["packages"]) == {"banyankv"} | packages
    assert setuptools["package-data"]["banyankv"] == ["py.typed"]
