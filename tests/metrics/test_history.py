"""The history: rows, columns, selections, and the file it is read from."""

import copy
import json
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.errors import ConfigError, IntegrityError, NotFoundError, RunNotFoundError
from nitro_cli.metrics import History, decode_row, encode_row


def history(n=10, **keywords):
    rows = [
        {"epoch": e, "step": 100 * e, "train_loss": 1 / e, "acc": -((e - 7) ** 2) / 100, "loss": 2 / e}
        for e in range(1, n + 1)
    ]
    return History(rows, **{"monitor": ("acc", "max"), "title": "MnistMLP", "place": "runs/mnist", **keywords})


def test_an_integer_is_an_epoch_and_not_a_position():
    h = History([{"epoch": 5, "step": 50}, {"epoch": 6, "step": 60}])
    assert h[5] == {"epoch": 5, "step": 50}
    assert h[-1]["epoch"] == 6
    with pytest.raises(NotFoundError, match="no epoch 1") as err:
        h[1]
    assert "5 to 6" in str(err.value)


def test_a_slice_selects_epochs_both_ends_included():
    assert [row["epoch"] for row in history()[3:5]] == [3, 4, 5]
    assert [row["epoch"] for row in history()[-2:]] == [9, 10]
    assert [row["epoch"] for row in history()[::4]] == [1, 5, 9]
    with pytest.raises(ConfigError, match="both ends"):
        history()[:-1]


def test_a_range_of_steps_selects_the_epochs_that_closed_within_it():
    assert [row["epoch"] for row in history().select(step=slice(250, 500))] == [3, 4, 5]
    assert [row["epoch"] for row in history().select(epoch=slice(4, None), step=slice(None, 500))] == [4, 5]


def test_a_name_is_a_column_as_an_array():
    h = history(3)
    np.testing.assert_array_equal(h["loss"], [2, 1, 2 / 3])
    np.testing.assert_array_equal(h.train_loss, [1, 1 / 2, 1 / 3])
    assert h.epoch.dtype == np.int64


def test_names_select_metrics_and_keep_epoch_and_step():
    h = history()["acc", "loss"]
    assert isinstance(h, History)
    assert h.columns == ("epoch", "step", "acc", "loss")
    part = history()[2:3, "loss"]
    assert list(part) == [{"epoch": 2, "step": 200, "loss": 1.0}, {"epoch": 3, "step": 300, "loss": 2 / 3}]
    assert "acc" not in part
    assert 2 in part
    assert 4 not in part


def test_columns_come_in_a_fixed_order():
    h = History([{"z": 1, "acc": 2.0, "train_loss": 0.5, "step": 1, "epoch": 1}], monitor=("acc", "max"))
    h.append({"epoch": 2, "step": 2, "train_loss": 0.5, "acc": 1.0, "new": 3})
    assert h.columns == ("epoch", "step", "train_loss", "acc", "z", "new")


def test_an_unknown_column_names_the_nearest():
    with pytest.raises(ConfigError) as err:
        history()["los"]
    assert "loss" in err.value.nearest
    with pytest.raises(AttributeError, match="los"):
        getattr(history(), "los")  # noqa: B009


def test_a_metric_that_an_epoch_lacks_is_nan_in_its_column():
    h = History([{"epoch": 1, "step": 1, "n": 3}, {"epoch": 2, "step": 2}])
    assert h["n"][0] == 3
    assert math.isnan(h["n"][1])
    assert "n" not in h[2]


def test_metrics_that_are_no_scalars_are_columns_beside_the_table():
    h = History([{"epoch": e, "step": e, "cm": np.full((2, 2), e)} for e in (1, 2)])
    assert h.columns == ("epoch", "step")
    assert h.arrays == ("cm",)
    np.testing.assert_array_equal(h.cm, np.stack([np.full((2, 2), 1), np.full((2, 2), 2)]))
    h.append({"epoch": 3, "step": 3})
    assert h["cm"][2] is None
    assert h["cm"][0].shape == (2, 2)


def test_a_metric_that_is_a_scalar_in_some_epochs_only_is_not_tabulated():
    h = History([{"epoch": 1, "step": 1, "m": 0.5}, {"epoch": 2, "step": 2, "m": np.ones(2)}])
    assert h.columns == ("epoch", "step")
    assert h.arrays == ("m",)
    assert [np.shape(m) for m in h["m"]] == [(), (2,)]


