"""Bundles: what they give where nitro is not installed, and what they refuse."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli import BundleError, Nitro, NitroWarning, load_bundle
from nitro_cli.errors import IncompatibleError, IntegrityError
from nitro_cli.export import DamagedBundleError, NoBundleError, UntrustedPostprocessError, verify_bundle
from nitro_cli.export.load import manifest_seal
from tests.export.alone import run_alone
from tests.export.served import Branching, Scores, Softmaxed, Wired, inputs

RUN = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from load import load_bundle
for name in ("nitro_cli", "optax", "safetensors", sys.argv[4]):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(name + " can be imported here")
bundle = load_bundle(sys.argv[1])
given = np.load(sys.argv[2])
np.savez(sys.argv[3], **{key: bundle(x=given[key])["scores"] for key in given.files})
"""


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Nitro]:
    """A bundle of `Scores` and the handle it was exported from; not to be changed."""
    nitro = Nitro(Scores(), data={})
    folder = tmp_path_factory.mktemp("bundles")
    return nitro.export("bundle", dir=folder, name="scores", batch_sizes=(1, 4)), nitro


@pytest.fixture
def copied(scores: tuple[Path, Nitro], tmp_path: Path) -> Path:
    """A copy of the bundle, to be changed at will."""
    return Path(shutil.copytree(scores[0], tmp_path / "copied"))


@pytest.mark.parametrize("beside", [(), ("flatbuffers",)], ids=["jax and numpy", "flatbuffers as well"])
def test_a_bundle_gives_what_predict_gives_with_jax_and_numpy_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    nitro = Nitro(Scores(run_dir=tmp_path / "run"), weights=None).train()
    path = nitro.export("bundle")
    wanted = {str(size): nitro.predict({"x": inputs(size)}) for size in (7, 1)}
    wide = Nitro(Scores(), data={}, weights=nitro)
    wanted["32"] = wide.predict({"x": inputs(32)})
    np.savez(tmp_path / "given.npz", **{size: inputs(int(size)) for size in wanted})
    moved = Path(shutil.move(path, tmp_path / "elsewhere"))
    shutil.rmtree(tmp_path / "run")
    absent = "flax" if beside else "flatbuffers"
    out = tmp_path / "out.npz"
    run_alone(
        tmp_path / "alone", RUN, str(moved), str(tmp_path / "given.npz"), str(out), absent,
        packages=("jax", "numpy", *beside),
    )  # fmt: skip
    with np.load(out) as found:
        for size, value in wanted.items():
            np.testing.assert_allclose(found[size], value, rtol=1e-5, atol=1e-5)


