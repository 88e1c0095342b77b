"""Losses and metrics of a split against plain numpy: means over samples, the short last batch without its padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import ArrayBatches, Concat, Experiment, Max, Mean, Min, Nitro, Sum
from nitro_cli.errors import HookError, MetricError
from nitro_cli.tracking import JSONLogger
from tests.tiny import Bare, points

SIZES = (8, 8, 4)
"""Samples in the batches of the validation split: the last is short."""


class Judged(Bare):
    """A linear layer judged by everything at once."""

    max_epochs = 1
    checkpointer = None
    monitor = ("acc", "max")

    def optimizer(self, group: str) -> Any:
        return optax.sgd

    def build_data(self, dist: Any) -> Any:
        return {"train": ArrayBatches(points(32, 1), 8), "val": ArrayBatches(points(sum(SIZES), 2), 8)}

    def loss(self, outputs: jax.Array, *, y: jax.Array) -> Any:
        entropy = optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()
        size = jnp.abs(outputs).mean()
        return entropy + 0.1 * size, {"entropy": entropy, "size": size}


class Reported(Judged):
    """Metrics that both numpy and JAX can compute."""

    def metrics(self, outputs: Any, *, y: Any) -> Any:
        xp = np if isinstance(outputs, np.ndarray) else jnp
        return {
            "acc": Mean((outputs.argmax(-1) == y).sum(), y.shape[0]),
            "samples": Sum(xp.ones_like(y).sum()),
            "highest": Max(outputs.max()),
            "lowest": Min(outputs.min()),
            "class0": Concat(outputs[:, 0]),
        }

    def finalize_metrics(self, acc: Any, split: str) -> Any:
        return {**acc, "class0": np.sort(acc["class0"])[:3], "rows": len(acc["class0"])}


class ReportedOnDevice(Reported):
    def metrics_residency(self, hook: str) -> str:
        return "device"


class Trained(Judged):
    def train_metrics(self, outputs: Any, *, y: Any) -> Any:
        return {"batch_acc": (outputs.argmax(-1) == y).mean(), "first": outputs[0, 0]}


class TrainedOnHost(Trained):
    def metrics_residency(self, hook: str) -> str:
        return "host"


def by_hand(nitro: Nitro) -> dict[str, Any]:
    """Validation in float64 numpy with the handle's weights."""
    data = points(sum(SIZES), 2)
    kernel, bias = (np.asarray(nitro.params[name], np.float64) for name in ("kernel", "bias"))
    logits = data["x"] @ kernel + bias
    log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    entropy, size = -log_softmax[np.arange(len(logits)), data["y"]].mean(), np.abs(logits).mean()
    return {
        "losses": {"loss": entropy + 0.1 * size, "loss/entropy": entropy, "loss/size": size},
        "acc": (logits.argmax(-1) == data["y"]).mean(),
        "highest": logits.max(),
        "lowest": logits.min(),
        "class0": np.sort(logits[:, 0])[:3],
    }


@pytest.mark.parametrize("resident", [True, False])
def test_without_metrics_the_validation_loss_and_its_terms_are_means_over_samples(
    resident: bool, tmp_path: Path
) -> None:
    val = ArrayBatches(points(sum(SIZES), 2), 8, resident=resident)
    nitro = Nitro(Judged(monitor=None), data={"train": ArrayBatches(points(32, 1), 8), "val": val}, run_dir=tmp_path)
    assert tuple(nitro.monitor) == ("loss", "min")
    nitro.train()
    assert nitro.metrics == pytest.approx(by_hand(nitro)["losses"], rel=1e-5)
    assert nitro.validate() == nitro.metrics
    assert nitro.history[1]["loss"] == nitro.metrics["loss"]


