"""What leaves this machine in an artefact: no path of it, no private value, nothing that says what is imported."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tomllib
import warnings
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import Device, Nitro, NitroWarning, Private, compile_view, export_provenance, load_bundle
from nitro_cli.checkpoints import record_info
from nitro_cli.errors import ConfigError, HookError
from nitro_cli.export import ExportJob, git_provenance, load, renew
from nitro_cli.tracking import JSONLogger
from tests.export.served import Scores, inputs

SECRET = "pa55w0rd-of-the-laboratory"


class Leaving(Scores):
    """One with a private field and fields that hold paths."""

    token: Private[str] = "none"
    data: Path | None = None
    note: str = "a note"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Nitro]:
    """A run whose values hold paths, on a handle that went on from a checkpoint of it; and the folder of it all."""
    home = tmp_path_factory.mktemp("home-of-the-maker")
    e = Leaving(
        run_dir=home / "runs",
        token=SECRET,
        data=home / "data.npz",
        note=f"made in {home}",
        logger=JSONLogger(home / "log.jsonl"),
    )
    (home / "data.npz").write_bytes(b"")
    run = Nitro(e.replace(note=str(home / "data.npz"))).train()
    return home, Nitro(e.replace(note=str(home / "runs")), data={}, weights=(run.run_id, "latest"))


def leaks(artefact: Path, home: Path) -> list[str]:
    """The files of an artefact in which a path of this machine, or the private value, stands."""
    told = [str(home), str(Path(__file__).parent), str(Path.cwd()), os.path.expanduser("~") + os.sep, SECRET]
    files = [artefact] if artefact.is_file() else sorted(f for f in artefact.rglob("*") if f.is_file())
    return [f"{file.name}: {text}" for file in files for text in told if text.encode() in file.read_bytes()]


@pytest.mark.parametrize("backend", ["bundle", "safetensors", "onnx", "savedmodel"])
def test_no_file_of_an_artefact_holds_a_path_of_the_machine_or_a_private_value(
    tmp_path: Path, trained: tuple[Path, Nitro], backend: str
) -> None:
    if backend in ("onnx", "savedmodel"):
        pytest.importorskip({"onnx": "onnxruntime", "savedmodel": "tensorflow"}[backend])
    home, nitro = trained
    repository = home / "sources"
    if not repository.exists():
        repository.mkdir()
        git = ["git", "-C", str(repository), "-c", "user.name=A", "-c", "user.email=a@example.org"]
        for words in (
            ["init", "-q"],
            ["commit", "-q", "--allow-empty", "-m", "first"],
            ["remote", "add", "origin", str(home / "bare.git")],
        ):
            subprocess.run([*git, *words], check=True)
    path = nitro.export(backend, dir=tmp_path, name="left", provenance_root=repository)
    assert leaks(path, home) == []


def test_nothing_of_a_bundle_says_what_is_imported_and_its_values_that_stayed_are_named(
    tmp_path: Path, trained: tuple[Path, Nitro]
) -> None:
    _, nitro = trained
    bundle = nitro.export(dir=tmp_path, name="left")
    config = tomllib.loads((bundle / "config.toml").read_text())
    assert config["experiment"] == {"name": "Leaving"}
    assert {"token", "data", "note", "run_dir", "logger"} <= set(config["at_home"])
    entries = json.loads((bundle / "provenance.json").read_text())
    assert set(entries["config"]["at_home"]) == set(config["at_home"])
    assert "token" not in entries["config"]["host"]
    assert entries["checkpoint"].startswith(f"{entries['run']}/checkpoints/epoch-")


def test_a_checkpoint_holds_no_path_of_the_machine_and_no_private_value(trained: tuple[Path, Nitro]) -> None:
    home, nitro = trained
    source = nitro.plan.source
    assert source is not None
    assert source.path is not None
    meta = record_info(source.path).meta.as_json()
    assert tomllib.loads(meta["config"])["experiment"] == {"name": "Leaving"}
    assert str(home) not in json.dumps({key: meta[key] for key in ("config", "fields", "experiment", "logger")})
    assert SECRET not in (source.path / "record.json").read_text()
    assert SECRET in (source.path.parents[1] / "config.toml").read_text()
    assert SECRET not in (home / "log.jsonl").read_text()


def test_a_bundle_is_renewed_with_the_defaults_of_what_stayed_or_with_what_is_given(
    tmp_path: Path, trained: tuple[Path, Nitro]
) -> None:
    _, nitro = trained
    bundle = nitro.export(dir=tmp_path, name="left")
    with pytest.warns(NitroWarning, match="token, data, note of config.toml stayed"):
        new = renew(bundle, name="new")
    np.testing.assert_allclose(load_bundle(new)(inputs(3))["scores"], load_bundle(bundle)(inputs(3))["scores"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", NitroWarning)
        given = renew(bundle, name="given", sets=["token=t", "data=d", "note=n"])
    assert tomllib.loads((given / "config.toml").read_text())["fields"]["note"] == "n"
    with pytest.raises(ConfigError, match="seed of a bundle cannot be set"):
        renew(bundle, name="other", sets=["seed=4"])


def test_a_bundles_own_code_is_not_imported(tmp_path: Path, trained: tuple[Path, Nitro], monkeypatch: Any) -> None:
    _, nitro = trained
    bundle = nitro.export(dir=tmp_path, name="left")
    evil = f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Absent(Experiment): pass\n"
    (bundle / "evil.py").write_text(evil)
    (bundle / "experiments").mkdir()
    (bundle / "experiments" / "evil.py").write_text(f"from nitro_cli import Experiment\n{evil}")
    config = bundle / "config.toml"
    absent = 'name = "Absent"\nsource = "evil.py:Absent"\nimport = "evil:Absent"'
    config.write_text(config.read_text().replace('name = "Leaving"', absent))
    manifest = json.loads((bundle / "manifest.json").read_text())
    content = config.read_bytes()
    manifest["files"]["config.toml"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest["seal"] = load.manifest_seal({key: value for key, value in manifest.items() if key != "seal"})
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    for folder in (tmp_path, bundle):
        monkeypatch.chdir(folder)
        with pytest.raises(Exception, match="there is no experiment Absent here"):
            renew(bundle, name="new")
    assert not (tmp_path / "ran").exists()


def test_the_frameworks_entries_are_to_be_had_without_an_export(trained: tuple[Path, Nitro]) -> None:
    home, nitro = trained
    entries = export_provenance(nitro)
    assert (entries["framework"], entries["weights_from"], entries["seed"]) == ("nitro", "checkpoint", 42)
    assert str(home) not in json.dumps(entries)
    assert "repository" not in entries


class Kept:
    """A backend that keeps the job, and asks git in its own way."""

    suffix = ".kept"

    def __init__(self, diff: Any = "a patch\n") -> None:
        self.diff = diff
        self.job: ExportJob | None = None

    def site_provenance(self, root: Path) -> dict[str, Any]:
        return {"commit": "of my own", "asked": root.name, "git_diff": self.diff}

    def write(self, job: ExportJob) -> Path:
        self.job = job
        return job.target


def test_a_backend_collects_its_own_provenance_and_its_diff_becomes_the_patch(tmp_path: Path) -> None:
    backend = Kept()
    Nitro(Scores(), data={}).export(
        backend, dir=tmp_path, provenance_root=tmp_path, provenance={"commit": "the call's"}
    )
    assert backend.job is not None
    told = backend.job.provenance
    assert (told["commit"], told["asked"], told["patch"]) == ("the call's", tmp_path.name, "working-tree.patch")
    assert "git_diff" not in told
    assert backend.job.patch == b"a patch\n"
    with pytest.raises(ConfigError, match="git_diff"):
        Nitro(Scores(), data={}).export(Kept(3), dir=tmp_path, provenance_root=tmp_path)


def test_git_says_what_a_folder_is(tmp_path: Path) -> None:
    with pytest.warns(NitroWarning, match="in no git work tree"):
        assert str(tmp_path) not in json.dumps(git_provenance(tmp_path))


class Tabled(Scores):
    """One that holds a table, of which its outputs need the first entry."""

    table: Device[Any] = np.arange(6, dtype=np.float32)

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        scores, state = model(params, state, x)
        return scores + jnp.asarray(self.table)[0], state


class Viewed(Tabled):
    def export_view(self, view: Any) -> Any:
        return compile_view(self, {"table": np.asarray(view.table)[:1] + 1})


class Unviewed(Tabled):
    def export_view(self, view: Any) -> Any:
        return None


def test_the_exported_program_sees_the_view_that_the_experiment_makes(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="against predict"):
        # the view adds one to every score, so that it is seen to be used
        Nitro(Viewed(), data={}).export(dir=tmp_path)
    with pytest.raises(HookError, match="`export_view` returned NoneType"):
        Nitro(Unviewed(), data={}).export(dir=tmp_path)
    assert not (tmp_path / "Viewed").exists()