def test_outputs_are_renamed_reordered_and_echoed_and_bytes_are_preprocessed(tmp_path: Path) -> None:
    nitro = Nitro(Wired(), data={})
    bundle = load_bundle(nitro.export(dir=tmp_path))
    levels = np.random.default_rng(0).integers(0, 256, (5, 6)).astype(np.uint8)
    number = np.arange(5, dtype=np.int32)
    found = bundle(number, levels)
    own = nitro.predict({"x": levels.astype(np.float32) / 255})
    assert list(found) == ["best", "number", "scores"]
    np.testing.assert_array_equal(found["number"], number)
    np.testing.assert_array_equal(found["best"], own["top"])
    np.testing.assert_allclose(found["scores"], own["scores"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(bundle(levels=levels, number=number)["scores"], found["scores"])


def test_a_device_field_is_baked_at_the_value_it_has_at_the_export(tmp_path: Path) -> None:
    nitro = Nitro(Wired(shift=1.5), data={})
    wire = (np.zeros(2, np.int32), np.zeros((2, 6), np.uint8))
    at_first = load_bundle(nitro.export(dir=tmp_path, name="first"))(*wire)["scores"]
    nitro.set_device(shift=-2.0)
    later = load_bundle(nitro.export(dir=tmp_path, name="later"))(*wire)["scores"]
    np.testing.assert_allclose(at_first - later, 3.5, rtol=1e-5)


def test_a_data_set_on_a_host_field_never_reaches_the_artefact(tmp_path: Path) -> None:
    marker = np.frombuffer(b"the secret rows of the data set " * 8, np.uint8).astype(np.float64)
    path = Nitro(Wired(table=marker), data={}).export(dir=tmp_path)
    for file in path.iterdir():
        held = file.read_bytes()
        assert marker.tobytes()[:64] not in held
        assert b"116.0, 104.0, 101.0" not in held  # its first values as text


def test_exporting_leaves_the_batch_size_that_the_handle_predicts_in_open(tmp_path: Path) -> None:
    nitro = Nitro(Scores(), data={})
    nitro.export(dir=tmp_path)
    assert nitro.predict({"x": inputs(9)}).shape == (9, 3)


def test_the_postprocess_runs_only_when_trusted(tmp_path: Path) -> None:
    nitro = Nitro(Softmaxed(), data={})
    path = nitro.export(dir=tmp_path)
    with pytest.raises(UntrustedPostprocessError, match="trust_postprocess"):
        load_bundle(path)
    logits = nitro.predict({"x": inputs(4)})
    np.testing.assert_allclose(load_bundle(path, raw=True)(x=inputs(4))["scores"], logits, rtol=1e-5, atol=1e-6)
    found = load_bundle(path, trust_postprocess=True)(x=inputs(4))
    assert list(found) == ["probabilities"]
    e = np.exp(logits.astype(np.float64))
    np.testing.assert_allclose(found["probabilities"], e / e.sum(-1, keepdims=True), rtol=1e-5)


def test_a_program_that_branches_on_the_batch_size_is_exported_at_fixed_sizes(tmp_path: Path) -> None:
    nitro = Nitro(Branching(), data={})
    with pytest.warns(NitroWarning, match="the sizes 2, 8 only"):
        path = nitro.export(dir=tmp_path, batch_sizes=(2, 8))
    bundle = load_bundle(path)
    plain = load_bundle(Nitro(Scores(), data={}, weights=nitro).export(dir=tmp_path, name="plain"))
    np.testing.assert_allclose(bundle(inputs(8))["scores"], 2 * plain(inputs(8))["scores"], rtol=1e-5)
    np.testing.assert_allclose(bundle(inputs(2))["scores"], plain(inputs(2))["scores"], rtol=1e-5)
    with pytest.raises(BundleError, match="no program for a batch of 3; there are: 2, 8"):
        bundle(inputs(3))


def test_a_bundle_says_what_it_takes_and_until_when_it_loads(scores: tuple[Path, Nitro]) -> None:
    manifest = json.loads((scores[0] / "manifest.json").read_text())
    assert manifest["inputs"] == [{"name": "x", "dtype": "float32", "shape": [None, 6]}]
    assert manifest["outputs"] == [{"name": "scores", "dtype": "float32", "shape": [None, 3]}]
    assert manifest["platforms"] == ["cpu", "cuda", "tpu"]
    days = np.datetime64(manifest["valid_until"]) - np.datetime64(manifest["exported_at"][:10])
    assert days == np.timedelta64(180, "D")
    assert {"program-b1.mlir", "program-b4.mlir", "config.toml", "load.py"} <= set(manifest["files"])


def test_the_weights_are_readable_by_others(scores: tuple[Path, Nitro]) -> None:
    modes = {stat.S_IMODE(file.stat().st_mode) & 0o444 for file in scores[0].iterdir()}
    assert modes == {0o444}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"x": np.zeros((2, 5), np.float32)}, r"float32\[2, 5\]"),
        ({"x": np.zeros((2, 6))}, "float64"),
        ({"y": np.zeros((2, 6), np.float32)}, "the inputs are x"),
        ({"x": np.zeros((0, 6), np.float32)}, r"float32\[0, 6\]"),
        ({}, "given were none"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(scores: tuple[Path, Nitro], given: dict[str, Any], told: str) -> None:
    with pytest.raises(BundleError, match=told):
        load_bundle(scores[0])(**given)


def test_a_changed_byte_of_the_weights_is_refused(copied: Path) -> None:
    data = bytearray((copied / "weights.safetensors").read_bytes())
    data[-1] ^= 1
    (copied / "weights.safetensors").write_bytes(data)
    with pytest.raises(DamagedBundleError, match=r"weights\.safetensors of the bundle .* is not the file"):
        load_bundle(copied)


def test_a_changed_manifest_is_refused(copied: Path) -> None:
    _edit(copied, lambda manifest: manifest.update(postprocess="load.py"), sealed=False)
    with pytest.raises(DamagedBundleError, match="was changed after the export"):
        load_bundle(copied)


@pytest.mark.parametrize("name", ["../outside.bin", "/etc/hostname", "a/../../outside.bin", "..\\outside.bin"])
@pytest.mark.parametrize("key", ["weights", "postprocess"])
def test_a_path_that_leads_outside_is_refused(copied: Path, name: str, key: str) -> None:
    (copied.parent / "outside.bin").write_bytes(b"")
    _edit(copied, lambda manifest: manifest.update({key: name}))
    with pytest.raises(DamagedBundleError, match="leads outside the bundle"):
        load_bundle(copied, trust_postprocess=True)


def test_a_link_that_leads_outside_is_refused(copied: Path) -> None:
    real = shutil.move(copied / "weights.safetensors", copied.parent / "weights.safetensors")
    os.symlink(real, copied / "weights.safetensors")
    with pytest.raises(DamagedBundleError, match="leads outside the bundle"):
        load_bundle(copied)


def test_a_file_without_a_digest_is_refused(copied: Path) -> None:
    (copied / "postprocess.py").write_text("raise SystemExit('executed')")
    _edit(copied, lambda manifest: manifest.update(postprocess="postprocess.py"))
    with pytest.raises(DamagedBundleError, match="has no digest"):
        load_bundle(copied, trust_postprocess=True)


@pytest.mark.parametrize("missing", ["weights", "programs", "files"])
def test_a_manifest_without_a_part_is_refused(copied: Path, missing: str) -> None:
    _edit(copied, lambda manifest: manifest.pop(missing))
    with pytest.raises(DamagedBundleError):
        verify_bundle(copied)


def test_what_is_no_bundle_is_said(tmp_path: Path, copied: Path) -> None:
    with pytest.raises(NoBundleError, match=r"has no manifest\.json"):
        load_bundle(tmp_path / "nowhere")
    _edit(copied, lambda manifest: manifest.update(format=99))
    with pytest.raises(BundleError, match="format 99"):
        load_bundle(copied)


def test_a_bundle_past_its_date_warns_and_still_runs(copied: Path) -> None:
    _edit(copied, lambda manifest: manifest.update(valid_until="2020-01-01"))
    with pytest.warns(UserWarning, match="until 2020-01-01"):
        bundle = load_bundle(copied)
    assert bundle(inputs(2))["scores"].shape == (2, 3)


def test_an_existing_target_is_refused_and_replaced_when_forced(scores: tuple[Path, Nitro], tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    with pytest.raises(IncompatibleError, match="already exists"):
        scores[1].export(dir=tmp_path, name="there")
    assert (target / "notes.txt").read_text() == "mine"
    scores[1].export(dir=tmp_path, name="there", force=True)
    assert not (target / "notes.txt").exists()
    verify_bundle(target)


@pytest.mark.parametrize("force", [False, True])
def test_a_failed_export_leaves_nothing_behind(
    scores: tuple[Path, Nitro], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    def differs(*_: Any) -> None:
        raise IntegrityError("the artefact differs")

    if force:
        (tmp_path / "there").mkdir()
        (tmp_path / "there" / "kept.txt").write_text("as before")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    monkeypatch.setattr("nitro_cli.export.bundle.check_agreement", differs)
    with pytest.raises(IntegrityError, match="differs"):
        scores[1].export(dir=tmp_path, name="there", force=force)
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_an_artefact_that_gives_other_outputs_is_refused(
    scores: tuple[Path, Nitro], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nitro_cli.export import bundle as module

    real = module.write_safetensors

    def other(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
        real(path, {name: array + 1 if array.dtype.kind == "f" else array for name, array in arrays.items()}, metadata)

    monkeypatch.setattr(module, "write_safetensors", other)
    monkeypatch.setattr(module, "check_same", lambda *_: None)
    with pytest.raises(IntegrityError, match="output scores differs"):
        scores[1].export(dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def _edit(bundle: Path, change: Any, sealed: bool = True) -> None:
    """Change the manifest as somebody who knows how it is sealed would."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    change(manifest)
    if sealed:
        manifest.pop("seal")
        manifest["seal"] = manifest_seal(manifest)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def test_the_seal_is_the_digest_of_the_sorted_manifest() -> None:
    assert manifest_seal({"b": 1, "a": 2}) == hashlib.sha256(b'{"a": 2, "b": 1}').hexdigest()
