"""What is wrong is named by one error of the right class, and no half-made run is left behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nitro_cli
from nitro_cli import ArrayBatches, EarlyStopping, GraphConst, Mean, Nitro, read_manifest
from nitro_cli.errors import (
    ConfigError,
    DataError,
    ExitCode,
    HookError,
    IncompatibleError,
    MetricError,
    NitroWarning,
    NotFoundError,
    RoutingError,
)
from tests.tiny import Bare, points


class Plain(Bare):
    """Two batches of training and one of validation under gradient descent, writing a run as usual."""

    max_epochs = 1

    def optimizer(self, group: str) -> Any:
        return optax.sgd

    def build_data(self, dist: Any) -> Any:
        return {"train": ArrayBatches(points(16, 1), 8), "val": ArrayBatches(points(8, 2), 8)}


class WithMetrics(Plain):
    monitor = ("acc", "max")

    def metrics(self, outputs: Any, *, y: Any) -> Any:
        return {"acc": Mean((outputs.argmax(-1) == y).sum(), y.size), "spread": Mean(outputs.std(), 1)}


def variant(base: type[Plain] = Plain, **members: Any) -> type[Plain]:
    return type("Case", (base,), {"__module__": __name__, **members})


def arrays(n: int = 16, **fields: Any) -> ArrayBatches:
    return ArrayBatches({**points(n, 1), **fields}, 8)


def forward_image(self: Any, model: Any, params: Any, state: Any, *, image: Any) -> Any:
    return model(params, state, image)


def loss_label(self: Any, outputs: Any, *, x_label: Any) -> Any:
    return jnp.mean(outputs)


def metrics_label(self: Any, outputs: Any, *, label: Any) -> Any:
    return {}


def raising(error: Exception) -> Callable[..., Any]:
    def hook(self: Any, *args: Any, **fields: Any) -> Any:
        raise error

    return hook


class Unhashable:
    pass


class WithObject(Plain):
    shape: GraphConst[Any] = Unhashable()


@dataclass(frozen=True)
class Case:
    """A way to go wrong: what is built, the error and its words, and whether a step was finished before."""

    error: type[BaseException]
    words: tuple[str, ...]
    cls: type[Plain] = Plain
    data: Any = None
    fields: Any = None
    call: Any = None
    code: int | None = 2
    status: str | None = None
    """Of the run that is kept because it had finished a step."""


def train(nitro: Nitro) -> Any:
    return nitro.train()


def data(**splits: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"train": arrays(), **{name: make() for name, make in splits.items()}}


CASES: dict[str, Case] = {
    "forward wants a field that batches lack": Case(
        RoutingError, ("forward", "'image'", "x"), variant(forward=forward_image)
    ),
    "loss wants a field that batches lack": Case(RoutingError, ("loss", "x_label", "y"), variant(loss=loss_label)),
    "metrics want a field that batches lack": Case(
        RoutingError, ("metrics", "label"), variant(WithMetrics, metrics=metrics_label)
    ),
    "another split lacks a field": Case(
        RoutingError, ("'test'", "'x'"), data=data(test=lambda: ArrayBatches({"y": points(8, 1)["y"]}, 8))
    ),
    "a partial training batch": Case(
        DataError, ("train", "4 samples", "drop_last"), data=data(train=lambda: arrays(12))
    ),
    "batches that accum does not divide": Case(
        DataError, ("3 batches", "accum=2"), data=data(train=lambda: arrays(24)), fields={"accum": 2}
    ),
    "a generator": Case(DataError, ("train", "only once"), data=data(train=lambda: iter([points(8, 1)]))),
    "a source without a length": Case(
        DataError, ("train", "no length", "WithLength"), data=data(train=lambda: type("S", (), {"__iter__": iter})())
    ),
    "an empty split": Case(DataError, ("val", "empty"), data=data(val=list)),
    "text for a traced hook": Case(
        DataError, ("field `y`", "device"), data=data(train=lambda: arrays(y=np.array(["a"] * 16)))
    ),
    "one whole batch as a split": Case(DataError, ("val", "mapping"), data=data(val=lambda: points(8, 1))),
    "build_data returns a list": Case(HookError, ("build_data", "list"), variant(build_data=lambda s, d: []), code=1),
    "derive returns no field": Case(
        HookError, ("derive", "sample", "samples"), variant(derive=lambda self, data: {"sample": 1}), code=1
    ),
    "a GraphConst value without content": Case(ConfigError, ("shape", "Unhashable"), WithObject),
    "early stopping without a monitor": Case(
        ConfigError, ("early stopping", "monitor"), WithMetrics, fields={"monitor": None, "early_stop": EarlyStopping()}
    ),
    "early stopping without validation": Case(
        ConfigError, ("early stopping", "val"), data=data(), fields={"early_stop": EarlyStopping()}
    ),
    "an accum of zero": Case(ConfigError, ("accum", "0"), fields={"accum": 0}),
    "more devices than there are": Case(ConfigError, ("n_devs", "4096"), fields={"n_devs": 4096}),
    "a batch that devices cannot share": Case(
        ConfigError,
        ("n_devs", "visible"),
        data=data(train=lambda: ArrayBatches(points(14, 1), 7)),
        fields={"n_devs": 2},
    ),
    "forward returns the outputs alone": Case(
        HookError, ("forward", "pair"), variant(forward=lambda self, model, params, state, *, x: x), call=train, code=1
    ),
    "forward drops the layer state": Case(
        HookError,
        ("layer state", "structure"),
        variant(forward=lambda self, model, params, state, *, x: (model(params, state, x)[0], {"a": x})),
        call=train,
        code=1,
    ),
    "a loss per sample": Case(
        HookError, ("loss", "(8,)", "mean"), variant(loss=lambda self, outputs, *, y: outputs[:, 0]), call=train, code=1
    ),
    "a train metric per sample": Case(
        HookError,
        ("train_metrics", "'a'", "(8,)"),
        variant(train_metrics=lambda self, outputs, *, y: {"a": outputs[:, 0]}),
        call=train,
        code=1,
    ),
    "no train split": Case(ConfigError, ("train", "test"), data=lambda: {"test": arrays()}, call=train),
    "an unknown split": Case(
        NotFoundError,
        ("'tset'", "train, val", "did you mean"),
        data=data(val=arrays, test=arrays),
        call=lambda nitro: nitro.evaluate("tset"),
        code=3,
    ),
    "a bare number as a metric": Case(
        MetricError,
        ("acc", "Mean("),
        variant(WithMetrics, metrics=lambda self, outputs, *, y: {"acc": 0.5}),
        call=lambda nitro: nitro.validate(),
        code=1,
    ),
    "a monitored metric that is not reported": Case(
        MetricError,
        ("'accuracy'", "acc", "spread"),
        WithMetrics,
        fields={"monitor": ("accuracy", "max")},
        call=train,
        status="error",
        code=1,
    ),
    "finalize_metrics returns nothing": Case(
        HookError,
        ("finalize_metrics", "NoneType"),
        variant(WithMetrics, finalize_metrics=lambda self, acc, split: None),
        call=train,
        status="error",
        code=1,
    ),
    "build_data raises": Case(
        ZeroDivisionError, ("mine",), variant(build_data=raising(ZeroDivisionError("mine"))), code=None
    ),
    "build_model raises": Case(KeyError, ("mine",), variant(build_model=raising(KeyError("mine"))), code=None),
    "a traced hook raises": Case(
        ZeroDivisionError,
        ("mine",),
        variant(loss=lambda self, outputs, *, y: raising(ZeroDivisionError("mine"))(self)),
        call=train,
        code=None,
    ),
    "a metrics hook raises": Case(
        ZeroDivisionError,
        ("mine",),
        variant(WithMetrics, metrics=lambda self, outputs, *, y: raising(ZeroDivisionError("mine"))(self)),
        call=train,
        status="error",
        code=None,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_by_name_and_leaves_nothing_half_made(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    with pytest.raises(case.error) as raised:  # noqa: PT012 - setup or the call may be what raises
        nitro = Nitro(
            case.cls(**(case.fields or {})), data=None if case.data is None else case.data(), run_dir=tmp_path / "runs"
        )
        assert case.call is not None, "setup should have refused this"
        case.call(nitro)
    assert type(raised.value) is case.error
    if case.code is None:
        assert not hasattr(raised.value, "exit_code")
    else:
        assert raised.value.exit_code == ExitCode(case.code)
    for word in case.words:
        assert word in str(raised.value)
    if case.status is not None:
        assert [run.status for run in read_manifest(tmp_path / "runs").runs.values()] == [case.status]
        return
    left = [path.name for path in (tmp_path / "runs").rglob("*")] if (tmp_path / "runs").exists() else []
    assert not [name for name in left if not name.endswith((".lock", ".json"))]
    assert not (tmp_path / "runs" / "manifest.json").exists() or not read_manifest(tmp_path / "runs").runs


@pytest.mark.parametrize("take", [Nitro, nitro_cli.train, nitro_cli.dry_run, nitro_cli.profile])
def test_what_is_no_experiment_is_refused_by_all_that_take_one(take: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"takes an experiment, not the class Plain\n(.*\n)*.*Nitro\(Plain\(\)\)"):
        take(Plain)
    for other, told in ((None, "not None"), ("My", "not 'My'"), (int, "not the class int")):
        with pytest.raises(ConfigError, match=told):
            take(other)


def test_words_that_are_no_mapping_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="data is a list") as raised:
        Nitro(Plain(), data=[1], run_dir=tmp_path)  # type: ignore[arg-type]
    assert "build_data" not in str(raised.value)
    with pytest.raises(ConfigError, match="schedules is a list"):
        Nitro(Plain(), schedules=[1], run_dir=tmp_path)  # type: ignore[arg-type]


def test_without_any_data_a_bare_array_and_ragged_lists_are_refused(tmp_path: Path) -> None:
    nitro = Nitro(Plain(), data={}, run_dir=tmp_path)
    with pytest.raises(RoutingError, match=r"predict\(dict\(x=\.\.\.\)\)"):
        nitro.predict(np.zeros((3, 3)))
    with pytest.raises(DataError, match="a list is no array"):
        nitro.predict({"x": [[1.0, 2.0], [3.0]]})
    assert nitro.predict({"x": np.zeros((3, 6), np.float32)}).shape == (3, 3)


@pytest.mark.parametrize(
    ("cls", "names", "told"),
    [
        (WithMetrics, ("train", "validation"), "'acc'.*train, validation; is `validation` meant"),
        (Plain, ("train", "test", "Valid"), "'loss'.*is `Valid` meant"),
        (WithMetrics, ("train",), "'acc'.*no `val` split, only train$"),
        (Plain, ("train", "test"), None),
        (WithMetrics, ("train", "val", "validation"), None),
        (WithMetrics, ("test",), None),
    ],
)
def test_a_monitor_that_nothing_scores_is_told_once(
    cls: type[Plain], names: tuple[str, ...], told: str | None, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    Nitro(cls(), data={name: arrays() for name in names}, run_dir=tmp_path)
    said = [str(w.message) for w in recwarn if issubclass(w.category, NitroWarning) and "scores" in str(w.message)]
    assert len(said) == (told is not None)
    assert told is None or re.search(told, said[0])


@pytest.mark.parametrize(
    ("data", "words", "told"),
    [
        pytest.param({"train": lambda: arrays(12)}, {}, "4 samples", id="short last batch"),
        pytest.param({"train": lambda: arrays(24)}, {"accum": 2}, "accum=2", id="incomplete window"),
        pytest.param({"train": lambda: arrays(x=np.zeros((16, 6), "U1"))}, {}, "dtype <U1", id="text for the device"),
        pytest.param(
            {"train": lambda: ArrayBatches({"y": np.zeros(16, np.int32)}, 8)}, {}, "x", id="no field for forward"
        ),
        pytest.param({"train": lambda: arrays(16)}, {"early_stop": EarlyStopping()}, "`val`", id="a rule without val"),
    ],
)
def test_what_the_data_tells_is_found_before_a_model_is_built(data: Any, words: Any, told: str) -> None:
    built: list[int] = []

    def build_model(self: Any, rng: Any) -> Any:
        built.append(1)
        return Plain.build_model(self, rng)

    with pytest.raises((DataError, RoutingError, ConfigError), match=told):
        Nitro(variant(build_model=build_model)(**words), data={name: make() for name, make in data.items()})
    assert not built


@pytest.mark.parametrize("given", ["build_data", "data="])
def test_a_split_is_named_by_a_string(given: str) -> None:
    odd = {"train": arrays(), 1: arrays()}
    cls = variant(build_data=lambda self, dist: odd)
    with pytest.raises(ConfigError if given == "data=" else HookError, match=f"{given}.* a split named 1, int"):
        Nitro(cls(), data=odd if given == "data=" else None)  # type: ignore[arg-type]


def test_a_run_that_breaks_in_its_first_validation_is_kept_with_its_log_and_passed_over(tmp_path: Path) -> None:
    whole = Nitro(WithMetrics(log_every_n_steps=1), run_dir=tmp_path)
    whole.train()
    failing = variant(WithMetrics, finalize_metrics=lambda self, acc, split: raising(KeyError("mine"))(self))
    broken = Nitro(failing(log_every_n_steps=1), run_dir=tmp_path)
    with pytest.raises(KeyError, match="mine"):
        broken.train()
    statuses = {name: run.status for name, run in read_manifest(tmp_path).runs.items()}
    assert broken.run_id is not None
    assert statuses == {whole.run_id: "completed", broken.run_id: "error"}
    assert '"context":"train","epoch":1,"step":2' in (tmp_path / broken.run_id / "metrics.jsonl").read_text()
    for words in ({"resume": "auto"}, {"resume": "latest:latest"}):
        resumed = Nitro(WithMetrics(max_epochs=2), run_dir=tmp_path, **words)
        assert resumed.epoch == 1
    (tmp_path / "alone").mkdir()
    alone = Nitro(failing(), run_dir=tmp_path / "alone")
    with pytest.raises(KeyError, match="mine"):
        alone.train()
    with pytest.warns(NitroWarning, match="starting fresh"):
        assert Nitro(WithMetrics(), run_dir=tmp_path / "alone", resume="auto").epoch == 0


def test_a_run_that_is_removed_for_having_finished_no_step_is_told(tmp_path: Path) -> None:
    nitro = Nitro(variant(loss=lambda self, outputs, *, y: raising(KeyError("mine"))(self))(), run_dir=tmp_path)
    with pytest.raises(KeyError, match="mine"), pytest.warns(NitroWarning, match="finished no step and is removed"):
        nitro.train()
    assert not read_manifest(tmp_path).runs


def test_a_run_that_breaks_in_a_later_validation_is_kept(tmp_path: Path) -> None:
    calls: list[int] = []

    def failing(self: Any, outputs: Any, *, y: Any) -> Any:
        calls.append(1)
        return raising(KeyError("mine"))(self) if len(calls) > 1 else {"acc": Mean(1, 1)}

    nitro = Nitro(variant(WithMetrics, metrics=failing)(max_epochs=3), run_dir=tmp_path)
    with pytest.raises(KeyError, match="mine"):
        nitro.train()
    assert [run.status for run in read_manifest(tmp_path).runs.values()] == ["error"]


def test_a_run_with_a_checkpoint_inside_its_first_epoch_is_kept(tmp_path: Path) -> None:
    broken = variant(WithMetrics, metrics=lambda self, outputs, *, y: raising(KeyError("mine"))(self))
    nitro = Nitro(broken(checkpoint_every_n_steps=1), run_dir=tmp_path)
    with pytest.raises(KeyError, match="mine"):
        nitro.train()
    assert [run.status for run in read_manifest(tmp_path).runs.values()] == ["error"]


def test_weights_together_with_resume_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="both given"):
        Nitro(Plain(), weights="somewhere", resume="auto", run_dir=tmp_path)


@pytest.mark.parametrize(("word", "close"), [("max_epoch", "max_epochs"), ("weight", "weights")])
def test_an_unknown_keyword_is_answered_with_the_nearest(word: str, close: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=close):
        Nitro(Plain(), run_dir=tmp_path, **{word: 1})


def test_weights_of_another_shape_are_refused_with_both_shapes_of_each_leaf(tmp_path: Path) -> None:
    from tests.tiny import Quick

    narrow = Nitro(Quick(samples=16, max_epochs=1), run_dir=tmp_path)
    with pytest.raises(IncompatibleError) as raised:
        Nitro(Quick(samples=16, width=3), weights=narrow, run_dir=tmp_path)
    assert raised.value.exit_code == ExitCode.INCOMPATIBLE
    text = str(raised.value)
    assert re.search(r"params/body/kernel: float32\[6, 3\] here, float32\[6, 8\]", text)
    assert re.search(r"params/head/kernel: float32\[3, 3\] here, float32\[8, 3\]", text)
    assert "params/head/bias" not in text


def test_a_logger_that_lacks_a_verb_is_refused_at_setup_or_start_and_leaves_no_run(tmp_path: Path) -> None:
    class Half:
        def log_metrics(self, metrics: Any, *, step: int, epoch: int, context: str) -> None: ...

    with pytest.raises(Exception, match="log_params") as raised:
        Nitro(Plain(logger=Half()), run_dir=tmp_path).train()
    assert raised.value.exit_code == ExitCode.USAGE
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
