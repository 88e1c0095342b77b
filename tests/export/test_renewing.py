"""Bundles written anew from what they hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from nitro_cli import Nitro, NitroWarning, load_bundle
from nitro_cli.errors import IncompatibleError, IntegrityError
from nitro_cli.export import DamagedBundleError, load, renew
from tests.export.served import Scores, Wired, inputs

WIRE = (np.arange(4, dtype=np.int32), np.arange(24, dtype=np.uint8).reshape(4, 6))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A bundle whose weights are not those of a fresh handle, with a Device field changed since the setup."""
    nitro = Nitro(Wired(shift=1.0, run_dir=tmp_path / "run", checkpointer=None)).train()
    nitro.set_device(shift=-2.5)
    return nitro.export(dir=tmp_path, name="old", batch_sizes=(1, 4), provenance={"ticket": 42})


def test_a_renewed_bundle_gives_the_same_outputs_and_says_what_it_was_renewed_from(old: Path) -> None:
    before = json.loads((old / "provenance.json").read_text())
    shutil.rmtree(old.parent / "run")
    new = renew(old, name="new")
    assert new == old.resolve().parent / "new"
    np.testing.assert_allclose(load_bundle(new)(*WIRE)["scores"], load_bundle(old)(*WIRE)["scores"], rtol=1e-6)
    after = json.loads((new / "provenance.json").read_text())
    manifest = json.loads((old / "manifest.json").read_text())
    assert after["renewed_from"]["exported_at"] == manifest["exported_at"]
    assert after["renewed_from"]["comparison"] == "the old program gives the same outputs"
    kept = ("ticket", "run", "weights_from", "trained", "config", "seed")
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    assert json.loads((new / "manifest.json").read_text())["batch_sizes"] == [1, 4]


def test_a_bundle_is_replaced_in_its_place_only_when_forced(old: Path) -> None:
    with pytest.raises(IncompatibleError, match="already exists"):
        renew(old)
    wanted = load_bundle(old)(*WIRE)["scores"]
    assert renew(old, force=True) == old
    np.testing.assert_allclose(load_bundle(old)(*WIRE)["scores"], wanted, rtol=1e-6)


def test_a_program_that_does_not_load_any_more_is_written_anew_with_a_warning(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = load_bundle(old)(*WIRE)["scores"]
    real = load.open_program

    def expired(root: Path, *words: object, **named: object) -> object:
        if root == old:
            raise load.BundleError("the program is too old")
        return real(root, *words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(load, "open_program", expired)
    with pytest.warns(NitroWarning, match="does not run any more"):
        new = renew(old, name="new")
    np.testing.assert_allclose(load_bundle(new)(*WIRE)["scores"], wanted, rtol=1e-6)
    assert "the program is too old" in json.loads((new / "provenance.json").read_text())["renewed_from"]["comparison"]


def test_code_that_computes_something_else_now_is_refused(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Wired.forward

    def changed(self: Wired, model: object, params: object, state: object, *, x: object) -> object:
        outputs, state = real(self, model, params, state, x=x)  # type: ignore[arg-type]
        return {**outputs, "scores": outputs["scores"] + 1}, state

    monkeypatch.setattr(Wired, "forward", changed)
    with pytest.raises(IntegrityError, match="differs"):
        renew(old, name="new")
    assert not (old.parent / "new").exists()


def test_code_that_builds_other_weights_now_is_refused(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Wired.build_model

    def changed(self: Wired, rng: object) -> object:
        network, params, state = real(self, rng)  # type: ignore[arg-type]
        return network, {**params, "more": np.zeros(3, np.float32)}, state

    monkeypatch.setattr(Wired, "build_model", changed)
    with pytest.raises(IncompatibleError, match=r"other weights now than the bundle holds: params\.more"):
        renew(old, name="new")


def test_a_damaged_bundle_is_not_renewed(old: Path) -> None:
    (old / "config.toml").write_text("")
    with pytest.raises(DamagedBundleError, match=r"config\.toml"):
        renew(old, name="new")


def test_another_kind_of_artefact_comes_from_a_bundle(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    nitro = Nitro(Scores(), data={})
    path = renew(nitro.export(dir=tmp_path), "onnx")
    (found,) = runtime.InferenceSession(path).run(["scores"], {"x": inputs(5)})
    np.testing.assert_allclose(found, nitro.predict({"x": inputs(5)}), rtol=1e-5, atol=1e-6)
