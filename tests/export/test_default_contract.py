"""The wire contract of an experiment without export hooks: it follows from the batch and from what forward returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import ExportSpec, Nitro, load_bundle
from nitro_cli.errors import ConfigError
from nitro_cli.export import renew
from tests.export.served import Tokens, returning
from tests.tiny import FEATURES, Light


class Pair(NamedTuple):
    mean: Any
    rest: Any


RETURNED: dict[str, tuple[Any, dict[str, str]]] = {
    "one array": (lambda out: out, {"outputs": ""}),
    "a mapping": (lambda out: {"b": out, "a": out + 1}, {"a": "a", "b": "b"}),
    "a mapping of one": (lambda out: {"logits": out}, {"logits": "logits"}),
    "nested": (lambda out: {"cls": {"logits": out}, "x": [out]}, {"cls_logits": "cls/logits", "x_0": "x/0"}),
    "a tuple": (lambda out: (out, out * 2), {"outputs_0": "0", "outputs_1": "1"}),
    "the name of an input": (lambda out: {"mask": out}, {"outputs_mask": "mask"}),
    "a named tuple": (lambda out: Pair(out, out * 2), {"mean": "mean", "rest": "rest"}),
}


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Nitro:
    return Nitro(Light(run_dir=str(tmp_path_factory.mktemp("light")))).train()


def wire(path: Path) -> tuple[list[Any], list[str]]:
    manifest = load_bundle(path).manifest
    return [(s["name"], s["dtype"], s["shape"]) for s in manifest["inputs"]], [s["name"] for s in manifest["outputs"]]


def test_inputs_are_the_fields_that_forward_takes_as_the_device_gets_them(tmp_path: Path) -> None:
    path = Nitro(Tokens()).export(dir=tmp_path)
    assert wire(path) == ([("tokens", "int32", [None, 4]), ("mask", "float32", [None, 3])], ["outputs"])


@pytest.mark.parametrize("kind", RETURNED)
@pytest.mark.parametrize("backend", ["bundle", "onnx"])
def test_outputs_are_the_leaves_that_forward_returns_under_names_for_every_backend(
    tmp_path: Path, kind: str, backend: str
) -> None:
    make, names = RETURNED[kind]
    handle = Nitro(returning(make)())
    path = handle.export(backend, dir=tmp_path)
    sent = {"tokens": np.array([[0, 1, 2, 3], [4, 4, 4, 4]], np.int32), "mask": np.full((2, 3), 2, np.float32)}
    rows = np.asarray(handle.params["table"])
    out = 2 * np.stack([rows[[0, 1, 2, 3]].sum(0), 4 * rows[4]])
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(make(out))]
    if backend == "bundle":
        found = load_bundle(path)(**sent)
    else:
        session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
        found = dict(zip([o.name for o in session.get_outputs()], session.run(None, sent), strict=True))
    assert list(found) == list(names)
    for value, leaf in zip(found.values(), leaves, strict=True):
        np.testing.assert_allclose(value, leaf, rtol=1e-6)


@pytest.mark.parametrize("backend", ["bundle", "onnx", "safetensors"])
def test_a_run_exports_without_its_data(light: Nitro, tmp_path: Path, backend: str) -> None:
    for weights in ((light.run_id, "best"), light):
        handle = Nitro(Light(run_dir=str(light.run_dir)), data={}, weights=weights)
        assert handle.export(backend, dir=tmp_path, force=True).exists()
    if backend == "bundle":
        x = np.random.default_rng(0).normal(size=(5, FEATURES)).astype(np.float32)
        np.testing.assert_allclose(load_bundle(tmp_path / "Light")(x=x)["outputs"], handle.predict({"x": x}), rtol=1e-5)


def test_a_bundle_is_renewed_under_the_contract_it_has(light: Nitro, tmp_path: Path) -> None:
    old = light.export(dir=tmp_path)
    new = renew(old, name="new")
    assert wire(new) == wire(old) == ([("x", "float32", [None, FEATURES])], ["outputs"])


def test_a_hook_is_for_what_differs(light: Nitro, tmp_path: Path) -> None:
    class Named(Light):
        def export_outputs(self) -> list[ExportSpec]:
            return [ExportSpec("logits")]

    class Bytes(Light):
        def export_inputs(self) -> list[ExportSpec]:
            return [ExportSpec("levels", "uint8", (1, FEATURES))]

        def export_preprocess(self, levels: jax.Array) -> dict[str, jax.Array]:
            return {"x": levels.astype(jnp.float32) / 255}

    named = Nitro(Named(), data={}, weights=light).export(dir=tmp_path)
    assert wire(named) == ([("x", "float32", [None, FEATURES])], ["logits"])
    levels = Nitro(Bytes(), data={}).export(dir=tmp_path)
    assert wire(levels) == ([("levels", "uint8", [None, FEATURES])], ["outputs"])


def test_without_a_batch_the_handle_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no batch to take its inputs from") as caught:
        Nitro(Light(), data={}).export(dir=tmp_path)
    assert "export_inputs" in str(caught.value.fix)
    assert list(tmp_path.iterdir()) == []


def test_a_preprocess_needs_the_inputs_it_takes(tmp_path: Path) -> None:
    class Half(Light):
        def export_preprocess(self, levels: jax.Array) -> dict[str, jax.Array]:
            return {"x": levels.astype(jnp.float32)}

    with pytest.raises(ConfigError, match="export_preprocess and no export_inputs"):
        Nitro(Half()).export(dir=tmp_path)


def test_a_dtype_that_numpy_lacks_is_refused_for_onnx_and_kept_in_a_bundle(tmp_path: Path) -> None:
    handle = Nitro(returning(lambda out: out.astype(jnp.bfloat16))())
    with pytest.raises(ConfigError, match="output 'outputs' is bfloat16, which onnxruntime"):
        handle.export("onnx", dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert load_bundle(handle.export(dir=tmp_path)).manifest["outputs"][0]["dtype"] == "bfloat16"


def test_two_leaves_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a/b, a_b would have one name"):
        Nitro(returning(lambda out: {"a": {"b": out}, "a_b": out})()).export(dir=tmp_path)


def test_a_forward_of_one_batch_size_alone_says_so(tmp_path: Path) -> None:
    handle = Nitro(returning(lambda out: out.reshape(4, 3))())
    with pytest.raises(ConfigError, match="at another batch size: tokens int32"):
        handle.export(dir=tmp_path)


@pytest.mark.parametrize("backend", ["bundle", "onnx"])
def test_an_equinox_module_that_wants_a_key_exports_for_any_batch_size(tmp_path: Path, backend: str) -> None:
    equinox = pytest.importorskip("equinox")

    class Layers(equinox.Module):
        linear: Any
        dropout: Any

        def __call__(self, x: jax.Array, *, key: jax.Array) -> jax.Array:
            first, second = jax.random.split(key)
            return self.dropout(self.linear(self.dropout(x, key=first)), key=second)

    class Mapped(Light):
        def build_model(self, rng: jax.Array) -> Any:
            return Layers(equinox.nn.Linear(FEATURES, 3, key=rng), equinox.nn.Dropout(0.5))

    handle = Nitro(Mapped())
    path = handle.export(backend, dir=tmp_path)
    x = np.random.default_rng(0).normal(size=(5, FEATURES)).astype(np.float32)
    linear = handle.params["linear"]
    wanted = x @ np.asarray(linear["weight"]).T + np.asarray(linear["bias"])
    np.testing.assert_allclose(handle.predict({"x": x}), wanted, rtol=1e-5, atol=1e-6)
    if backend == "bundle":
        bundle = load_bundle(path)
        assert "any" in bundle.manifest["programs"]
        np.testing.assert_allclose(bundle(x=x)["outputs"], wanted, rtol=1e-5, atol=1e-6)
    else:
        (found,) = pytest.importorskip("onnxruntime").InferenceSession(str(path)).run(None, {"x": x})
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
