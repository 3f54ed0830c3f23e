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
    rooms = {"actors", "benchmarks", "cli", "components", "integrations", "replay", "runtime"}
    rooms |= {"telemetry", "testing", "tiers"}
    modules = {
        name for name, value in vars(banyankv).items() if isinstance(value, types.ModuleType)
    }
    assert modules <= rooms | {"errors", "spec"}


def test_import_needs_none_of_the_heavy_packages():
    code = (
        "import banyankv, sys;"
        "print([m for m in ('torch', 'lmdb', 'matplotlib', 'opentelemetry.sdk', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