def test_the_best_row_is_the_first_with_the_best_finite_value():
    rows = [{"epoch": e, "step": e, "loss": v} for e, v in enumerate([math.nan, 2.0, 1.0, 1.0, -math.inf], start=1)]
    assert History(rows, monitor=("loss", "min")).best["epoch"] == 3
    assert History(rows, monitor=("loss", "max")).best["epoch"] == 2
    assert History(rows).best is None
    assert History(rows, monitor=("acc", "max")).best is None


def test_rows_come_in_order_of_epochs():
    h = history(3)
    with pytest.raises(ConfigError, match="already reaches epoch 3"):
        h.append({"epoch": 3, "step": 400})
    with pytest.raises(ConfigError, match="epoch"):
        h.append({"epoch": 4.0, "step": 400})


def test_nested_metrics_are_named_by_their_path():
    assert History([{"epoch": 1, "step": 1, "g": {"a": 0.5}}])["g/a"].tolist() == [0.5]


def test_a_history_can_be_copied_and_pickled():
    h = history(3)
    for again in (copy.deepcopy(h), pickle.loads(pickle.dumps(h))):
        assert list(again) == list(h)


SCALARS = st.one_of(st.floats(allow_nan=False), st.integers(-(2**53), 2**53), st.just(math.nan))


@given(
    st.dictionaries(st.text(min_size=1).filter(lambda s: s not in ("epoch", "step", "nonfinite", "arrays")), SCALARS)
)
def test_a_row_survives_json_exactly(metrics):
    row = {"epoch": 3, "step": 40, **metrics}
    again = decode_row(json.loads(json.dumps(encode_row(row), allow_nan=False)))
    assert list(again) == list(row)
    assert repr(again) == repr(row)  # NaN, -0.0, and int against float


def test_a_non_finite_number_is_null_with_the_reason_beside_it():
    obj = encode_row({"epoch": 1, "step": 2, "loss": math.nan, "hi": math.inf, "lo": -math.inf, "acc": 1.0})
    assert obj["loss"] is None
    assert obj["hi"] is None
    assert obj["lo"] is None
    assert obj["nonfinite"] == {"loss": "nan", "hi": "inf", "lo": "-inf"}


@pytest.mark.parametrize(
    "array",
    [
        np.asarray([[1, 2], [3, 4]], np.int32),
        np.asarray([0.1, math.nan, -math.inf], np.float32),
        np.asarray([[True, False]]),
        np.zeros((0, 3)),
    ],
)
def test_an_array_survives_json_with_its_dtype(array):
    again = decode_row(json.loads(json.dumps(encode_row({"epoch": 1, "step": 1, "m": array}), allow_nan=False)))["m"]
    assert again.dtype == array.dtype
    np.testing.assert_array_equal(again.reshape(array.shape), array)


def test_a_file_is_read_back_with_its_torn_last_line_left_out(tmp_path):
    path = tmp_path / "history.jsonl"
    h = history(3)
    path.write_text("".join(json.dumps(row) + "\n" for row in h.json_rows()) + '{"epoch": 4, "st')
    again = History.read_jsonl(path, monitor=("acc", "max"))
    assert list(again) == list(h)
    assert again.best == h.best


def test_a_broken_line_in_the_middle_is_refused_by_its_number(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"epoch": 1, "step": 1}\n{"epoch": 2, "st\n{"epoch": 3, "step": 3}\n')
    with pytest.raises(IntegrityError, match="line 2"):
        History.read_jsonl(path)


def test_a_null_without_a_reason_is_a_metric_the_epoch_lacks(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"epoch": 1, "step": 1, "acc": 0.5}\n{"epoch": 2, "step": 2, "acc": null}\n')
    h = History.read_jsonl(path)
    assert h.columns == ("epoch", "step", "acc")
    assert "acc" not in h[2]


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(RunNotFoundError, match="no history"):
        History.read_jsonl(tmp_path / "history.jsonl")


def test_rows_as_json_build_the_same_history():
    h = history(4)
    again = History.from_json_rows(json.loads(json.dumps(h.json_rows())), monitor=h.monitor)
    assert list(again) == list(h)


def test_reading_and_printing_a_history_needs_neither_numpy_nor_jax(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in history(50).json_rows()))
    code = (
        "import sys; sys.modules['jax'] = None; from nitro_cli.metrics import History\n"
        f"h = History.read_jsonl({str(path)!r}, monitor=('acc', 'max')); print(h); h.to_csv()\n"
        "assert 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "* best acc (max)" in done.stdout
