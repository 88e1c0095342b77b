"""The files of a new plugin project."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import sys
from dataclasses import dataclass
from importlib import metadata

from nitro_cli.errors import ConfigError

__all__ = ["ProjectNames", "project_files"]


@dataclass(frozen=True)
class ProjectNames:
    """The three forms of a project's name: distribution, import package, experiment class."""

    distribution: str
    package: str
    experiment: str

    @classmethod
    def of(cls, name: str) -> ProjectNames:
        """Derive all forms from what the user wrote.

        Raises:
            ConfigError: the name gives no valid distribution or package, or one that is installed already.
        """
        words = [word for word in re.split(r"[-_.\s]+|(?<=[a-z0-9])(?=[A-Z])", name) if word]
        distribution = "-".join(word.lower() for word in words)
        package = distribution.replace("-", "_")
        why = _refusal(distribution, package)
        if why is not None:
            fix = "choose a name such as rings or my-experiments"
            raise ConfigError(f"{name!r} cannot be the name of a project", why=why, fix=fix)
        return cls(distribution, package, "".join(word[0].upper() + word[1:] for word in words))


def _refusal(distribution: str, package: str) -> str | None:
    """Why a project cannot have these names; None where it can."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", distribution):
        return "it must start with a letter and hold letters, digits, - and _ only"
    if keyword.iskeyword(package) or keyword.issoftkeyword(package):
        return f"{package} is a word of Python itself"
    if package in sys.stdlib_module_names:
        return f"{package} is a module of Python's own library: one of the two would hide the other"
    if package == "tests":
        return "the project's tests lie in a folder of this name"
    if _is_here(package):
        return None
    if importlib.util.find_spec(package) is not None:
        return f"a package {package} is installed: one of the two would hide the other"
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
    return f"{distribution} {version} is installed: installing the project would replace it"


def _is_here(package: str) -> bool:
    """Whether a package is found in the working directory alone, where a project of this name may be written anew."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return False
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    here = os.getcwd() + os.sep
    return all(place is None or os.path.abspath(place).startswith(here) for place in places)


def project_files(names: ProjectNames, nitro_version: str) -> dict[str, str]:
    """The files of the project, by path relative to its folder."""
    texts = {
        "pyproject.toml": _PYPROJECT,
        "README.md": _README,
        ".gitignore": _GITIGNORE,
        f"{names.package}/__init__.py": _INIT,
        f"{names.package}/experiment.py": _EXPERIMENT,
        f"{names.package}/presets/{names.experiment}/baseline.toml": _BASELINE,
        f"{names.package}/presets/{names.experiment}/quick.toml": _QUICK,
        "tests/test_experiment.py": _TESTS,
    }
    values = {
        "@DISTRIBUTION@": names.distribution,
        "@PACKAGE@": names.package,
        "@EXPERIMENT@": names.experiment,
        "@NITRO@": nitro_version,
    }
    return {path: _filled(text, values) for path, text in texts.items()}


def _filled(text: str, values: dict[str, str]) -> str:
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text.lstrip("\n")


_PYPROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "@DISTRIBUTION@"
version = "0.1.0"
description = "Experiments for nitro"
requires-python = ">=3.11"
dependencies = ["jax-nitro@NITRO@", "optax>=0.2.5"]

[project.optional-dependencies]
test = ["pytest>=8"]

[project.entry-points."nitro.experiments"]
@EXPERIMENT@ = "@PACKAGE@.experiment:@EXPERIMENT@"

[tool.setuptools]
packages = ["@PACKAGE@"]
include-package-data = false

[tool.setuptools.package-data]
@PACKAGE@ = ["presets/**/*.toml"]
"""

_README = """
# @DISTRIBUTION@

A plugin with one experiment for nitro, `@EXPERIMENT@`: a small perceptron that tells two noisy rings apart.

    pip install -e '.[test]'
    nitro show @EXPERIMENT@
    nitro train @EXPERIMENT@ --preset baseline
    nitro runs
    nitro export
    pytest

The experiment is `@PACKAGE@/experiment.py`, its presets are in `@PACKAGE@/presets/@EXPERIMENT@/`.
"""

_GITIGNORE = """
__pycache__/
*.egg-info/
build/
dist/
runs/
"""

_INIT = '''
"""Experiments for nitro."""
'''

_EXPERIMENT = '''
"""Two noisy rings, told apart by a small perceptron."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nitro_cli import ArrayBatches, Device, Experiment, GraphConst, Mean


