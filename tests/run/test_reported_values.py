"""What a validation reports: losses over rows, outputs that are a batch, nested names, arrays, `Concat`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from typer.testing import CliRunner

from nitro_cli import (
    ArrayBatches,
    Best,
    Checkpointer,
    Concat,
    EarlyStopping,
    Experiment,
    Last,
    Max,
    Mean,
    Nitro,
    NoPrefetch,
    Sum,
    read_manifest,
)
from nitro_cli.cli.app import app
from nitro_cli.errors import HookError, MetricError
from nitro_cli.optim import Plateau
from nitro_cli.tracking import JSONLogger


def rows(values: Any) -> dict[str, np.ndarray]:
    """Samples of one feature."""
    return {"x": np.asarray(values, np.float32)[:, None]}


class Mild(Experiment):
    """One weight that stays 1; a sample's loss is its feature."""

    max_epochs = 1
    checkpointer = None
    logger = None
    learning_rate = 1e-30

    def build_data(self, dist: Any) -> Any:
        return {"train": ArrayBatches(rows(np.ones(4)), 4), "val": ArrayBatches(rows(np.ones(4)), 4)}

    def build_model(self, rng: Any) -> Any:
        return (lambda p, s, x: (x * p["w"], s)), {"w": jnp.ones((1,))}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return model(params, state, x)

    def loss(self, outputs: Any) -> Any:
        return jnp.mean(outputs), {"twice": {"mean": 2 * jnp.mean(outputs)}}

    def optimizer(self, group: str) -> Any:
        return optax.sgd


NINE = [0.0] * 8 + [9.0]
"""The only row with a loss is alone in the last batch of eight: the mean of batch means is 4.5, of rows 1."""


@pytest.mark.parametrize("source", ["resident", "streamed", "inline", "list"])
def test_the_loss_of_a_split_and_its_terms_are_means_over_rows_however_it_is_fed(source: str) -> None:
    resident = ArrayBatches(rows(NINE), 8)
    val: Any = {
        "resident": resident,
        "streamed": ArrayBatches(rows(NINE), 8, resident=False),
        "inline": NoPrefetch(resident),
        "list": [rows(NINE[:8]), rows(NINE[8:])],
    }[source]
    nitro = Nitro(Mild(), data={"train": ArrayBatches(rows(np.ones(4)), 4), "val": val}).train()
    assert nitro.metrics == {"loss": 1.0, "loss/twice/mean": 2.0}
    assert nitro.history[1]["loss"] == 1.0
    assert nitro.validate() == nitro.metrics


def test_the_loss_of_a_split_does_not_depend_on_the_batch_size() -> None:
    values = np.random.default_rng(0).random(9)
    for size in (1, 2, 4, 9):
        found = Nitro(Mild(), data={"val": ArrayBatches(rows(values), size)}).validate()
        assert found["loss"] == pytest.approx(values.astype(np.float32).mean(dtype=np.float64), rel=1e-7), size


def test_eval_loss_beside_metrics_counts_rows_and_is_what_early_stopping_follows() -> None:
    class Both(Mild):
        def metrics(self, outputs: Any) -> Any:
            return {"top": Max(outputs.max())}

    e = Both(eval_loss=True, early_stop=EarlyStopping(patience=1), max_epochs=3)
    nitro = Nitro(e, data={"train": ArrayBatches(rows(np.ones(4)), 4), "val": ArrayBatches(rows(NINE), 8)}).train()
    assert nitro.metrics == {"top": 9.0, "loss": 1.0, "loss/twice/mean": 2.0}
    assert nitro.stop_reason == "early_stop"


def test_the_epochs_train_loss_is_the_mean_over_its_rows() -> None:
    values = np.arange(8.0)
    nitro = Nitro(Mild(accum=2), data={"train": ArrayBatches(rows(values), 2)}).train()
    assert nitro.history[1]["train_loss"] == 3.5


class Tabled(Mild):
    """Beside the batch it returns a table of the parameters: 6 rows that sum to 15."""

    def build_model(self, rng: Any) -> Any:
        return (lambda p, s, x: x), {"w": jnp.ones((1,)), "table": jnp.arange(6.0)}, {}

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        return {"d": x[:, 0], "table": params["table"]}, state

    def loss(self, outputs: Any) -> Any:
        return jnp.sum(outputs["table"])


