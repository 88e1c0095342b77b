"""The distribution that nitro is, and the libraries its extras bring."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

import nitro_cli
from nitro_cli.errors import MissingExtraError
from nitro_cli.installation import DISTRIBUTION, EXTRAS, extra_requirements, import_extra, version_of

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
OF_DEVELOPERS = {"test", "bench", "docs", "dev"}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Nitro's metadata as an installation from this `pyproject.toml` writes it."""
    info = tmp_path / "jax_nitro-7.0.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {PROJECT['name']}", "Version: 7.0"]
    for extra, wanted in PROJECT["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}", *(f'Requires-Dist: {line}; extra == "{extra}"' for line in wanted)]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_the_distribution_is_called_as_the_project_says():
    assert DISTRIBUTION == PROJECT["name"] == "jax-nitro"


def test_the_table_of_extras_is_the_projects():
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"]) - OF_DEVELOPERS
    for extra, modules in EXTRAS.items():
        wanted = {re.split(r"[>=<\[ ]", line)[0] for line in PROJECT["optional-dependencies"][extra]}
        imported = {name.removesuffix("-skinny").replace("scikit-learn", "sklearn") for name in wanted}
        assert imported == set(modules)


@pytest.mark.parametrize(
    ("module", "fix"),
    [
        ("matplotlib.figure", "pip install 'matplotlib>=3.9'"),
        ("onnxruntime", "pip install 'onnx>=1.17' 'onnxruntime>=1.20'"),
        ("mlflow", "pip install 'mlflow-skinny>=2.20'"),
        ("trackio", "pip install 'trackio>=0.2'"),
    ],
)
def test_a_missing_extra_names_its_libraries_with_their_versions(installed, monkeypatch, module, fix):
    top = module.partition(".")[0]

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == top:
                raise ModuleNotFoundError(f"No module named {top!r}", name=top)

    for name in [name for name in sys.modules if name.split(".")[0] == top]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    with pytest.raises(MissingExtraError, match="drawing needs the package") as caught:
        import_extra(module, use="drawing")
    assert caught.value.fix == fix


def test_where_nitro_is_not_installed_the_libraries_are_named_all_the_same(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    assert extra_requirements("onnx") == ("onnx", "onnxruntime")
    version_of.cache_clear()
    assert nitro_cli.installation.nitro_version() == "unknown"
    version_of.cache_clear()


def test_nothing_tells_a_user_to_install_the_project_that_owns_the_old_name():
    files = [*REPOSITORY.glob("nitro_cli/**/*.py"), *REPOSITORY.glob("docs/*.md"), REPOSITORY / "README.md"]
    files += [REPOSITORY / "pyproject.toml", REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "noxfile.py"]
    told = re.compile(r"(install|dependencies|\[\")[^\n]*nitro-cli|nitro-cli\[")
    assert len(files) > 200
    assert [file for file in files if told.search(file.read_text())] == []
