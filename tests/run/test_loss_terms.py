"""A loss made of terms: however a batch is cut into micro-batches, its loss and gradient are those of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import ArrayBatches, Nitro, Term
from nitro_cli.errors import HookError
from nitro_cli.experiment import JSONLogger
from nitro_cli.programs.denominators import LossTrace
from nitro_cli.programs.jaxpr_walk import equations
from nitro_cli.run.stepping import Stepper, signature_of
from tests.run.masked import ALPHA, RATE, Masked, by_hand, rows

START = {"w": np.float32([0.3, -0.2, 0.5]), "b": np.float32(0.1)}


def gradient(nitro: Nitro) -> dict[str, np.ndarray]:
    """What one step of plain gradient descent followed."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), nitro.params)
    return {name: (START[name].astype(np.float64) - params[name]) / RATE for name in START}


def assert_whole(nitro: Nitro, wanted: dict[str, Any]) -> None:
    for name, found in gradient(nitro).items():
        np.testing.assert_allclose(found, wanted[name], rtol=1e-6, atol=2e-7, err_msg=name)
    assert nitro.history[-1]["train_loss"] == pytest.approx(wanted["loss"], rel=1e-6)
    assert nitro.history[-1]["train/near"] == pytest.approx(wanted["near"], rel=1e-6)