def variant(base: type[Experiment], **members: Any) -> type[Experiment]:
    """A subclass with some members replaced."""
    return type(f"Other{base.__name__}", (base,), members)


JUDGED_ON_HOST = {"metrics": lambda self, outputs: {"n": Sum(1)}}
JUDGED_ON_DEVICE = {**JUDGED_ON_HOST, "metrics_residency": lambda self, hook: "device"}


@pytest.mark.parametrize("batch", [4, 6])
@pytest.mark.parametrize("hooks", [{}, JUDGED_ON_HOST, JUDGED_ON_DEVICE], ids=["loss", "host", "device"])
def test_an_output_that_is_no_batch_is_refused_at_setup(hooks: dict[str, Any], batch: int) -> None:
    data = {"train": ArrayBatches(rows(np.ones(12)), batch), "val": ArrayBatches(rows(np.ones(10)), batch)}
    with pytest.raises(HookError, match=r"the output table of shape \(6,\)"):
        Nitro(variant(Tabled, monitor=("n", "max") if hooks else None, **hooks)(), data=data)


def test_a_scalar_output_is_refused_at_setup() -> None:
    scalar = variant(
        Mild, forward=lambda self, m, p, s, *, x: (jnp.mean(x * p["w"]), s), loss=lambda self, outputs: outputs
    )
    with pytest.raises(HookError, match=r"an output of shape \(\) for a batch"):
        Nitro(scalar(), data={"train": ArrayBatches(rows(np.ones(4)), 4), "val": ArrayBatches(rows(np.ones(10)), 4)})


def test_an_output_that_is_no_array_is_refused_at_setup() -> None:
    text = variant(Mild, forward=lambda self, m, p, s, *, x: ({"a": x, "b": "text"}, s))
    with pytest.raises(HookError, match="the output b that is of type str"):
        Nitro(text())


@pytest.mark.parametrize("size", [4, 6])
def test_where_setup_has_nothing_to_evaluate_the_first_pass_refuses_before_it_computes(size: int) -> None:
    with pytest.raises(HookError, match=r"the output table of shape \(6,\)"):
        Nitro(Tabled(), data={}).predict(rows(np.ones(size)))
    trained = Nitro(Tabled(), data={"train": ArrayBatches(rows(np.ones(12)), size)}).train()
    for evaluate in (lambda: trained.evaluate("train"), lambda: trained.predict(rows(np.ones(size)))):
        with pytest.raises(HookError, match=r"the output table of shape \(6,\)"):
            evaluate()


def test_a_model_for_one_batch_size_alone_is_checked_at_that_size() -> None:
    fixed = variant(Mild, forward=lambda self, m, p, s, *, x: (x.reshape(4, 1) * p["w"], s))
    assert Nitro(fixed()).validate()["loss"] == 1.0


class Nested(Mild):
    """Reports under nested names, and an array."""

    checkpointer = Checkpointer(keep=(Best(1), Last(1)))
    logger = JSONLogger()
    monitor = ("cls/acc", "max")
    early_stop = EarlyStopping(patience=2)
    max_epochs = 3

    def metrics(self, outputs: Any) -> Any:
        return {"cls": {"acc": Mean(1.0, 4)}, "all": Mean({"a": 1.0, "b": {"c": 3.0}}, 2), "hits": Sum(np.eye(2))}

    def schedules(self) -> Any:
        return {"learning_rate": Plateau(1e-30, metric="all/b/c", mode="max", patience=0)}

    def train_metrics(self, outputs: Any) -> Any:
        return {"size": {"mean": jnp.mean(outputs)}}


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Nitro:
    """A run whose metrics are nested and never improve."""
    return Nitro(Nested(), run_dir=tmp_path_factory.mktemp("nested")).train()


