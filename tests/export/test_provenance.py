"""Where an artefact says it comes from."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli import EMA, Average, Device, GraphConst, Host, Last, Mean, Nitro, NitroWarning, load_bundle
from nitro_cli.export import renew
from tests.export.served import Scores, Softmaxed


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A git work tree with a text, a binary file and one to be removed, committed."""
    folder = tmp_path / "sources"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "trunk")
    (folder / "model.py").write_text("width = 1\n")
    (folder / "table.bin").write_bytes(bytes(range(256)))
    (folder / "gone.txt").write_text("away with it\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def exported(tmp_path: Path, nitro: Nitro | None = None, **words: Any) -> tuple[Path, dict[str, Any]]:
    path = (nitro or Nitro(Scores(), data={})).export(dir=tmp_path / "out", **words)
    return path, json.loads((path / "provenance.json").read_text())


def test_a_clean_tree_gives_its_commit(tmp_path: Path, sources: Path) -> None:
    git(sources, "remote", "add", "origin", "https://user:secret@example.org/team/sources.git")
    path, entries = exported(tmp_path, provenance_root=sources)
    assert entries["commit"] == git(sources, "rev-parse", "HEAD").strip()
    assert entries["tree"] == git(sources, "rev-parse", "HEAD^{tree}").strip()
    assert (entries["branch"], entries["dirty"], entries["patch"], entries["untracked"]) == ("trunk", False, None, [])
    assert entries["remote"] == "https://example.org/team/sources.git"
    assert not (path / "working-tree.patch").exists()


def test_a_tree_that_git_refuses_for_its_owner_is_told_with_gits_reason_and_remedy(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.warns(NitroWarning) as warned:
        _, entries = exported(tmp_path, provenance_root=sources)
    (told,) = [str(w.message) for w in warned if "names no commit" in str(w.message)]
    assert "detected dubious ownership" in told
    assert f"git config --global --add safe.directory {sources}" in told
    assert "in no git work tree" not in told
    assert entries["repository"] == "none: git refused the work tree"


def test_the_patch_of_a_dirty_tree_gives_back_the_exact_sources(tmp_path: Path, sources: Path) -> None:
    (sources / "model.py").write_text("width = 2\r\nname = 'ü'\n")
    (sources / "table.bin").write_bytes(bytes(range(255, -1, -1)))
    (sources / "gone.txt").unlink()
    (sources / "added.py").write_text("depth = 3\n")
    git(sources, "add", "added.py")
    (sources / "notes ü.txt").write_text("not tracked\n")
    git(sources, "config", "diff.external", "false")
    git(sources, "config", "color.ui", "always")
    path, entries = exported(tmp_path, provenance_root=sources)
    assert entries["dirty"] is True
    assert entries["untracked"] == ["notes ü.txt"]
    fresh = tmp_path / "fresh"
    git(tmp_path, "clone", "-q", str(sources), str(fresh))
    git(fresh, "checkout", "-q", entries["commit"])
    git(fresh, "apply", "--binary", str(path / entries["patch"]))
    kept = {f.name: f.read_bytes() for f in sources.iterdir() if f.is_file() and f.name != "notes ü.txt"}
    assert {f.name: f.read_bytes() for f in fresh.iterdir() if f.is_file()} == kept


def test_a_file_that_is_only_untracked_makes_the_tree_dirty_without_a_patch(tmp_path: Path, sources: Path) -> None:
    (sources / "new.py").write_text("")
    _, entries = exported(tmp_path, provenance_root=sources)
    assert (entries["dirty"], entries["patch"], entries["untracked"]) == (True, None, ["new.py"])


def test_without_a_root_and_outside_a_repository_the_artefact_says_so(tmp_path: Path) -> None:
    _, entries = exported(tmp_path)
    assert entries["repository"] == "not collected: no provenance_root was given"
    with pytest.warns(NitroWarning, match="in no git work tree"):
        _, entries = exported(tmp_path, provenance_root=tmp_path, force=True)
    assert entries["repository"].startswith("none: ")
    assert "commit" not in entries


def test_the_call_is_stronger_than_the_model_and_the_model_than_the_framework(tmp_path: Path) -> None:
    _, entries = exported(tmp_path, Nitro(Softmaxed(), data={}), provenance={"class_names": "the call's", "ticket": 42})
    assert entries["seed"] == "the model's own"
    assert entries["class_names"] == "the call's"
    assert entries["ticket"] == 42
    assert entries["experiment"] == "tests.export.served:Softmaxed"
    assert entries["config"]["graphconst"]["width"] == 8
    assert entries["weights_from"] == "fresh initialisation"
    assert {"jax", "numpy"} <= set(entries["versions"])


class Boundless(Scores):
    """Scores with a field of every kind, and an entry of its own, that no JSON number can be."""

    floor: GraphConst[float] = -math.inf
    shift: Device[float] = math.inf
    limit: Host[tuple[float, ...]] = (1.5, math.inf, math.nan)

    def export_provenance_extra(self, *, checkpoint: str | None) -> dict[str, Any]:
        return {"margin": math.nan, np.inf: "a key"}


@pytest.mark.parametrize("backend", ["bundle", "safetensors", "onnx"])
def test_numbers_that_are_not_finite_are_written_as_json_and_named(tmp_path: Path, backend: str) -> None:
    if backend == "onnx":
        onnx = pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    path = Nitro(Boundless(), data={}).export(backend, dir=tmp_path, provenance={"reached": [0.5, -math.inf]})
    if backend == "bundle":
        text = (renew(path, name="new") / "provenance.json").read_text()
        assert load_bundle(path).provenance["margin"] == {"$float": "nan"}
    elif backend == "safetensors":
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        text = header["__metadata__"]["provenance"]
    else:
        text = {entry.key: entry.value for entry in onnx.load(path).metadata_props}["provenance"]
    entries = json.loads(text, parse_constant=pytest.fail)
    assert entries["config"]["graphconst"]["floor"] == {"$float": "-inf"}
    assert entries["config"]["host"]["limit"] == [1.5, {"$float": "inf"}, {"$float": "nan"}]
    assert entries["margin"] == {"$float": "nan"}
    assert entries["reached"] == [0.5, {"$float": "-inf"}]


class Diverged(Scores):
    """Its last epoch measures no number."""

    def metrics(self, outputs: Any, *, y: np.ndarray) -> dict[str, Any]:
        return {**super().metrics(outputs, y=y), "ratio": Mean(np.inf, 1), "share": Mean(np.nan, 1)}


@pytest.mark.filterwarnings("ignore::nitro_cli.NitroWarning")
def test_a_metric_that_is_not_finite_is_no_obstacle_to_the_handle_or_its_checkpoint(tmp_path: Path) -> None:
    trained = Nitro(Diverged(run_dir=tmp_path, checkpointer={"keep": ["last(1)"]})).train()
    loaded = Nitro(Diverged(run_dir=tmp_path), weights="latest:latest", data={})
    for nitro in (trained, loaded):
        _, entries = exported(tmp_path, nitro, force=True)
        found = {key.rpartition("/")[2]: value for key, value in entries["trained"]["metrics"].items()}
        assert found["ratio"] == {"$float": "inf"}
        assert found["share"] == {"$float": "nan"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run with an average of its weights: its root and its id."""
    root = tmp_path_factory.mktemp("runs")
    nitro = Nitro(Scores(run_dir=root, ema=EMA(beta=0.5), checkpointer={"keep": ["last(2)"]})).train()
    assert nitro.run_id is not None
    return root, nitro.run_id


def test_weights_of_a_checkpoint_name_it_and_its_run(tmp_path: Path, run: tuple[Path, str]) -> None:
    root, run_id = run
    nitro = Nitro(Scores(run_dir=root, eval_weights="raw"), data={}, weights="latest:latest")
    _, entries = exported(tmp_path, nitro)
    assert (entries["weights_from"], entries["weights"], entries["run"]) == ("checkpoint", "raw", run_id)
    assert entries["trained"]["epoch"] == 2
    assert Path(entries["checkpoint"]).parent.parent.name == run_id


def test_averaged_weights_say_of_what(tmp_path: Path, run: tuple[Path, str]) -> None:
    root, run_id = run
    nitro = Nitro(Scores(run_dir=root), data={}, weights=(run_id, Average(Last(2))))
    _, entries = exported(tmp_path, nitro)
    assert entries["weights_from"] == "average of checkpoints"
    assert entries["averaged_from"]["epochs"] == [1, 2]
    assert entries["averaged_from"]["run"] == run_id


def test_weights_of_an_ema_say_so_and_are_the_ema(tmp_path: Path, run: tuple[Path, str]) -> None:
    from nitro_cli.export.load import read_safetensors

    root, _ = run
    loaded = Nitro(Scores(run_dir=root), data={}, weights="latest:latest", load_ema=True)
    path, entries = exported(tmp_path, loaded)
    assert entries["weights"] == "ema"
    raw = Nitro(Scores(run_dir=root, eval_weights="raw"), data={}, weights="latest:latest")
    held = read_safetensors(path / "weights.safetensors")["params.head.kernel"]
    assert not np.array_equal(held, raw.params["head"]["kernel"])


def test_the_ema_of_a_handle_that_trained_is_exported_unless_raw_is_asked_for(tmp_path: Path) -> None:
    from nitro_cli.export.load import read_safetensors

    nitro = Nitro(Scores(run_dir=tmp_path / "run", ema=EMA(beta=0.5), checkpointer=None)).train()
    path, entries = exported(tmp_path, nitro)
    assert (entries["weights"], entries["weights_from"]) == ("ema", "trained by this handle")
    held = read_safetensors(path / "weights.safetensors")["params.head.kernel"]
    np.testing.assert_array_equal(held, nitro.ema["head"]["kernel"])


def test_a_warm_started_handle_that_trained_on_says_where_it_started(tmp_path: Path, run: tuple[Path, str]) -> None:
    root, run_id = run
    shutil.copytree(root, tmp_path / "copy")
    nitro = Nitro(Scores(run_dir=tmp_path / "copy"), weights="latest:latest").train()
    _, entries = exported(tmp_path, nitro)
    assert entries["weights_from"] == "trained by this handle"
    assert run_id in entries["warm_started_from"]
    assert entries["run"] == nitro.run_id != run_id