class @EXPERIMENT@(Experiment):
    """A two-layer perceptron on points of two noisy rings."""

    width: GraphConst[int] = 32
    """Width of the hidden layer. Another value is another program."""

    smoothing: Device[float] = 0.0
    """Label smoothing. Another value recompiles nothing."""

    samples: int = 2000
    """Points of the train split; val and test have a quarter of that each."""

    noise: float = 0.1
    """Standard deviation of the noise on every point."""

    max_epochs = 8
    learning_rate = 1e-1
    monitor = ("accuracy", "max")

    def build_data(self, dist: Any) -> dict[str, Any]:
        """Make the rings; no file is read."""
        quarter = self.samples // 4
        return {
            "train": ArrayBatches(_rings(self.samples, self.noise, seed=1), batch_size=100, shuffle=True),
            "val": ArrayBatches(_rings(quarter, self.noise, seed=2), batch_size=100),
            "test": ArrayBatches(_rings(quarter, self.noise, seed=3), batch_size=100),
        }

    def build_model(self, rng: jax.Array) -> tuple[Any, Any, Any]:
        """Return the function, its initial parameters and its (empty) layer state."""
        first, second = jax.random.split(rng)
        params = {
            "hidden": {"w": jax.random.normal(first, (2, self.width)), "b": jnp.zeros(self.width)},
            "output": {"w": jax.random.normal(second, (self.width, 2)) / self.width**0.5, "b": jnp.zeros(2)},
        }
        return _perceptron, params, {}

    def forward(self, model: Any, params: Any, state: Any, *, point: jax.Array) -> tuple[jax.Array, Any]:
        """Logits of a batch of points [batch, 2]."""
        return model(params, state, point)

    def loss(self, outputs: jax.Array, *, label: jax.Array) -> jax.Array:
        """Mean cross-entropy with smoothed labels."""
        targets = optax.smooth_labels(jax.nn.one_hot(label, 2), self.smoothing)
        return optax.softmax_cross_entropy(outputs, targets).mean()

    def metrics(self, outputs: np.ndarray, *, label: np.ndarray) -> dict[str, Mean]:
        """Accuracy, with the number of points as its denominator."""
        hits = np.argmax(outputs, axis=-1) == label
        return {"accuracy": Mean(hits.sum(), hits.size)}


def _perceptron(params: Any, state: Any, point: jax.Array, *, train: bool, key: jax.Array) -> tuple[jax.Array, Any]:
    hidden = jax.nn.relu(point @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["output"]["w"] + params["output"]["b"], state


def _rings(count: int, noise: float, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, count).astype(np.int32)
    angle = rng.uniform(0, 2 * np.pi, count)
    radius = 0.5 + label + rng.normal(0, noise, count)
    point = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).astype(np.float32)
    return {"point": point, "label": label}
'''

_BASELINE = """
description = "The recipe to compare with"

[fields]
width = 32
max_epochs = 10

[schedules]
learning_rate = { kind = "cosine", init_value = 1e-1 }
"""

_QUICK = """
description = "A few seconds, to see that everything works"
extends = "baseline"

[fields]
max_epochs = 4
"""

_TESTS = '''
"""The experiment learns, and every preset fits it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from nitro_cli import Nitro, load_bundle

from @PACKAGE@.experiment import @EXPERIMENT@

FOLDER = Path(sys.modules[@EXPERIMENT@.__module__].__file__).parent
PRESETS = sorted(path.stem for path in FOLDER.glob("presets/*/*.toml"))


def test_it_tells_the_rings_apart(tmp_path):
    nitro = Nitro(@EXPERIMENT@(run_dir=str(tmp_path))).train()
    assert nitro.evaluate(split="test")["accuracy"] > 0.95


def test_an_export_runs_by_itself(tmp_path):
    path = Nitro(@EXPERIMENT@()).export(dir=tmp_path)
    assert load_bundle(path)(point=np.zeros((3, 2), np.float32))["outputs"].shape == (3, 2)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fits(preset):
    command = [sys.executable, "-m", "nitro_cli", "show", "@EXPERIMENT@", "--preset", preset]
    assert subprocess.run(command).returncode == 0
'''