def test_nested_metrics_are_reported_stopped_on_and_ranked_by_their_joined_names(nested: Nitro) -> None:
    found = nested.evaluate("val")
    np.testing.assert_array_equal(found.pop("hits"), np.eye(2))
    assert found == {"cls/acc": 0.25, "all/a": 0.5, "all/b/c": 1.5}
    assert nested.history[1]["all/b/c"] == 1.5
    assert nested.stop_reason == "early_stop"
    assert nested.best is not None
    assert (nested.best["metric"], nested.best["score"]) == ("cls/acc", 0.25)
    rate = "schedule/plateau/learning_rate"
    assert nested.run_state.rules.plateau_scales() == {rate: pytest.approx(0.01)}
    assert nested.plan.optim.hyper.plateau_scales() == {rate: 1.0}, "a plan changes no more once it is made"
    held = read_manifest(nested.run_dir).of_run(nested.run_id)
    assert [entry.score for entry in held] == [0.25, 0.25]
    assert all("cls_acc" in entry.path for entry in held)
    assert Nitro(Nested(), run_dir=nested.run_dir, weights=("latest", "best"), data={}).checkpoint_source is not None


def test_nested_metrics_and_arrays_are_on_the_lines_of_the_log(nested: Nitro) -> None:
    assert nested.run_path is not None
    lines = [json.loads(line) for line in (nested.run_path / "metrics.jsonl").read_text().splitlines()]
    validated = next(line for line in lines if line.get("context") == "validate")
    assert (validated["cls/acc"], validated["all/b/c"], validated["hits"]) == (0.25, 1.5, [[1, 0], [0, 1]])
    trained = next(line for line in lines if line.get("context") == "train")
    assert (trained["size/mean"], trained["loss/twice/mean"]) == (1.0, 2.0)


@pytest.mark.parametrize("words", [["history"], ["plot", "--metric", "cls/acc"], ["plot"], ["runs"]])
def test_commands_read_nested_metrics_from_disk(nested: Nitro, words: list[str]) -> None:
    result = CliRunner().invoke(app, [*words, str(nested.run_path if words[0] != "runs" else nested.run_dir)])
    assert result.exit_code == 0, result.output
    if words[0] != "plot":
        assert "cls/acc" in result.output


class Listing(Mild):
    """Concatenates something per sample."""

    monitor = ("n", "max")

    def metrics(self, outputs: Any) -> Any:
        return {"scores": Concat(outputs[:, 0]), "n": Sum(len(outputs))}

    def finalize_metrics(self, acc: Any, split: str) -> Any:
        return {"n": acc["n"], "top": acc["scores"].max()}


@pytest.mark.parametrize("where", ["host", "device"])
def test_a_concat_of_fewer_rows_than_the_batch_is_refused_by_name(where: str) -> None:
    fewer = {
        "metrics": lambda self, outputs: {"scores": Concat(outputs[:2, 0]), "n": Sum(1)},
        "metrics_residency": lambda self, hook: where,
    }
    with pytest.raises(MetricError, match=r"'scores' has 2 entries on its first axis for a batch of 4 samples"):
        Nitro(variant(Listing, **fewer)()).validate()
    whole = variant(Listing, metrics_residency=fewer["metrics_residency"])()
    short = {"val": ArrayBatches(rows(np.arange(10.0)), 4)}
    assert Nitro(whole, data=short).validate() == {"n": 10, "top": 9.0}


@pytest.mark.parametrize(
    "reported",
    [lambda scores: scores, lambda scores: scores.copy(), lambda scores: scores.tolist(), lambda scores: scores[None]],
    ids=["itself", "a copy", "a list", "a view"],
)
def test_a_concat_reported_unreduced_is_refused_by_name(reported: Any) -> None:
    whole = variant(Listing, finalize_metrics=lambda self, acc, split: {"n": 1, "out": reported(acc["scores"])})
    with pytest.raises(MetricError, match=r"'out' is the unreduced Concat 'scores'"):
        Nitro(whole(), data={"val": ArrayBatches(rows(np.arange(6.0)), 4)}).validate()


def test_arrays_of_a_report_reach_a_logger_of_ones_own(tmp_path: Path) -> None:
    lines: list[Any] = []

    class Collected:
        def log_params(self, params: Any) -> None: ...
        def log_other(self, key: str, value: Any) -> None: ...
        def finish(self, status: str) -> None: ...
        def log_metrics(self, metrics: Any, *, step: int, epoch: int, context: str) -> None:
            lines.extend([metrics] if context == "validate" else [])

    recalls = {"finalize_metrics": lambda self, acc, split: {"n": acc["n"], "recall": np.array([0.5, 1.0])}}
    Nitro(variant(Listing, **recalls)(logger=Collected()), run_dir=tmp_path).train()
    np.testing.assert_array_equal(lines[0]["recall"], [0.5, 1.0])
