"""The models that a replay is run with."""

import pytest
from banyankv.errors import ConfigError
from banyankv.replay.presets import PRESETS, capacities, load_model, snapshot_grid
from banyankv.spec import PagedSpec

TOML = """
name = "mine"
page_size = 48

[[components]]
type = "paged"
name = "full"
layers = 3

[[components]]
type = "snapshot"
name = "mamba"
states = [{ name = "conv", shape = [4], dtype = "float16" }]
"""


@pytest.mark.parametrize("name", PRESETS)
def test_presets_stay_within_eight_bytes_a_token_and_256_a_state(name):
    model = load_model(name)
    assert [c.name for c in model.components] == name.split("+")
    assert model.page_size == 16
    for component in model.components:
        if isinstance(component, PagedSpec):
            assert component.token_bytes == 8
        else:
            assert component.state_bytes == 256


def test_a_toml_file_gives_a_model(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    model = load_model(str(path))
    assert (model.name, model.page_size, len(model.components)) == ("mine", 48, 2)
    assert load_model(str(path), 16).page_size == 16
    assert capacities(model, 1000) == {"full": 21, "mamba": 3 + 64}
    assert snapshot_grid(model) == 288
    assert snapshot_grid(load_model("full", 1)) == 256


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "mine.toml: "),
        ("a = " + "[" * 99_999, "nested too deeply"),
        ("a = " + "9" * 9999, "Exceeds the limit"),
        ("#" * (2 << 20), "more than 1024 KiB are no model"),
        (TOML.replace('"full"', '"full full"', 1), "must be an identifier"),
        (TOML.replace("layers = 3", "layers = 0"), "layers must be at least 1"),
        (TOML.replace("layers", "layer"), "unknown field `layer`"),
        (TOML.replace('"paged"', '"page"'), "Invalid value 'page'"),
    ],
)
def test_a_wrong_toml_file_is_explained(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_model(str(path))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_an_unknown_model_names_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"full\+swa\+mamba or a file"):
        load_model("fulll")
    with pytest.raises(ConfigError, match="null byte"):
        load_model("a\0.toml")
    with pytest.raises(ConfigError, match="No such file"):
        load_model(str(tmp_path / "absent.toml"))
    with pytest.raises(ConfigError, match="page_size must be at least 1"):
        load_model("full", -1)
