"""A calibrator and a policy that leave with an export: what they say is an output of the program."""

import json

import numpy as np
import pytest

from nitro_cli import ArrayBatches, Experiment, Nitro, load_bundle
from nitro_cli.analysis import (
    AbstentionPolicy,
    Calibrator,
    Probabilities,
    concatenate,
    fit_calibrator,
    select_threshold,
)
from nitro_cli.errors import ConfigError, MismatchError
from nitro_cli.export import renew
from nitro_cli.run import OutputMeaning
from nitro_cli.tasks import Categorical, Multilabel, Task


def rows(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    x = (2 * np.eye(3)[y] + 2 * rng.normal(size=(n, 3))).astype(np.float32)
    return {"x": x, "label": y.astype(np.int32), "labels": (x[:, :2] + rng.normal(size=(n, 2)) > 1).astype(np.float32)}


class Points(Experiment):
    """Logits that are the inputs, scaled; without a task."""

    scale: float = 1.0

    def build_data(self, dist):
        return {name: ArrayBatches(rows(n, seed), 20) for seed, (name, n) in enumerate([("val", 90), ("test", 70)])}

    def build_model(self, rng):
        return lambda p, s, x: (x * p["w"], s), {"w": np.full(3, self.scale, np.float32)}, {}

    def forward(self, model, params, state, *, x):
        return model(params, state, x)

    def loss(self, outputs):
        return outputs.mean()


class Classes(Points):
    """The same with a task."""

    task: Task = Categorical(3, labels=("a", "b", "c"))


class Labels(Points):
    """Two labels that do not exclude each other."""

    task: Task = Multilabel(2, target="labels")

    def build_model(self, rng):
        return lambda p, s, x: (x[:, :2] * p["w"][:2], s), {"w": np.ones(3, np.float32)}, {}


def whole(handle, split, **words):
    with handle.predictions(split, **words) as stream:
        return concatenate(stream)


@pytest.mark.parametrize("kind", [Classes, Points])
def test_a_bundle_gives_the_calibrated_probabilities_and_verdicts_of_predictions(kind, tmp_path):
    handle, words = Nitro(kind(), logger=None, checkpointer=None, run_dir=tmp_path), {}
    if kind is Points:
        words = {"spec": OutputMeaning(Probabilities("categorical"), target="label")}
    val, test = whole(handle, "val", **words), whole(handle, "test", **words)
    calibrator = fit_calibrator(val, method="temperature").require()
    policy = select_threshold(val, risk=0.2, score="margin", calibrator=calibrator).require()
    path = handle.export("bundle", calibrator=calibrator, policy=policy, **words)
    found = load_bundle(path)(inputs_of(handle))
    raw = test.outputs.astype(np.float64) / calibrator.parameters["temperature"]
    by_hand = np.exp(raw) / np.exp(raw).sum(1, keepdims=True)
    np.testing.assert_allclose(found["calibrated_probabilities"], by_hand, atol=1e-6)
    first, second = np.sort(by_hand, axis=1)[:, ::-1][:, :2].T
    np.testing.assert_allclose(found["score"], first - second, atol=1e-6)
    assert np.array_equal(found["accepted"], policy.apply(test, calibrator=calibrator).accepted)
    assert 0 < found["accepted"].sum() < len(test)
    assert (Calibrator.load(path / "calibrator.json").id, AbstentionPolicy.load(path / "policy.json").id) == (
        calibrator.id, policy.id,
    )  # fmt: skip
    told = json.loads((path / "provenance.json").read_text())["artefacts"]
    assert (told["calibrator"], told["policy"], told["override"]) == (calibrator.id, policy.id, None)


def inputs_of(handle):
    return handle.data["test"].arrays["x"]


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_curves_of_labels_are_in_the_program_too(method, tmp_path):
    handle = Nitro(Labels(), logger=None, checkpointer=None, run_dir=tmp_path)
    calibrator = fit_calibrator(whole(handle, "val"), method=method).require()
    found = load_bundle(handle.export("bundle", calibrator=calibrator))(inputs_of(handle))
    wanted = calibrator.apply(whole(handle, "test")).calibrated_probabilities
    np.testing.assert_allclose(found["calibrated_probabilities"], wanted, atol=1e-6)


def test_artefacts_of_other_weights_leave_with_nothing_unless_they_are_accepted_by_name(tmp_path):
    calibrator = fit_calibrator(whole(Nitro(Classes(), checkpointer=None), "val"), method="temperature").require()
    other = Nitro(Classes(scale=2.0), logger=None, checkpointer=None, run_dir=tmp_path)
    with pytest.raises(MismatchError):
        other.export("bundle", calibrator=calibrator)
    assert not (tmp_path / "export").exists()
    path = other.export("bundle", calibrator=calibrator, override="a test")
    assert json.loads((path / "provenance.json").read_text())["artefacts"]["override"] == "a test"
    with pytest.raises(ConfigError, match="nothing says what the outputs mean"):
        Nitro(Points(), checkpointer=None, run_dir=tmp_path).export("bundle", calibrator=calibrator)


def test_a_bundle_written_anew_keeps_them(tmp_path):
    handle = Nitro(Classes(), logger=None, checkpointer=None, run_dir=tmp_path)
    calibrator = fit_calibrator(whole(handle, "val"), method="temperature").require()
    path = handle.export("bundle", calibrator=calibrator)
    again = renew(path, name="again", experiment=f"{__file__}:Classes")
    x = inputs_of(handle)
    np.testing.assert_array_equal(load_bundle(again)(x)["calibrated_probabilities"],
                                  load_bundle(path)(x)["calibrated_probabilities"])  # fmt: skip
    assert (again / "calibrator.json").read_text() == (path / "calibrator.json").read_text()


def test_an_onnx_file_gives_the_same(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    handle = Nitro(Classes(), logger=None, checkpointer=None, run_dir=tmp_path)
    val, test = whole(handle, "val"), whole(handle, "test")
    calibrator = fit_calibrator(val, method="temperature").require()
    policy = select_threshold(val, risk=0.2, score="max_probability", calibrator=calibrator).require()
    session = runtime.InferenceSession(handle.export("onnx", calibrator=calibrator, policy=policy))
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"x": inputs_of(handle)}), strict=True))
    verdict = policy.apply(test, calibrator=calibrator)
    np.testing.assert_allclose(found["calibrated_probabilities"], verdict.probabilities, atol=1e-6)
    np.testing.assert_allclose(found["score"], verdict.score, atol=1e-6)
    assert np.array_equal(found["accepted"], verdict.accepted)
