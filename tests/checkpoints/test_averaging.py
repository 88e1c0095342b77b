from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nitro_cli.checkpoints import (
    AverageRef,
    RecordMeta,
    RunStore,
    average,
    average_checkpoints,
    averaging,
    read_manifest,
    read_record,
    resolve_source,
    write_record,
)
from nitro_cli.errors import CheckpointNotFoundError, ConfigError, IncompatibleError
from nitro_cli.experiment import Average, Best, Checkpointer, Every, Last


def train(root: Path, epochs: list[dict[str, Any]], scores: list[float] | None = None) -> str:
    rule = Checkpointer(keep=(Every(1),))
    with RunStore.create(root, experiment="Toy", checkpointer=rule, metric="loss", mode="min") as run:
        for i, arrays in enumerate(epochs, start=1):
            score = scores[i - 1] if scores else None
            run.save(
                RecordMeta(epoch=i, metrics={"loss": 1.0 / i}), arrays, epoch=i, step=i * 10, score=score, name=f"e{i}"
            )
    return run.id


def mean(root: Path, text: str = "latest:average(last(99))", **keywords: Any) -> Any:
    ref = resolve_source(text, root)
    assert isinstance(ref, AverageRef)
    return average(ref, **keywords)


def test_the_mean_is_exact_where_float32_sums_would_not_be(tmp_path: Path) -> None:
    values = [np.float32(2**25), np.float32(1), np.float32(1), np.float32(1), np.float32(1)]
    train(tmp_path, [{"params/w": np.full(3, value)} for value in values])
    found = mean(tmp_path).arrays["params/w"]
    exact = sum(Fraction(float(value)) for value in values) / len(values)
    assert found.dtype == np.float32
    assert found.tolist() == [np.float32(float(exact))] * 3
    assert found[0] != np.sum(np.array(values), dtype=np.float32) / np.float32(5)


class Overtaken(Last):
    """The last n, of which the run deletes the oldest as soon as they are picked: `times` times."""

    def select(self, entries: Any, mode: Any) -> Any:
        picked = super().select(entries, mode)
        overtaking = OVERTAKING.pop() if OVERTAKING else None
        if overtaking is not None:
            overtaking()
        return picked


OVERTAKING: list[Any] = []


def overtaken(root: Path, times: int) -> RunStore:
    """A run at work that keeps its last two checkpoints, w = 1 and 2 at first, and writes one whenever it is asked."""
    rule = Checkpointer(keep=(Last(2),))
    store = RunStore.create(root, experiment="Toy", checkpointer=rule)
    epochs = iter(range(1, 99))

    def write() -> None:
        epoch = next(epochs)
        arrays = {"params/w": np.float64(epoch).reshape(1)}
        store.save(RecordMeta(epoch=epoch), arrays, epoch=epoch, step=epoch, score=None, name=f"e{epoch}")
        store.wait()

    write()
    write()
    OVERTAKING[:] = [write] * times
    return store


def test_a_run_that_deletes_what_was_picked_is_averaged_as_it_is_by_then(tmp_path: Path) -> None:
    with overtaken(tmp_path, 3) as store:
        record = average_checkpoints(tmp_path, store.id, Average(Overtaken(2)), save=tmp_path / "mean")
    assert record.meta.averaged_from.epochs == [4, 5]
    assert read_record(tmp_path / "mean").arrays["params/w"] == [4.5]


def test_a_run_that_deletes_faster_than_its_checkpoints_are_read_is_said(tmp_path: Path) -> None:
    with overtaken(tmp_path, 50) as store, pytest.raises(CheckpointNotFoundError, match="is being trained") as caught:
        average_checkpoints(tmp_path, store.id, Average(Overtaken(2)))
    assert "keep" in str(caught.value.fix)


def test_a_picked_checkpoint_that_is_gone_of_a_run_that_ended_is_an_error_at_once(tmp_path: Path) -> None:
    with overtaken(tmp_path, 0) as store:
        run = store.id
    doomed = tmp_path / run / "checkpoints" / "e1"
    OVERTAKING[:] = [lambda: doomed.rename(tmp_path / "gone")]
    with pytest.raises(CheckpointNotFoundError):
        average_checkpoints(tmp_path, run, Average(Overtaken(2)))


def test_every_leaf_keeps_its_dtype(tmp_path: Path) -> None:
    dtypes: dict[str, Any] = {
        "f16": np.float16,
        "bf16": ml_dtypes.bfloat16,
        "f8": ml_dtypes.float8_e4m3fn,
        "f64": np.float64,
        "c64": np.complex64,
    }
    train(tmp_path, [{f"params/{k}": np.array([i, 2 * i], dtype=d) for k, d in dtypes.items()} for i in (1, 3)])
    record = mean(tmp_path)
    for name, dtype in dtypes.items():
        leaf = record.arrays[f"params/{name}"]
        assert leaf.dtype == np.dtype(dtype)
        assert leaf.astype(np.complex128).tolist() == [2, 4]


