"""Reading prediction files: what is in them, several as one, and what is refused."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli.analysis import PredictionMeta, Probabilities, TaskMeta, load_predictions, meta_array
from nitro_cli.errors import ConfigError, DataError, IncompatibleError, IntegrityError, NitroError, NotFoundError
from tests.analysis.conftest import DATA, OTHER_WEIGHTS, WEIGHTS
from tests.faults.hostile import mutations, places


def meta(**words: Any) -> PredictionMeta:
    known: dict[str, Any] = {
        "experiment": "Pets",
        "run": "0a1b2c3d",
        "checkpoint": "epoch-0001",
        "model_id": WEIGHTS,
        "split": "test",
        "data": DATA["test"],
        "task": TaskMeta(kind="categorical", output="outputs"),
        "labels": ("cat", "dog", "eel"),
    }
    return PredictionMeta(**{**known, **words})


def write(path: Path, arrays: dict[str, Any] | None = None, told: Any = None, rows: int = 6, first: int = 0) -> Path:
    rng = np.random.default_rng(first)
    held = {
        "ids": np.arange(first, first + rows),
        "outputs": rng.normal(size=(rows, 3)).astype(np.float32),
        "target": np.arange(rows) % 3,
        "age": np.arange(rows) * 10,
    }
    whole = {**held, **(arrays or {}), "meta": meta_array(told if told is not None else meta())}
    np.savez(path, **{name: value for name, value in whole.items() if value is not None})
    return path


def test_a_file_is_read_with_what_it_says_of_itself(tmp_path):
    path = write(tmp_path / "test.npz")
    found = load_predictions(path)
    assert (found.kind, found.labels, len(found)) == ("categorical", ("cat", "dog", "eel"), 6)
    with np.load(path) as held:
        np.testing.assert_array_equal(found.outputs, held["outputs"])
        np.testing.assert_array_equal(found.target, held["target"])
        assert json.loads(str(held["meta"]))["model_id"] == WEIGHTS
    origin = found.origin
    assert (origin.experiment, origin.run, origin.model_id, origin.split, origin.data) == (
        "Pets",
        "0a1b2c3d",
        WEIGHTS,
        "test",
        DATA["test"],
    )
    np.testing.assert_array_equal(found.fields["age"], np.arange(6) * 10)
    assert set(found.fields) == {"age"}


def test_the_decisions_of_a_task_are_kept(tmp_path):
    path = write(tmp_path / "a.npz", {"decoded": np.full(6, 2)})
    np.testing.assert_array_equal(load_predictions(path).decoded, np.full(6, 2))


def test_a_file_of_ones_own_is_read_where_kind_and_arrays_are_named(tmp_path):
    logits = np.array([[1.0, 0.0], [0.0, 2.0]])
    np.savez(tmp_path / "mine.npz", z=logits, label=[0, 1], name=["a", "b"])
    spec = Probabilities("categorical", labels=("no", "yes"))
    found = load_predictions(tmp_path / "mine.npz", spec=spec, output="z", target="label", ids="name")
    np.testing.assert_array_equal(found.ids, ["a", "b"])
    np.testing.assert_array_equal(found.entries.target, [0, 1])
    assert found.origin.ids == "name"
    assert found.origin.data.startswith("sha256:")
    again = load_predictions(tmp_path / "mine.npz", spec=spec, output="z", target="label")
    np.testing.assert_array_equal(again.ids, [0, 1])
    assert again.origin.data == found.origin.data
    with pytest.raises(ConfigError, match="nothing says what the outputs mean"):
        load_predictions(tmp_path / "mine.npz", output="z")
    with pytest.raises(DataError, match="no array outputs"):
        load_predictions(tmp_path / "mine.npz", spec=spec)
    with pytest.raises(DataError, match="no array labl") as caught:
        load_predictions(tmp_path / "mine.npz", spec=spec, output="z", target="labl")
    assert "label" in caught.value.nearest


def test_several_files_are_one_set(tmp_path):
    one, two = write(tmp_path / "1.npz"), write(tmp_path / "2.npz", first=6, rows=4)
    both = load_predictions(one, two)
    np.testing.assert_array_equal(both.ids, np.arange(10))
    np.testing.assert_array_equal(both.outputs[6:], load_predictions(two).outputs)
    assert both.origin.data == DATA["test"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ({"model_id": OTHER_WEIGHTS}, "two models"),
        ({"experiment": "Other"}, "two experiments"),
        ({"split": "val"}, "two splits"),
        ({"labels": ("cat", "dog", "fox")}, "two labels"),
        ({"task": TaskMeta(kind="bernoulli", output="outputs")}, "two tasks"),
    ],
)
def test_files_of_two_kinds_are_not_one_set(tmp_path, words, what):
    one = write(tmp_path / "1.npz")
    target = np.zeros((6, 3)) if "task" in words else np.zeros(6, int)
    two = write(tmp_path / "2.npz", {"target": target}, meta(**words), first=6)
    with pytest.raises(IncompatibleError, match=what):
        load_predictions(one, two)


def test_a_repeated_id_is_refused_unless_asked_for(tmp_path):
    one, two = write(tmp_path / "1.npz"), write(tmp_path / "2.npz", first=5)
    with pytest.raises(DataError, match="the id 5 is there 2 times"):
        load_predictions(one, two)
    assert len(load_predictions(one, two, repeats=True)) == 12


def test_a_missing_or_unreadable_file_is_named(tmp_path):
    write(tmp_path / "test.npz")
    with pytest.raises(NotFoundError, match=r"tset\.npz") as caught:
        load_predictions(tmp_path / "tset.npz")
    assert "test.npz" in caught.value.nearest
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(DataError, match=r"no \.npz"):
        load_predictions(tmp_path / "text.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(DataError, match="without a name"):
        load_predictions(tmp_path / "one.npy")
    with pytest.raises(ConfigError, match="no prediction file"):
        load_predictions()


@pytest.mark.parametrize(
    "arrays",
    [
        {"target": np.arange(5)},
        {"ids": np.arange(12).reshape(6, 2)},
        {"ids": np.linspace(0, 1, 6)},
        {"decoded": np.zeros((6, 2), int)},
        {"outputs": np.zeros((6, 4), np.float32)},
        {"outputs": np.full((6, 3), np.nan, np.float32)},
        {"outputs": np.array(["a"] * 18).reshape(6, 3)},
        {"outputs": np.zeros((), np.float32)},
        {"outputs": None},
        {"target": np.array([{}] * 6, dtype=object)},
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused_by_file(tmp_path, arrays):
    path = write(tmp_path / "bad.npz", arrays)
    with pytest.raises(DataError) as caught:
        load_predictions(path)
    assert str(path) in str(caught.value.where)


def test_a_meta_of_a_wrong_form_is_damaged_whatever_key_it_is(tmp_path):
    whole = meta().model_dump(mode="json")
    told = set()
    kept = 0
    for place, name, value in mutations(whole, list(places(whole))):
        path = tmp_path / "test.npz"
        text = json.dumps(value)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write(path)
            held = dict(np.load(path))
            np.savez(path, **{**held, "meta": np.array(text)})
        try:
            load_predictions(path)
            kept += 1
        except (IntegrityError, DataError, ConfigError) as error:
            told.add(str(error.where).partition(":")[0])
        except NitroError as error:
            raise AssertionError((place, name)) from error
    assert told == {str(path)}
    assert kept


@pytest.mark.parametrize(
    "value",
    [np.array(["{}"]), np.array(b"{}"), np.array(3), np.array("{"), np.array("[" * 100_000), np.array('{"format": 2}')],
)
def test_a_meta_that_is_no_document_is_damaged(tmp_path, value):
    path = write(tmp_path / "test.npz")
    np.savez(path, **{**dict(np.load(path)), "meta": value})
    with pytest.raises(IntegrityError, match="meta of the predictions is damaged") as caught:
        load_predictions(path)
    assert str(path) in str(caught.value.where)


def test_any_changed_byte_is_no_more_than_an_error_of_the_file(tmp_path):
    path = write(tmp_path / "test.npz")
    whole, chance = path.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(250):
        at = chance.randrange(len(whole))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ chance.randrange(1, 256)]) + whole[at + 1 :])
        try:
            load_predictions(path)
        except (DataError, IntegrityError, ConfigError) as error:
            refused += str(path) in str(error.where)
    assert refused > 100