@pytest.mark.parametrize("cls", [Reported, ReportedOnDevice])
def test_metrics_see_no_padding_and_eval_loss_adds_the_losses(cls: type[Reported], tmp_path: Path) -> None:
    nitro = Nitro(cls(eval_loss=True), run_dir=tmp_path).train()
    found, wanted = nitro.validate(), by_hand(nitro)
    assert {name: found[name] for name in wanted["losses"]} == pytest.approx(wanted["losses"], rel=1e-5)
    assert found["samples"] == sum(SIZES)
    assert found["acc"] == pytest.approx(wanted["acc"], rel=1e-12)
    for name in ("highest", "lowest", "class0"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)
    assert found["rows"] == sum(SIZES)


def test_device_metrics_equal_host_metrics(tmp_path: Path) -> None:
    host = Nitro(Reported(), run_dir=tmp_path).validate()
    device = Nitro(ReportedOnDevice(), run_dir=tmp_path).validate()
    assert host.keys() == device.keys()
    for name, value in host.items():
        np.testing.assert_allclose(device[name], value, rtol=1e-6, err_msg=name)


def test_a_name_that_metrics_and_the_loss_both_report_is_refused(tmp_path: Path) -> None:
    class Clashing(Reported):
        def finalize_metrics(self, acc: Any, split: str) -> Any:
            return {"loss": 1.0, "acc": acc["acc"]}

    assert Nitro(Clashing(), run_dir=tmp_path).validate()["loss"] == 1.0
    with pytest.raises(MetricError, match=r"loss is reported both"):
        Nitro(Clashing(eval_loss=True), run_dir=tmp_path).validate()


def test_finalize_metrics_is_told_the_split_and_its_values_are_reported(tmp_path: Path) -> None:
    class Final(Reported):
        def finalize_metrics(self, acc: Any, split: str) -> Any:
            return {"error": 1 - acc["acc"], "split": {"val": 1, "train": 2}[split]}

    nitro = Nitro(Final(monitor=("error", "min")), run_dir=tmp_path)
    found = nitro.validate()
    assert found["error"] == pytest.approx(1 - by_hand(nitro)["acc"])
    assert found["split"] == 1
    assert nitro.evaluate("train")["split"] == 2


