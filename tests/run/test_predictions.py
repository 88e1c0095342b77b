"""Predictions of a handle: streams, ids, what they come from, and what artefacts add to an evaluation."""

import numpy as np
import pytest

from nitro_cli import ArrayBatches, Experiment, Nitro
from nitro_cli.analysis import Probabilities, concatenate, fit_calibrator, select_threshold
from nitro_cli.errors import ConfigError, DataError, MismatchError, StreamClosedError
from nitro_cli.run import OutputMeaning
from nitro_cli.tasks import Multilabel, Task

PRIOR = np.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]], np.float32)
Y = np.array([0, 0, 1, 1])


class Logits(Experiment):
    """The outputs are the inputs: what is predicted is known."""

    logger = None
    checkpointer = None
    shuffled: bool = False

    def build_data(self, dist):
        test = {"x": np.tile(PRIOR, (2, 1)), "y": np.tile(Y, 2), "name": np.array([f"s{i}" for i in range(8)])}
        val = {"x": PRIOR, "y": Y, "name": np.array([f"v{i}" for i in range(4)])}
        return {
            "val": ArrayBatches(val, 3),
            "test": ArrayBatches(test, 3, shuffle=self.shuffled, seed=1),
        }

    def build_model(self, rng):
        return lambda p, s, x: (x * p["w"], s), {"w": np.ones(1, np.float32)}, {}

    def forward(self, model, params, state, *, x):
        return model(params, state, x)

    def loss(self, outputs):
        return outputs.mean()


MEANING = OutputMeaning(Probabilities("categorical"), target="y", ids="name")


@pytest.fixture(scope="module")
def handle():
    return Nitro(Logits())


def test_a_stream_joined_is_the_eager_result_bit_for_bit(handle):
    spec = Probabilities("categorical")
    with handle.predictions("val", spec=spec) as stream:
        parts = list(stream)
    assert [len(part) for part in parts] == [3, 1]
    joined, eager = concatenate(parts), spec.predict(handle.predict({"x": PRIOR[:3]}))
    np.testing.assert_array_equal(joined.probabilities[:3], eager.probabilities)
    np.testing.assert_array_equal(joined.ids, np.arange(4))
    np.testing.assert_allclose(eager.probabilities[0], [1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))], rtol=1e-6)


def test_a_batch_gives_one_prediction_and_an_iterable_a_stream_that_ends(handle):
    one = handle.predictions({"x": PRIOR[:2]}, spec=Probabilities("categorical"))
    assert one.decoded.tolist() == [0, 0]
    stream = handle.predictions(iter([]), spec=Probabilities("categorical"))
    assert list(stream) == []
    with pytest.raises(StreamClosedError):
        next(stream)
    source = iter([{"x": PRIOR[:2]}, {"x": PRIOR[2:]}])
    with handle.predictions(source, spec=Probabilities("categorical")) as stream:
        assert next(stream).ids.tolist() == [0, 1]
    stream.close()
    assert len(list(source)) == 1  # the source is usable, what was not asked for is still there


def test_positions_name_the_samples_of_a_shuffled_split_and_a_field_does_where_it_is_named():
    shuffled = Nitro(Logits(shuffled=True))
    with shuffled.predictions("test", spec=Probabilities("categorical"), fields=["name"]) as stream:
        whole = concatenate(stream)
    assert sorted(whole.ids) == list(range(8))
    assert whole.ids.tolist() != list(range(8))
    assert [f"s{i}" for i in whole.ids] == whole.fields["name"].tolist()
    with shuffled.predictions("test", spec=MEANING) as stream:
        assert concatenate(stream).ids.tolist() == whole.fields["name"].tolist()


def test_nothing_is_guessed(handle):
    with pytest.raises(ConfigError, match="nothing says what the outputs mean"):
        handle.predictions("val")
    with pytest.raises(DataError, match="no field z"):
        handle.predictions("val", spec=MEANING, fields=["z"])
    with pytest.raises(DataError, match="no output head"):
        next(handle.predictions("val", spec=OutputMeaning(Probabilities("categorical"), output="head")))