def test_layer_state_and_extras_come_from_one_checkpoint_and_nothing_of_the_optimizer(tmp_path: Path) -> None:
    epochs = [
        {"params/w": np.full(2, float(i)), "state/n": np.array(i), "opt/m": np.ones(2), "extra/x": np.array(10 * i)}
        for i in (1, 2, 3)
    ]
    train(tmp_path, epochs, scores=[0.3, 0.1, 0.2])
    latest = mean(tmp_path, "latest:average(last(2))")
    assert {k: np.asarray(v).tolist() for k, v in latest.arrays.items()} == {
        "params/w": [2.5, 2.5],
        "state/n": 3,
        "extra/x": 30,
    }
    best = mean(tmp_path, "latest:average(best(2))")
    assert (best.arrays["params/w"].tolist(), int(best.arrays["state/n"])) == ([2.5, 2.5], 2)
    assert best.meta.epoch == 2


def test_the_emas_are_averaged_when_asked_and_take_the_place_of_the_weights(tmp_path: Path) -> None:
    train(tmp_path, [{"params/w": np.zeros(2), "ema/w": np.full(2, float(i))} for i in (1, 2)])
    record = mean(tmp_path, ema=True)
    assert {k: v.tolist() for k, v in record.arrays.items()} == {"params/w": [1.5, 1.5]}
    assert record.meta.averaged_from.weights == "ema"
    root = tmp_path / "raw"
    train(root, [{"params/w": np.zeros(2)}])
    with pytest.raises(IncompatibleError, match="no EMA"):
        mean(root, ema=True)


def test_the_mean_of_emas_has_the_weights_dtype(tmp_path: Path) -> None:
    weights = np.zeros(2, ml_dtypes.bfloat16)
    train(tmp_path, [{"params/w": weights, "ema/w": np.full(2, value, np.float32)} for value in (1.0, 1.0078125)])
    found = mean(tmp_path, ema=True).arrays["params/w"]
    assert found.dtype == ml_dtypes.bfloat16
    # 1.00390625 lies between two numbers of 8 bits, and goes to the even one
    assert found.astype(np.float64).tolist() == [1.0, 1.0]


def test_integer_leaves_must_agree(tmp_path: Path) -> None:
    train(tmp_path / "same", [{"params/n": np.array([1, 2]), "params/w": np.array([i, 0.0])} for i in (1, 2)])
    assert mean(tmp_path / "same").arrays["params/n"].tolist() == [1, 2]
    train(tmp_path / "differ", [{"params/n": np.array([1, i])} for i in (1, 2)])
    with pytest.raises(IncompatibleError, match="params/n"):
        mean(tmp_path / "differ")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"params/w": np.zeros(3)}, "params/w: float64[2] and float64[3]"),
        ({"params/w": np.zeros(2, np.float32)}, "params/w: float64[2] and float32[2]"),
        ({"params/v": np.zeros(2)}, "params/v: absent and float64[2]"),
    ],
)
def test_trees_that_differ_are_refused_naming_leaves_and_both_sides(
    tmp_path: Path, other: dict[str, Any], words: str
) -> None:
    train(tmp_path, [{"params/w": np.zeros(2)}, other])
    with pytest.raises(IncompatibleError, match="different trees") as caught:
        mean(tmp_path)
    assert words in str(caught.value)


def test_one_checkpoint_is_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import weakref

    train(tmp_path, [{"params/w": np.full(10, float(i))} for i in range(4)])
    alive: list[weakref.ref[Any]] = []
    real = averaging.read_record

    def watching(*arguments: Any, **keywords: Any) -> Any:
        assert sum(ref() is not None for ref in alive) <= 1
        record = real(*arguments, **keywords)
        alive.extend(weakref.ref(leaf) for leaf in record.arrays.values())
        return record

    monkeypatch.setattr(averaging, "read_record", watching)
    assert mean(tmp_path).arrays["params/w"].tolist() == [1.5] * 10
    assert len(alive) == 4


def test_an_average_is_written_as_an_ordinary_record_outside_the_manifest(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    run = train(root, [{"params/w": np.full(2, float(i))} for i in (1, 2, 3)], scores=[3, 2, 1])
    before = read_manifest(root)
    average_checkpoints(root, "latest", Average(Last(2)), save=tmp_path / "avg")
    record = read_record(tmp_path / "avg")
    assert record.arrays["params/w"].tolist() == [2.5, 2.5]
    assert record.meta.averaged_from.as_json() == {
        "spec": "average(last(2))",
        "run": run,
        "directory": root.name,
        "files": [f"{run}/checkpoints/e2", f"{run}/checkpoints/e3"],
        "epochs": [2, 3],
        "steps": [20, 30],
        "state": f"{run}/checkpoints/e3",
        "weights": "raw",
    }
    assert record.meta.metrics == {}  # of none of the checkpoints
    assert read_manifest(root) == before
    with pytest.raises(ConfigError, match="overwrite"):
        average_checkpoints(root, run, Average(Best(2)), save=tmp_path / "avg")


def test_a_selection_that_picks_nothing_says_what_the_run_keeps(tmp_path: Path) -> None:
    train(tmp_path, [{"params/w": np.zeros(2)}] * 2)
    with pytest.raises(CheckpointNotFoundError, match="picks no checkpoint") as caught:
        average_checkpoints(tmp_path, "latest", Average(Every(7)))
    assert "1, 2" in str(caught.value)


def test_an_averaged_record_cannot_be_resumed_as_a_run(tmp_path: Path) -> None:
    write_record(tmp_path / "avg", RecordMeta(epoch=1, step=1), {"params/w": 1})
    ref = resolve_source(tmp_path / "avg", tmp_path)
    assert not ref.continues(tmp_path)  # type: ignore[union-attr]