@pytest.mark.parametrize("accum", [1, 2])
def test_train_metrics_on_the_host_equal_those_on_the_device(accum: int, tmp_path: Path, log_lines: Any) -> None:
    device = Nitro(Trained(accum=accum, monitor=None), run_dir=tmp_path / "device").train()
    host = Nitro(TrainedOnHost(accum=accum, monitor=None), run_dir=tmp_path / "host").train()
    ours, theirs = log_lines(device, "train"), log_lines(host, "train")
    assert [line["step"] for line in ours] == list(range(1, 4 // accum + 1))
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        assert {"loss", "loss/entropy", "loss/size", "batch_acc", "first"} <= one.keys()
        for name in ("loss", "loss/entropy", "loss/size", "batch_acc", "first"):
            assert one[name] == pytest.approx(other[name], rel=1e-5), name


def test_the_train_line_has_means_over_the_micro_batches_of_the_window(tmp_path: Path, log_lines: Any) -> None:
    nitro = Nitro(Trained(accum=2, monitor=None), run_dir=tmp_path)
    kernel, bias = np.asarray(nitro.params["kernel"]), np.asarray(nitro.params["bias"])
    data = points(32, 1)
    logits = data["x"][:16] @ kernel + bias
    sizes = [np.abs(logits[:8]).mean(), np.abs(logits[8:]).mean()]
    first = log_lines(nitro.train(), "train")[0]
    assert first["loss/size"] == pytest.approx(np.mean(sizes), rel=1e-5)
    assert first["loss"] == pytest.approx(first["loss/entropy"] + 0.1 * first["loss/size"], rel=1e-5)
    assert first["first"] == pytest.approx((logits[0, 0] + logits[8, 0]) / 2, rel=1e-5)
    assert first["batch_acc"] == pytest.approx((logits.argmax(-1) == data["y"][:16]).mean())


class Averaged(Experiment):
    """A train metric that is the batch's mean, over batches of one value each."""

    max_epochs = 1
    checkpointer = None

    def build_data(self, dist: Any) -> Any:
        return {"train": ArrayBatches({"x": np.ones((4, 1), np.float32)}, 2)}

    def build_model(self, rng: Any) -> Any:
        return (lambda p, s, x: (x * p["w"], s)), {"w": jnp.ones((1,))}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x)

    def loss(self, outputs: Any) -> Any:
        return jnp.mean(outputs)

    def train_metrics(self, outputs: Any, *, x: Any) -> Any:
        return {"batch": {"mean": x.mean()}}


@pytest.mark.parametrize("accum", [4, 12])
@pytest.mark.parametrize("where", ["device", "host"])
@pytest.mark.parametrize("resident", [True, False])
def test_an_accumulated_train_metric_is_the_mean_over_the_window(
    accum: int, where: str, resident: bool, tmp_path: Path, log_lines: Any
) -> None:
    kind = type("Placed", (Averaged,), {"metrics_residency": lambda self, hook: where})
    x = np.repeat(np.arange(accum, dtype=np.float32), 2)[:, None]
    nitro = Nitro(kind(accum=accum), data={"train": ArrayBatches({"x": x}, 2, resident=resident)}, run_dir=tmp_path)
    (line,) = log_lines(nitro.train(), "train")
    # Micro-batches 0, 1, 2, 3: 1.5, as the loss is.
    assert line["batch/mean"] == line["loss"] == (accum - 1) / 2


@pytest.mark.parametrize("logger", [JSONLogger(), None])
def test_train_metrics_on_the_host_run_for_every_micro_batch_of_every_step(logger: Any, tmp_path: Path) -> None:
    seen: list[float] = []

    class Counting(Averaged):
        def metrics_residency(self, hook: str) -> str:
            return "host"

        def train_metrics(self, outputs: Any, *, x: Any) -> Any:
            seen.append(float(x[0, 0]))
            return {}

    x = np.arange(8, dtype=np.float32)[:, None]
    e = Counting(accum=2, log_every_n_steps=4, logger=logger)
    Nitro(e, data={"train": ArrayBatches({"x": x}, 1)}, run_dir=tmp_path).train()
    assert seen == list(range(8))


@pytest.mark.parametrize(
    ("returned", "error", "words"),
    [
        (None, HookError, "`train_metrics` returned NoneType"),
        ({"a": None}, MetricError, "entry 'a' is missing"),
        ({"a": 1j}, MetricError, "entry 'a' is complex 1j, not a real number"),
        ({"a": np.ones(3)}, MetricError, "entry 'a' is an array of shape"),
        ({"a": 10**400}, MetricError, "beyond every floating-point number"),
        ({"loss": 1.0}, HookError, "the name of a number that the train line has already"),
        ({"step": 1.0}, HookError, "the name of a number that the train line has already"),
    ],
)
def test_a_train_metric_on_the_host_that_is_no_number_is_refused_by_name(
    returned: Any, error: Any, words: str, tmp_path: Path
) -> None:
    hooks = {"metrics_residency": lambda self, hook: "host", "train_metrics": lambda self, outputs: returned}
    e = type("Wrong", (Averaged,), hooks)(logger=None)
    with pytest.raises(error, match=words):
        Nitro(e, run_dir=tmp_path).train()


def test_fewer_log_lines_are_every_nth_step(tmp_path: Path, log_lines: Any) -> None:
    nitro = Nitro(Judged(log_every_n_steps=2, monitor=None), run_dir=tmp_path).train()
    assert [line["step"] for line in log_lines(nitro, "train")] == [2, 4]
    assert [line["step"] for line in log_lines(nitro, "validate")] == [4]
    assert 0 <= log_lines(nitro, "data")[0]["data/wait_frac"] <= 1