def mean_of_means(data: dict[str, np.ndarray], micro_batches: int) -> np.ndarray:
    size = len(data["x"]) // micro_batches
    cut = [{n: a[at : at + size] for n, a in data.items()} for at in range(0, len(data["x"]), size)]
    return np.mean([by_hand(part)["w"] for part in cut], axis=0)


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 6])
def test_the_gradient_of_masked_micro_batches_is_that_of_the_whole_batch(
    micro_batches: int, resident: bool, tmp_path: Path
) -> None:
    data = rows(24)
    e = Masked(rows=24, batch_size=24 // micro_batches, accum=micro_batches, resident=resident)
    nitro = Nitro(e, run_dir=tmp_path).train()
    wanted = by_hand(data)
    assert_whole(nitro, wanted)
    if micro_batches in (2, 3):
        off = np.abs(mean_of_means(data, micro_batches) - wanted["w"]) / np.abs(wanted["w"])
        assert off.max() > 0.01


def test_in_a_loop_inside_the_program_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("nitro_cli.programs.accumulation.UNROLL_UP_TO", 1)
    for resident in (True, False):
        e = Masked(rows=24, batch_size=4, accum=6, resident=resident)
        nitro = Nitro(e, run_dir=tmp_path / str(resident)).train()
        assert "loop inside the program" in str(nitro.report)
        assert_whole(nitro, by_hand(rows(24)))


@pytest.mark.parametrize("width", [7, 16])
def test_masked_rows_up_to_any_width_change_nothing(width: int, tmp_path: Path) -> None:
    data = rows(6)
    padded = {
        name: np.concatenate([array, np.zeros((width - 6, *array.shape[1:]), array.dtype)])
        for name, array in data.items()
    }
    nitro = Nitro(Masked(), data={"train": ArrayBatches(padded, width)}, run_dir=tmp_path).train()
    assert_whole(nitro, by_hand(data))


def stepped(nitro: Nitro, batches: list[dict[str, np.ndarray]]) -> tuple[Any, np.ndarray]:
    """The parameters and numbers after one step over micro-batches of any sizes."""
    stepper = Stepper(nitro.plan, nitro.compiler, None)
    state = stepper.entered(nitro.run_state, 1, 0)
    prepared = [stepper.prepare_batch(index, batch) for index, batch in enumerate(batches)]
    arrays = tuple(batch for _, batch in prepared)
    state, numbers, _ = stepper.take(state, stepper.ready(state, signature_of(prepared), arrays), arrays, 1)
    return jax.tree.map(np.asarray, state.train.params), np.asarray(numbers)


def test_micro_batches_of_two_and_of_one_equal_a_batch_of_three(tmp_path: Path) -> None:
    data = rows(3, seed=4)
    two, one = ({name: array[part] for name, array in data.items()} for part in (slice(2), slice(2, 3)))
    parts = {"train": [two, two]}
    params, numbers = stepped(Nitro(Masked(accum=2), data=parts, run_dir=tmp_path), [two, one])
    wanted = by_hand(data)
    for name, start in START.items():
        np.testing.assert_allclose((start - params[name]) / RATE, wanted[name], rtol=1e-6, atol=2e-7)
    assert numbers[0] == pytest.approx(wanted["loss"], rel=1e-6)


def test_the_line_has_the_loss_of_the_step_and_its_terms_and_metrics(tmp_path: Path, log_lines: Any) -> None:
    nitro = Nitro(Masked(rows=24, batch_size=8, accum=3, logger=JSONLogger()), run_dir=tmp_path).train()
    (line,) = log_lines(nitro, "train")
    wanted = by_hand(rows(24))
    for name in ("loss", "loss/entries", "loss/rows", "near"):
        assert line[name] == pytest.approx(wanted[name], rel=1e-6)


def test_the_row_of_an_epoch_has_totals_over_totals(tmp_path: Path) -> None:
    nitro = Nitro(Masked(rows=24, batch_size=6, learning_rate=1e-12), run_dir=tmp_path).train()
    wanted = by_hand(rows(24))
    assert nitro.history[-1]["train_loss"] == pytest.approx(wanted["loss"], rel=1e-6)
    assert nitro.history[-1]["train/near"] == pytest.approx(wanted["near"], rel=1e-12)
    assert nitro.history[-1]["skipped"] == 0


def test_train_metrics_on_the_host_add_up_as_those_on_the_device(tmp_path: Path, log_lines: Any) -> None:
    kind = type("OnHost", (Masked,), {"metrics_residency": lambda self, hook: "host"})
    nitro = Nitro(kind(rows=24, batch_size=4, accum=3, logger=JSONLogger()), run_dir=tmp_path).train()
    first, second = log_lines(nitro, "train")
    halves = [{name: array[part] for name, array in rows(24).items()} for part in (slice(12), slice(12, 24))]
    assert first["near"] == pytest.approx(by_hand(halves[0])["near"], rel=1e-12)
    counts = [half["mask"].sum() for half in halves]
    totals = first["near"] * counts[0] + second["near"] * counts[1]
    assert nitro.history[-1]["train/near"] == pytest.approx(totals / sum(counts), rel=1e-12)


def traced(nitro: Nitro) -> LossTrace:
    stepper = Stepper(nitro.plan, nitro.compiler, None)
    train, device = nitro.run_state.train, nitro.run_state.device_now()
    batch = {n: a for n, a in nitro.plan.splits["train"].example.items() if n in nitro.plan.hooks.routed.device_fields}
    return LossTrace.of(stepper.step_plan, train.params, train.state, batch, jax.random.key(0), device)


def test_denominators_of_the_batch_alone_take_no_forward(tmp_path: Path) -> None:
    nitro = Nitro(Masked(batch_size=3, accum=2), run_dir=tmp_path)
    found = traced(nitro)
    names = {equation.primitive.name for equation in equations(found.jaxpr.jaxpr)}
    assert "dot_general" not in names
    assert found.of_model == ()
    assert sorted(found.fields) == ["has", "mask"]
    assert "runs twice" not in str(nitro.train().report)


class Confident(Masked):
    """Only the entries count at which the outputs are large: a denominator that depends on the parameters."""

    def loss(self, outputs: Any, *, y: Any) -> Any:
        large = jnp.abs(outputs) > 0.3
        return {"large": Term(jnp.sum(jnp.where(large, (outputs - y) ** 2, 0.0)), jnp.sum(large))}

    def train_metrics(self, outputs: Any) -> Any:
        return {}


@pytest.mark.parametrize("unrolled", [8, 1])
def test_denominators_of_the_parameters_take_a_second_forward(
    unrolled: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("nitro_cli.programs.accumulation.UNROLL_UP_TO", unrolled)
    nitro = Nitro(Confident(rows=12, batch_size=4, accum=3), run_dir=tmp_path)
    assert "dot_general" in {equation.primitive.name for equation in equations(traced(nitro).jaxpr.jaxpr)}
    nitro.train()
    assert "the forward runs twice: the denominators of large depend on it" in str(nitro.report)
    data = rows(12)
    x, y = data["x"].astype(np.float64), data["y"]
    out = x @ START["w"].astype(np.float64) + 0.1
    large = np.abs(out) > 0.3
    d = np.where(large, 2 * (out - y), 0.0) / large.sum()
    np.testing.assert_allclose(gradient(nitro)["w"], np.einsum("nk,nkf->f", d, x), rtol=1e-6, atol=1e-6)
    # The layer state goes through the micro-batches once.
    assert float(nitro.state["calls"]) == 3


class Relative(Confident):
    """The error relative to the outputs."""

    def loss(self, outputs: Any, *, y: Any) -> Any:
        return {"relative": Term(jnp.sum((outputs - y) ** 2), jnp.sum(outputs**2))}


@pytest.mark.parametrize("accum", [1, 3])
def test_denominators_are_not_differentiated(accum: int, tmp_path: Path) -> None:
    nitro = Nitro(Relative(rows=12, batch_size=12 // accum, accum=accum), run_dir=tmp_path).train()
    x, y = rows(12)["x"].astype(np.float64), rows(12)["y"]
    out = x @ START["w"].astype(np.float64) + 0.1
    wanted = np.einsum("nk,nkf->f", 2 * (out - y) / (out**2).sum(), x)
    np.testing.assert_allclose(gradient(nitro)["w"], wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("accum", [1, 2])
@pytest.mark.parametrize(
    ("weight", "named"),
    [
        (lambda self, outputs, y: jnp.mean(outputs), "the parameters and the batch"),
        (lambda self, outputs, y: 1.0 / jnp.sum(y), "the batch"),
    ],
)
def test_a_weight_that_depends_on_more_than_device_fields_is_refused(
    weight: Any, named: str, accum: int, tmp_path: Path
) -> None:
    def loss(self: Any, outputs: Any, *, y: Any) -> Any:
        return {"off": Term(jnp.sum((outputs - y) ** 2), y.size, weight(self, outputs, y))}

    kind = type("Weighted", (Masked,), {"loss": loss, "train_metrics": lambda self, outputs: {}})
    with pytest.raises(HookError, match=rf"weight of term 'off' of `loss` depends on {named}"):
        Nitro(kind(batch_size=3, accum=accum), run_dir=tmp_path).train()


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        ({}, "returned no term"),
        ({"a": 1.0}, "'a' is of type float"),
        (Term(1.0, 2.0), "returned a Term"),
        ({"a": Term(3, 2.0)}, "numerator of term 'a'"),
        ({"a": Term(jnp.ones(2), 2.0)}, r"numerator of term 'a' of `loss` has shape \(2,\)"),
        ({"a": Term(1.0, jnp.ones(2))}, r"denominator of term 'a' of `loss` has shape \(2,\)"),
        ({"a": Term(1.0, 2.0, "x")}, "weight of term 'a'"),
    ],
)
def test_what_is_no_mapping_of_terms_is_named(returned: Any, named: str, tmp_path: Path) -> None:
    kind = type("Wrong", (Masked,), {"loss": lambda self, outputs: returned})
    with pytest.raises(HookError, match=named):
        Nitro(kind(), run_dir=tmp_path).train()


class Penalized(Masked):
    """A plain sum beside a mean."""

    def loss(self, outputs: Any, *, y: Any) -> Any:
        return {"fit": Term(jnp.sum((outputs - y) ** 2), y.size), "sum": Term(jnp.sum(outputs), None, 0.01)}

    def train_metrics(self, outputs: Any) -> Any:
        return {}


@pytest.mark.parametrize("accum", [1, 3])
def test_a_term_without_a_denominator_is_a_plain_sum(accum: int, tmp_path: Path) -> None:
    nitro = Nitro(Penalized(rows=6, batch_size=6 // accum, accum=accum), run_dir=tmp_path).train()
    x, y = rows(6)["x"].astype(np.float64), rows(6)["y"]
    off = x @ START["w"].astype(np.float64) + 0.1 - y
    wanted = np.einsum("nk,nkf->f", 2 * off / off.size + 0.01, x)
    np.testing.assert_allclose(gradient(nitro)["w"], wanted, rtol=1e-6, atol=1e-6)
    loss = (off**2).mean() + 0.01 * (off + y).sum()
    assert nitro.history[-1]["train_loss"] == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("size", [24, 10, 7])
def test_an_evaluation_has_the_totals_of_the_split_for_any_batch_size(size: int, tmp_path: Path) -> None:
    data = {"train": ArrayBatches(rows(6), 6), "val": ArrayBatches(rows(24, seed=1), size)}
    nitro = Nitro(Masked(), data=data, run_dir=tmp_path)
    found, wanted = nitro.validate(), by_hand(rows(24, seed=1))
    for name in ("loss", "loss/entries", "loss/rows"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-6)
    assert list(found) == ["loss", "loss/entries", "loss/rows"]


def test_a_weight_that_is_a_device_field_is_set_without_a_compile(tmp_path: Path) -> None:
    data = {"train": ArrayBatches(rows(6), 6), "val": ArrayBatches(rows(24, seed=1), 24)}
    nitro = Nitro(Masked(), data=data, run_dir=tmp_path)
    before = nitro.validate()
    programs = len(nitro.compiler.programs)
    nitro.set_device(alpha=2.0)
    after, wanted = nitro.validate(), by_hand(rows(24, seed=1))
    assert after["loss"] - before["loss"] == pytest.approx((2 - ALPHA) * wanted["loss/rows"], rel=1e-5)
    assert len(nitro.compiler.programs) == programs
