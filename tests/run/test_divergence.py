"""A step whose loss or gradient is not finite: the run stops, says where, and no poisoned state exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nitro_cli import ArrayBatches, Device, Nitro, NoPrefetch, checkpoint_info, read_manifest
from nitro_cli.errors import DivergenceError, ExitCode
from tests.tiny import CLASSES, Bare, points, stop_after

BATCHES, SICK = 6, 4
"""Batches of the epoch, and the index of the one that goes wrong."""


class Fragile(Bare):
    """A linear layer and a loss that a marked batch breaks in the way asked for."""

    max_epochs = 2
    log_every_n_steps = 1

    def optimizer(self, group: str) -> Any:
        return optax.sgd

    def loss(self, outputs: jax.Array, *, y: jax.Array, weight: jax.Array) -> Any:
        entropy = optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()
        penalty = jnp.log(weight).mean()
        return entropy + 0.01 * penalty, {"entropy": entropy, "penalty": penalty}


def rows(spoil: Any, resident: bool) -> Any:
    arrays = {**points(8 * BATCHES, 1), "weight": np.ones(8 * BATCHES, np.float32)}
    spoil(arrays)
    source = ArrayBatches(arrays, 8, resident=resident)
    return source if resident else NoPrefetch(source)


def spoil_input(arrays: Any) -> None:
    arrays["x"][8 * SICK + 3, 2] = np.nan


def spoil_term(arrays: Any) -> None:
    arrays["weight"][8 * SICK] = -1.0


def trained_up_to(folder: Path, steps: int, cls: type[Fragile] = Fragile, **fields: Any) -> Nitro:
    """The same run stopped by request after `steps` steps, as a reference."""
    nitro = Nitro(
        cls(checkpointer=None, logger=None, **fields), data={"train": rows(lambda a: None, True)}, run_dir=folder
    )

    stop_after(nitro, steps)
    nitro.train()
    assert nitro.step == steps
    return nitro


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Nitro:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NITRO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
        return trained_up_to(tmp_path_factory.mktemp("good"), SICK)


def diverged(folder: Path, spoil: Any, resident: bool = True, cls: Any = Fragile, **fields: Any) -> tuple[Nitro, Any]:
    nitro = Nitro(cls(**fields), data={"train": rows(spoil, resident)}, run_dir=folder)
    with pytest.raises(DivergenceError) as raised:
        nitro.train()
    return nitro, raised.value


@pytest.mark.parametrize("resident", [True, False])
def test_the_weights_in_hand_are_the_last_good_ones_bit_for_bit(
    resident: bool, good: Nitro, tmp_path: Path, bits: Any
) -> None:
    nitro, error = diverged(tmp_path, spoil_input, resident, checkpoint_every_n_steps=3)
    assert error.exit_code == ExitCode.DIVERGED
    assert f"step {SICK + 1}, epoch 1, batch {SICK}" in str(error)
    if resident:
        assert bits(nitro.params) == bits(good.params)
    else:
        for name, leaf in nitro.params.items():
            np.testing.assert_allclose(leaf, good.params[name], atol=1e-6)
    assert nitro.step == SICK
    assert int(nitro.train_state.step) == SICK
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(nitro.train_state.opt))
    assert nitro.phase.name == "Failed"


def test_no_checkpoint_of_a_poisoned_state_exists_and_the_run_is_an_error(tmp_path: Path, log_lines: Any) -> None:
    nitro, _ = diverged(tmp_path, spoil_input, checkpoint_every_n_steps=2)
    manifest = read_manifest(tmp_path)
    assert [run.status for run in manifest.runs.values()] == ["error"]
    assert [entry.step for entry in manifest.entries] == [4]
    assert checkpoint_info(tmp_path / manifest.entries[0].path).meta.step == 4
    assert [line["step"] for line in log_lines(nitro, "train")] == [1, 2, 3, 4]
    assert all(np.isfinite(line["loss"]) for line in log_lines(nitro, "train"))


PLACES = {
    "a value of the input": (Fragile, spoil_input, ["the batch field x (1 of 48 values)"]),
    "a term of the loss": (Fragile, spoil_term, ["operation log", "test_divergence.py", "loss term penalty"]),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("resident", [True, False])
def test_the_error_says_where_the_first_bad_value_is(place: str, resident: bool, tmp_path: Path) -> None:
    cls, spoil, words = PLACES[place]
    _, error = diverged(tmp_path, spoil, resident, cls)
    for word in words:
        assert word in str(error)


def test_a_gradient_that_is_not_finite_stops_although_the_loss_is(tmp_path: Path) -> None:
    class Rooted(Fragile):
        """The slope of a root at zero is infinite, the root itself is zero."""

        def loss(self, outputs: jax.Array, *, y: jax.Array, weight: jax.Array) -> Any:
            entropy = optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()
            return entropy + jnp.sqrt(jnp.sum(outputs[:, 0] * (1 - weight)) ** 2 + jnp.sum((1 - weight) ** 2) * 0 + 0.0)

    nitro, error = diverged(tmp_path, lambda arrays: None, cls=Rooted)
    assert "a gradient is not finite" in str(error)
    assert "the gradient of" in str(error)
    assert "step 1," in str(error)
    assert nitro.step == 0


def test_a_run_that_diverges_in_its_first_step_leaves_nothing_behind(tmp_path: Path) -> None:
    diverged(tmp_path, lambda arrays: arrays["x"].fill(np.nan))
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_with_accumulation_the_micro_batches_are_named(tmp_path: Path) -> None:
    _, error = diverged(tmp_path, spoil_input, accum=2)
    assert "step 3, epoch 1, batch 4 to 5" in str(error)
    assert "(micro-batch 1 of 2)" in str(error)


def test_an_infinite_mask_is_not_blamed(tmp_path: Path) -> None:
    class Masked(Fragile):
        def loss(self, outputs: jax.Array, *, y: jax.Array, weight: jax.Array) -> Any:
            masked = outputs + jnp.log(jnp.where(jnp.arange(CLASSES) < 2, 1.0, 0.0))
            entropy = optax.softmax_cross_entropy_with_integer_labels(masked, jnp.minimum(y, 1)).mean()
            return entropy + jnp.sqrt(weight).mean()

    _, error = diverged(tmp_path, spoil_term, cls=Masked)
    assert "operation sqrt" in str(error)


def test_without_the_check_training_goes_on(tmp_path: Path) -> None:
    fields = {"check_divergence": False, "max_epochs": 1, "checkpointer": None}
    nitro = Nitro(Fragile(**fields), data={"train": rows(spoil_term, True)}, run_dir=tmp_path).train()
    assert nitro.step == BATCHES
    assert np.isnan(nitro.history[1]["train_loss"])


def test_a_handle_that_diverged_trains_on_once_the_cause_is_gone(tmp_path: Path) -> None:
    class Scaled(Fragile):
        scale: Device[float] = 1.0
        checkpointer = None

        def loss(self, outputs: jax.Array, *, y: jax.Array) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean() + jnp.log(self.scale)

    nitro = Nitro(Scaled(scale=-1.0, max_epochs=1), data={"train": rows(lambda arrays: None, True)}, run_dir=tmp_path)
    with pytest.raises(DivergenceError, match="step 1,"):
        nitro.train()
    before = np.asarray(nitro.params["kernel"])
    nitro.set_device(scale=1.0).train()
    assert (nitro.stop_reason, nitro.step, int(nitro.train_state.step)) == ("completed", BATCHES, BATCHES)
    assert not np.array_equal(nitro.params["kernel"], before)
