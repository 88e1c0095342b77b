"""`nitro export` and `nitro bundle` from the shell."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from nitro_cli import load_bundle
from nitro_cli.cli.app import app

EXPERIMENT = '''
import jax.numpy as jnp
import numpy as np

from nitro_cli import ArrayBatches, Experiment, ExportSpec


class Line(Experiment):
    """Fits a line."""

    slope: float = 3.0
    max_epochs = 1
    learning_rate = 0.1
    checkpointer = {"keep": ["last(1)"]}

    def build_data(self, dist):
        x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(16, 1)
        return {"train": ArrayBatches({"x": x, "y": np.float32(self.slope) * x[:, 0]}, 4)}

    def build_model(self, rng):
        return _line, {"w": jnp.zeros(1), "b": jnp.zeros(())}, {}

    def forward(self, model, params, state, *, x):
        return model(params, state, x)

    def loss(self, outputs, *, y):
        return jnp.mean((outputs - y) ** 2)

    def export_inputs(self):
        return [ExportSpec("x", "float32", (1, 1))]

    def export_outputs(self):
        return [ExportSpec("y")]

    def export_postprocess(self):
        return "def postprocess(outputs): return {'double': 2 * outputs['y']}"

    def export_client_outputs(self):
        return [ExportSpec("double", "float32", (1,))]


def _line(params, state, x):
    return x @ params["w"] + params["b"], state
'''


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the experiment, a finished run and a bundle of it; not to be changed."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "experiments").mkdir()
    (folder / "experiments" / "line.py").write_text(EXPERIMENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in (["train", "Line"], ["export", "--batch-sizes", "1,32"]):
            result = CliRunner().invoke(app, words, prog_name="nitro")
            assert result.exit_code == 0, result.output
    np.savez(folder / "given.npz", x=np.linspace(-1, 1, 7, dtype=np.float32).reshape(7, 1))
    return folder


@pytest.fixture
def nitro(trained_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Call `nitro` in a copy of the working directory."""
    shutil.copytree(trained_once, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words], prog_name="nitro")


BUNDLE = "runs/Line/export/Line"


def document(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_export_without_a_target_takes_the_newest_run_and_names_it(nitro: Callable[..., Result]) -> None:
    result = nitro("export", "--name", "second", "--provenance", "ticket=42", "--provenance", "by=me")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == "runs/Line/export/second"
    assert "of runs/Line, latest checkpoint" in result.stderr
    entries = load_bundle("runs/Line/export/second", raw=True).provenance
    assert (entries["ticket"], entries["by"], entries["weights_from"]) == (42, "me", "checkpoint")


def test_an_export_folder_of_the_runs_that_is_a_link_is_not_written_through(nitro: Callable[..., Result]) -> None:
    shutil.rmtree("runs/Line/export")
    Path("elsewhere").mkdir()
    Path("runs/Line/export").symlink_to(Path("elsewhere").absolute())
    result = nitro("export", "runs/Line")
    assert (result.exit_code, "is a link" in result.stderr) == (5, True), result.output
    assert not list(Path("elsewhere").iterdir())
    assert nitro("export", "runs/Line", "--dir", "runs/Line/export").exit_code == 0


def test_export_as_json_names_everything(nitro: Callable[..., Result]) -> None:
    found = document(nitro("export", "runs/Line", "--backend", "safetensors", "--dir", "out", "--json"))
    assert found["path"] == "out/Line.safetensors"
    assert (found["experiment"], found["backend"], found["files"]) == ("Line", "safetensors", 1)
    assert found["run"] in found["checkpoint"]
    assert found["bytes"] == Path("out/Line.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["export"], 4, "already exists"),
        (["export", "--backend", "bundel"], 3, "bundle"),
        (["export", "--batch-sizes", "1,x"], 2, "--batch-sizes 1,32"),
        (["export", "--provenance", "word"], 2, "is no entry"),
        (["export", "Line"], 2, "no trained weights"),
        (["export", "nothing"], 3, "is no experiment, run or checkpoint"),
        (["export", "--from-bundle", "nowhere"], 3, "is no bundle"),
        (["export", "runs/Line", "--from-bundle", BUNDLE], 2, "TARGET does not go with --from-bundle"),
        (["bundle", "verify", "nowhere"], 3, "is no bundle"),
        (["bundle", "info", "."], 3, "is no bundle"),
        (["bundle", "run", BUNDLE, "-i", "given.npz", "-o", "out.npz"], 4, "--trust-postprocess"),
        (["bundle", "run", BUNDLE, "--raw", "-i", "absent.npz", "-o", "out.npz"], 3, "absent.npz"),
        (["bundle", "run", BUNDLE, "--raw", "-i", "given.npz", "-o", "given.npz"], 2, "--force"),
        (["bundle", "run", BUNDLE, "--raw", "-i", "runs", "-o", "out.npz"], 2, "it is a directory"),
        (["predict", "runs/Line", "-i", "runs", "-o", "out.npz"], 2, "it is a directory"),
    ],
)
def test_what_cannot_be_done_has_its_exit_code(
    nitro: Callable[..., Result], words: list[str], code: int, told: str
) -> None:
    before = sorted(str(path) for path in Path().rglob("*") if "__pycache__" not in str(path))
    result = nitro(*words)
    assert (result.exit_code, told in result.stderr) == (code, True), result.stderr
    assert sorted(str(path) for path in Path().rglob("*") if "__pycache__" not in str(path)) == before


