"""What a handle refuses to take: an attribute that would do nothing."""

from __future__ import annotations

import pytest

from nitro_cli import Nitro
from nitro_cli.errors import ConfigError
from tests.tiny import Tiny


@pytest.fixture(scope="module")
def handle():
    return Nitro(Tiny())


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("smoothing", "nitro.set_device(smoothing=...)"),
        ("width", "Nitro(e.replace(width=...))"),
        ("max_epochs", "Nitro(e.replace(max_epochs=...))"),
        ("learning_rate", "Nitro(e.replace(learning_rate=...))"),
        ("temperature", "nitro.set_device"),
    ],
)
def test_a_value_assigned_to_a_handle_is_refused_with_what_sets_it(handle, name, fix):
    with pytest.raises(ConfigError) as refused:
        setattr(handle, name, 3.0)
    assert f"{name} cannot be assigned to a handle" in refused.value.what
    assert fix in refused.value.fix
    assert not hasattr(handle, name)


@pytest.mark.parametrize("name", ["params", "step", "train", "evaluate", "experiment"])
def test_what_a_handle_answers_is_not_assigned(handle, name):
    before = getattr(handle, name)
    with pytest.raises(ConfigError, match=f"{name} cannot be assigned"):
        setattr(handle, name, None)
    assert type(getattr(handle, name)) is type(before)


def test_a_misspelt_attribute_names_the_nearest(handle):
    with pytest.raises(ConfigError) as refused:
        handle.smothing = 0.1
    assert "smoothing" in refused.value.nearest


def test_render_with_a_splits_name_says_the_keyword(handle, tmp_path):
    with pytest.raises(ConfigError) as refused:
        handle.render("val", out_dir=tmp_path / "never")
    assert refused.value.fix == "nitro.render(split='val')"
    with pytest.raises(ConfigError, match="a list is no batch"):
        handle.render([1, 2])
    assert not (tmp_path / "never").exists()
