"""What `dry_run` says, and that it leaves nothing but compiled programs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import (
    EMA,
    ArrayBatches,
    Best,
    Checkpointer,
    Last,
    NitroError,
    NitroWarning,
    NoPrefetch,
    Selector,
    Sum,
    cache_reset,
    cache_stats,
    dry_run,
    train,
)
from nitro_cli.errors import ConfigError, MetricError
from nitro_cli.tracking import TensorBoardLogger
from tests.tiny import CLASSES, FEATURES, Light, linear


@pytest.fixture
def _nothing_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NITRO_CACHE_DIR", "off")
    cache_reset()


class Streamed(Light):
    """The same, its batches from the host."""

    def build_data(self, dist: Any) -> dict[str, Any]:
        return {name: NoPrefetch(source) for name, source in super().build_data(dist).items()}


class Looping(Light):
    """Computes its metrics and its loss on the device."""

    eval_loss = True

    def metrics_residency(self, hook: str) -> str:
        return "device"

    def metrics(self, outputs: Any, *, y: Any) -> Any:
        from nitro_cli import Mean

        return {"acc": Mean((outputs.argmax(-1) == y).sum(), y.size)}


def files(root: Path) -> dict[str, bytes]:
    """Everything below a directory."""
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(root.rglob("*"))}


def test_it_counts_parameters_steps_and_bytes(tmp_path: Path) -> None:
    found = dry_run(Light(ema=EMA(0.9), max_epochs=7), run_dir=tmp_path)
    count = FEATURES * CLASSES + CLASSES
    assert (found.parameters, found.parameter_bytes) == (count, 4 * count)
    # Beside the parameters their average, step and position as int32, and a flag.
    assert found.state_bytes == 2 * 4 * count + 4 + 4 + 1
    assert (found.step, found.total_steps, found.steps_per_epoch) == (0, 14, 2)


class Square(Light):
    """One product with a square matrix, and the mean square of what comes out."""

    side: int = 128
    rows: int = 64

    def build_data(self, dist: Any) -> dict[str, Any]:
        x = np.ones((2 * self.rows, self.side), np.float32)
        return {"train": ArrayBatches({"x": x, "y": x}, self.rows)}

    def build_model(self, rng: Any) -> Any:
        return linear, {"kernel": jnp.ones((self.side, self.side)), "bias": jnp.zeros(self.side)}, {}

    def loss(self, outputs: Any, *, y: Any) -> Any:
        return jnp.mean((outputs - y) ** 2)


def test_the_flops_of_a_step_are_those_of_its_products() -> None:
    found = dry_run(Square(side=128, rows=64, checkpointer=None))
    # The product itself and the gradient of the matrix; the data has no gradient.
    products = 2 * (2 * 64 * 128 * 128)
    assert found.flops_per_step is not None
    assert products < found.flops_per_step < 1.1 * products
    assert [use.name for use in found.programs] == ["init", "train"]


@pytest.mark.usefixtures("_nothing_cached")
@pytest.mark.parametrize("kind", [Light, Streamed, Looping])
def test_training_compiles_nothing_after_it(tmp_path: Path, kind: type[Light]) -> None:
    found = dry_run(kind(run_dir=tmp_path))
    needed = {"init": 2, "train": 1, "eval": 1} | ({"metrics": 1, "eval loss": 1} if kind is Looping else {})
    assert {use.name: use.compiled for use in found.programs} == needed
    before = cache_stats()
    train(kind(run_dir=tmp_path))
    short = {"metrics": 1, "eval loss": 1} if kind is Looping else {}  # for the last batch, which is shorter
    after = {name: stats.misses - before.by_name[name].misses for name, stats in cache_stats().by_name.items()}
    assert after == dict.fromkeys(needed, 0) | short


@pytest.mark.usefixtures("_nothing_cached")
def test_a_second_one_takes_every_program_from_this_process() -> None:
    dry_run(Light())
    again = dry_run(Light(learning_rate=0.5, seed=3))
    assert {(use.name, use.compiled, use.from_memory) for use in again.programs} == {
        ("init", 0, 2), ("train", 0, 1), ("eval", 0, 1),
    }  # fmt: skip


def test_it_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dry_run(Light())
    assert files(tmp_path) == {}
    nitro = train(Light())
    before = files(tmp_path)
    found = dry_run(Light(max_epochs=4), resume=f"{nitro.run_id}:latest")
    assert (found.step, found.total_steps) == (nitro.step, 8)
    assert files(tmp_path) == before


def test_the_disk_holds_what_is_kept_and_two_more(tmp_path: Path) -> None:
    run_dir = tmp_path / "not" / "there"
    keep = Checkpointer(keep=(Best(3), Last(2)))
    found = dry_run(Light(checkpointer=keep, max_epochs=100), run_dir=run_dir).disk
    assert found is not None
    assert (found.checkpoints, found.bytes) == (7, 7 * found.bytes_per_checkpoint)
    # Two arrays of parameters; plain descent has no state.
    assert found.bytes_per_checkpoint >= 4 * (FEATURES * CLASSES + CLASSES)
    assert (found.place, found.free > 0) == (run_dir, True)
    assert dry_run(Light(checkpointer=None)).disk is None


def test_a_damaged_checkpoint_is_passed_over_and_stays_where_it_is(tmp_path: Path) -> None:
    nitro = train(Light(max_epochs=2, checkpointer=Checkpointer(keep=(Last(2),))), run_dir=tmp_path)
    assert nitro.run_path is not None
    newest = max((nitro.run_path / "checkpoints").iterdir())
    data = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    data.write_bytes(bytes(data.stat().st_size))
    before = files(tmp_path)
    with pytest.warns(NitroWarning, match="cannot be used"):
        found = dry_run(Light(max_epochs=4), run_dir=tmp_path, resume="latest:latest")
    assert found.step == 2
    assert files(tmp_path) == before


class Odd(Selector):
    """Keeps what it likes."""

    def admits(self, entries: Any, entry: Any) -> bool:
        return True

    def select(self, entries: Any, mode: Any) -> Any:
        return entries


@pytest.mark.parametrize(("keep", "count"), [(("every(3)", "last(1)"), 3 + 1 + 2), ((Odd(),), 9 + 2)])
def test_what_is_kept_without_a_bound_is_bounded_by_the_epochs(keep: Any, count: int) -> None:
    found = dry_run(Light(checkpointer=Checkpointer(keep=keep), max_epochs=9)).disk
    assert found is not None
    assert found.checkpoints == count


def test_the_peak_holds_the_data_on_the_device() -> None:
    small, large = dry_run(Light(samples=16)), dry_run(Light(samples=16_000))
    assert small.peak_bytes is not None
    assert large.peak_bytes is not None
    held = (16_000 - 16) * (FEATURES * 4 + 4)
    assert held <= large.peak_bytes - small.peak_bytes < 2 * held


def test_a_disk_too_small_is_refused_as_at_the_start_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=100))
    with pytest.raises(NitroError, match="too little disk space"):
        dry_run(Light())


def test_a_configuration_that_cannot_train_is_refused_as_by_train(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="nothing to train on"):
        dry_run(Light(), data={"val": Light().build_data(None)["val"]})
    with pytest.raises(ConfigError, match="accum"):
        dry_run(Light(accum=0))
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    with pytest.raises(NitroError, match="tensorboard"):
        dry_run(Light(logger=TensorBoardLogger()))


def test_an_error_in_a_hook_passes_unchanged() -> None:
    class Wrong(Light):
        """Its loss does not know the labels' shape."""

        def loss(self, outputs: Any, *, y: Any) -> Any:
            return outputs @ np.ones((CLASSES + 1, 2), np.float32)

    with pytest.raises(TypeError, match="shape"):
        dry_run(Wrong())


class Partial(Light):
    """`finalize_metrics` that makes nothing of a single batch."""

    def metrics(self, outputs: Any, *, y: Any) -> dict[str, Any]:
        return {**super().metrics(outputs, y=y), "batches": Sum(1)}

    def finalize_metrics(self, metrics: Any, split: str) -> Any:
        if metrics["batches"] < 2:
            raise ZeroDivisionError("one batch is no split")
        return {"acc": metrics["acc"]}


def test_validation_is_tried_on_one_batch(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match=r"'accuracy'"):
        dry_run(Light(), monitor=("accuracy", "max"), run_dir=tmp_path)
    with pytest.raises(MetricError, match=r"'loss'"):
        dry_run(Light(), checkpointer=Checkpointer(metric="loss", mode="min"), run_dir=tmp_path)


def test_a_metric_that_needs_the_whole_split_may_wait_for_it(tmp_path: Path) -> None:
    assert dry_run(Partial(), run_dir=tmp_path).parameters