def test_a_tampered_bundle_ends_with_the_code_of_integrity(nitro: Callable[..., Result]) -> None:
    with open(f"{BUNDLE}/program.bin", "ab") as file:
        file.write(b"x")
    for words in (["bundle", "verify", BUNDLE], ["export", "--from-bundle", BUNDLE, "--name", "new"]):
        result = nitro(*words)
        assert (result.exit_code, "program.bin" in result.stderr) == (5, True), result.stderr
    told = nitro("bundle", "verify", BUNDLE, "--json")
    assert json.loads(told.stderr)["exit_code"] == 5


def test_verify_and_info_report_a_bundle(nitro: Callable[..., Result]) -> None:
    assert nitro("bundle", "verify", BUNDLE).stdout.startswith(f"ok  {BUNDLE}: ")
    assert document(nitro("bundle", "verify", BUNDLE, "--json"))["ok"] is True
    shown = nitro("bundle", "info", BUNDLE).stdout
    for part in ("double", "float32", "batch", "cpu, cuda, tpu", "not collected", "checkpoint"):
        assert part in shown
    found = document(nitro("bundle", "info", BUNDLE, "--json"))
    assert found["manifest"]["batch_sizes"] == [1, 32]
    assert found["provenance"]["experiment"].endswith("Line")


def test_a_bundle_runs_without_the_code_of_the_experiment(nitro: Callable[..., Result]) -> None:
    shutil.rmtree("experiments")
    found = document(nitro("bundle", "run", BUNDLE, "--raw", "-i", "given.npz", "-o", "raw.npz", "--json"))
    assert found["arrays"] == {"y": {"shape": [7], "dtype": "float32"}}
    words = ["-i", "given.npz", "-o", "out.npz", "--batch-size", "3", "--trust-postprocess"]
    assert nitro("bundle", "run", BUNDLE, *words).exit_code == 0
    with np.load("raw.npz") as raw, np.load("out.npz") as out:
        np.testing.assert_allclose(out["double"], 2 * raw["y"], rtol=1e-6)


def test_a_bundle_is_written_anew_from_the_shell(nitro: Callable[..., Result]) -> None:
    result = nitro("export", "--from-bundle", BUNDLE, "--name", "new", "--dir", "out")
    assert result.exit_code == 0, result.output
    assert load_bundle("out/new", raw=True).provenance["renewed_from"]["comparison"].startswith("the old program gives")


def test_looking_into_a_bundle_needs_no_jax(nitro: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess
    import sys

    start = "import sys; sys.modules.update(jax=None, jaxlib=None, optax=None, orbax=None)\n"
    script = start + "from nitro_cli.__main__ import main; sys.argv[0] = 'nitro'; main()"
    for verb in ("info", "verify"):
        done = subprocess.run([sys.executable, "-c", script, "bundle", verb, BUNDLE], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