def test_an_evaluation_adds_what_a_calibrator_and_a_policy_say_in_the_same_pass(handle):
    with handle.predictions("val", spec=MEANING) as stream:
        val = concatenate(stream)
    calibrator = fit_calibrator(val, method="temperature").require()
    assert calibrator.parameters["temperature"] == pytest.approx(1.8204784533, rel=1e-9)
    policy = select_threshold(val, risk=0.5, score="max_probability", calibrator=calibrator).require()
    found = handle.evaluate("test", calibrator=calibrator, policy=policy, spec=MEANING)
    # The test split is the val split twice, under other names.
    assert found["calibrated/nll"] == pytest.approx(0.5623351446, rel=1e-9)
    assert found["calibrated/brier"] == pytest.approx(0.375, abs=1e-9)
    assert found["calibrated/ece"] == pytest.approx(0, abs=1e-9)
    assert (found["coverage"], found["selective_risk"]) == (1.0, 0.25)
    assert found["loss"] == handle.evaluate("test")["loss"]


def test_an_artefact_of_other_weights_ends_the_pass_at_its_first_batch(handle):
    with handle.predictions("val", spec=MEANING) as stream:
        calibrator = fit_calibrator(concatenate(stream), method="temperature").require()
    with pytest.raises(ConfigError, match="fitting and reporting on one split"):
        handle.evaluate("val", calibrator=calibrator, spec=MEANING)

    class Other(Logits):
        passes: int = 0

        def build_model(self, rng):
            return lambda p, s, x: (x * p["w"], s), {"w": np.full(1, 2, np.float32)}, {}

        def metrics(self, outputs):
            raise AssertionError("the pass went on")

        monitor = None

    other = Nitro(Other())
    with pytest.raises(MismatchError):
        other.evaluate("test", calibrator=calibrator, spec=MEANING)


class Judged(Experiment):
    """Two labels with a task: a threshold of its own, a mask, names of the samples."""

    logger = None
    checkpointer = None
    task: Task = Multilabel(threshold=0.9, mask="seen", id="name", labels=("a", "b"))

    def build_data(self, dist):
        x = np.array([[3.0, 0.0], [1.0, -1.0], [4.0, 4.0]], np.float32)
        labels = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
        return {"test": ArrayBatches({"x": x, "labels": labels, "seen": np.array([True, True, False]),
                                      "name": np.array(["p", "q", "r"])}, 2)}  # fmt: skip

    def build_model(self, rng):
        return lambda p, s, x: (x * p["w"], s), {"w": np.ones(1, np.float32)}, {}

    def forward(self, model, params, state, *, x):
        return model(params, state, x)


def test_a_task_says_what_the_outputs_mean():
    handle = Nitro(Judged())
    with handle.predictions("test") as stream:
        whole = concatenate(stream)
    assert (whole.kind, whole.labels, whole.ids.tolist()) == ("bernoulli", ("a", "b"), ["p", "q", "r"])
    # sigmoid(3) = .953, sigmoid(1) = .731, sigmoid(4) = .982: the task's own threshold is 0.9
    assert whole.decoded.tolist() == [[1, 0], [0, 0], [1, 1]]
    assert np.isnan(whole.target[2]).all()
    assert whole.entries.row.tolist() == [0, 1]
    assert handle.predictions({"x": np.zeros((1, 2), np.float32), "name": ["z"], "seen": [True]}).target is None
    # another declaration stands over the task, but for the fields
    other = handle.predictions({"x": np.ones((1, 2), np.float32), "name": ["z"], "seen": [True]},
                               spec=Probabilities("categorical"))  # fmt: skip
    assert (other.kind, other.decoded.tolist()) == ("categorical", [0])
