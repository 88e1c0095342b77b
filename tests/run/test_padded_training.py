"""Hooks that are told which rows of a batch are padding: short last batches, steps without all their micro-batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import ArrayBatches, Concat, Nitro, NoPrefetch, Prefetch, Term
from nitro_cli.errors import DataError, RoutingError
from nitro_cli.run import dispatch
from tests.run.masked import Masked, Momentum, Told, by_hand, off_by, rows
from tests.tiny import stop_after

WAYS = {"resident": lambda source: source, "streamed": lambda source: Prefetch(source, workers=2), "inline": NoPrefetch}


def fed(n: int, size: int, way: str = "resident") -> dict[str, Any]:
    return {"train": WAYS[way](ArrayBatches(rows(n), size))}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("n", "size", "accum"), [(5, 8, 1), (10, 4, 3), (8, 4, 3), (9, 4, 4)])
def test_a_short_batch_and_an_incomplete_step_have_the_gradient_of_their_rows(
    n: int, size: int, accum: int, way: str, tmp_path: Path
) -> None:
    nitro = Nitro(Told(accum=accum, batch_size=size), data=fed(n, size, way), run_dir=tmp_path).train()
    assert nitro.step == 1
    assert off_by(nitro, rows(n)) < 1e-6
    assert nitro.history[-1]["train/near"] == pytest.approx(by_hand(rows(n))["near"], rel=1e-12)


def test_in_a_loop_inside_the_program_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("nitro_cli.programs.accumulation.UNROLL_UP_TO", 1)
    for way in ("resident", "streamed"):
        nitro = Nitro(Told(accum=4, batch_size=3), data=fed(8, 3, way), run_dir=tmp_path / way).train()
        assert off_by(nitro, rows(8)) < 1e-6


class Mean(Told):
    """A scalar loss, the mean over valid rows: not finite where there is none."""

    def loss(self, outputs: Any, *, y: Any, valid: Any) -> Any:
        return jnp.sum(jnp.where(valid[:, None], (outputs - y) ** 2, 0.0)) / (4 * jnp.sum(valid))


def test_a_scalar_loss_is_the_mean_over_the_micro_batches_that_there_are(tmp_path: Path) -> None:
    nitro = Nitro(Mean(accum=3, batch_size=4), data=fed(8, 4), run_dir=tmp_path).train()
    x, y = rows(8)["x"].astype(np.float64), rows(8)["y"]
    off = x @ np.float64(np.float32([0.3, -0.2, 0.5])) + 0.1 - y
    assert nitro.history[-1]["train_loss"] == pytest.approx((off**2).mean(), rel=1e-6)
    gradient = (np.float32([0.3, -0.2, 0.5]) - np.asarray(nitro.params["w"])) / 0.5
    np.testing.assert_allclose(gradient, np.einsum("nk,nkf->f", 2 * off / off.size, x), rtol=1e-5)


def test_what_a_micro_batch_that_is_not_there_would_add_is_left_out(tmp_path: Path) -> None:
    class Sized(Told):
        def loss(self, outputs: Any, *, y: Any, valid: Any) -> Any:
            return {"all": Term(jnp.sum((outputs - y) ** 2), y.size), "sum": Term(jnp.sum(outputs))}

    nitro = Nitro(Sized(accum=3, batch_size=4), data=fed(8, 4), run_dir=tmp_path).train()
    x, y = rows(8)["x"].astype(np.float64), rows(8)["y"]
    out = x @ np.float64(np.float32([0.3, -0.2, 0.5])) + 0.1
    assert nitro.history[-1]["train_loss"] == pytest.approx(((out - y) ** 2).mean() + out.sum(), rel=1e-6)


@pytest.mark.parametrize(("way", "seconds"), [("resident", 0.0), ("resident", 1e9), ("streamed", 1e9)])
def test_such_steps_count_in_the_horizon_and_a_resume_around_them_is_bitwise(
    way: str, seconds: float, tmp_path: Path, bits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "SECONDS", seconds)
    e = Told(accum=2, batch_size=4, max_epochs=2, learning_rate=0.05)
    whole = Nitro(e, data=fed(18, 4, way), run_dir=tmp_path / "whole")
    assert whole.plan.optim.total_steps == 6
    whole.train()
    assert whole.step == 6
    for at in (2, 3):
        first = Nitro(e, data=fed(18, 4, way), run_dir=tmp_path / str(at))
        stop_after(first, at)
        first.train()
        second = Nitro(e, data=fed(18, 4, way), run_dir=tmp_path / str(at), resume="auto").train()
        assert bits(second.params) == bits(whole.params)
        assert list(second.history) == list(whole.history)


def test_one_evaluation_program_serves_the_short_batch_too(tmp_path: Path) -> None:
    class Judged(Told):
        def metrics(self, outputs: Any, *, y: Any, valid: Any) -> Any:
            return {"kept": Concat(jnp.where(valid, outputs[:, 0] - y[:, 0], jnp.nan))}

        def finalize_metrics(self, acc: Any, split: str) -> Any:
            return {"rows": len(acc["kept"]), "off": float(np.abs(acc["kept"]).sum())}

        def metrics_residency(self, hook: str) -> Any:
            return "device"

    data = {"val": ArrayBatches(rows(10, seed=1), 4)}
    nitro = Nitro(Judged(eval_loss=True), data=data, run_dir=tmp_path)
    found = nitro.validate()
    wanted = by_hand(rows(10, seed=1))
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-6)
    x, y = rows(10, seed=1)["x"], rows(10, seed=1)["y"]
    assert found["rows"] == 10
    assert found["off"] == pytest.approx(np.abs((x @ np.float32([0.3, -0.2, 0.5]) + 0.1 - y)[:, 0]).sum(), rel=1e-5)
    assert len(nitro.evaluator._programs) == 3  # forward, metrics, loss


def test_the_train_split_is_evaluated_without_its_padding(tmp_path: Path) -> None:
    nitro = Nitro(Told(accum=3, batch_size=4), data=fed(10, 4), run_dir=tmp_path)
    assert nitro.evaluate("train")["loss"] == pytest.approx(by_hand(rows(10))["loss"], rel=1e-6)


def test_a_forward_that_is_told_predicts(tmp_path: Path) -> None:
    class Zeroed(Told):
        def forward(self, model: Any, params: Any, state: Any, *, x: Any, valid: Any) -> Any:
            outputs, state = model(params, state, x)
            return outputs - jnp.mean(outputs, where=valid[:, None]), state

    nitro = Nitro(Zeroed(batch_size=4), data=fed(10, 4), run_dir=tmp_path)
    x = rows(3)["x"]
    out = x @ np.float32([0.3, -0.2, 0.5]) + 0.1
    np.testing.assert_allclose(nitro.predict({"x": x}), out - out.mean(), rtol=1e-5, atol=1e-6)


def test_layer_state_which_padding_would_enter_is_refused(tmp_path: Path) -> None:
    class Stateful(Told):
        def build_model(self, rng: Any) -> Any:
            return Momentum.build_model(self, rng)

    with pytest.raises(DataError, match="a batch of 2 of 4 samples, and the model has layer state"):
        Nitro(Stateful(batch_size=4), data=fed(10, 4), run_dir=tmp_path)
    with pytest.raises(DataError, match="a step of fewer micro-batches"):
        Nitro(Stateful(batch_size=4, accum=2), data=fed(12, 4), run_dir=tmp_path)
    assert Nitro(Stateful(batch_size=4, accum=3), data=fed(12, 4), run_dir=tmp_path).train().step == 1


def test_a_batch_field_of_that_name_is_refused(tmp_path: Path) -> None:
    data = {**rows(8), "valid": np.ones(8, bool)}
    with pytest.raises(RoutingError, match="the batch has a field 'valid'"):
        Nitro(Told(), data={"train": ArrayBatches(data, 4)}, run_dir=tmp_path)


def test_hooks_that_are_not_told_see_no_padding(tmp_path: Path) -> None:
    class Half(Told):
        def train_metrics(self, outputs: Any, *, y: Any, mask: Any) -> Any:
            return Masked.train_metrics(self, outputs, y=y, mask=mask)

    with pytest.raises(DataError, match="the last of 3 batches has 2 samples"):
        Nitro(Half(batch_size=4), data=fed(10, 4), run_dir=tmp_path)
    with pytest.raises(DataError, match="do not divide into steps"):
        Nitro(Half(batch_size=4, accum=2), data=fed(12, 4), run_dir=tmp_path)


class Listed:
    """Iterates only, and says how many rows it has."""

    def __init__(self, n: int, size: int, told: bool = True) -> None:
        self.batches = [{k: v[at : at + size] for k, v in rows(n).items()} for at in range(0, n, size)]
        if told:
            self.samples = n

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        return iter(self.batches)


def test_a_source_that_only_iterates_may_end_short_where_it_says_its_rows(tmp_path: Path) -> None:
    nitro = Nitro(Told(batch_size=4, accum=4), data={"train": Listed(10, 4)}, run_dir=tmp_path / "told").train()
    assert off_by(nitro, rows(10)) < 1e-6
    with pytest.raises(DataError, match="batch 2 has 2 samples"):
        Nitro(Told(batch_size=4, accum=4), data={"train": Listed(10, 4, told=False)}, run_dir=tmp_path / "a").train()
