"""The lines of the default logger."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.errors import MetricError, NitroWarning
from nitro_cli.experiment import JSONLogger
from nitro_cli.tracking import JsonLogger, open_logger
from nitro_cli.tracking.metric_line import MetricLines


@pytest.fixture
def logger(tmp_path):
    return JsonLogger(tmp_path / "metrics.jsonl")


def lines(logger):
    return [json.loads(line) for line in logger.path.read_text(encoding="utf-8").splitlines()]


def test_each_verb_writes_a_line_that_says_what_it_is(logger):
    logger.log_params({"seed": 42, "width": 128})
    logger.log_tags(["baseline"])
    logger.log_metrics({"loss": 0.31}, step=4, epoch=1, context="train")
    logger.log_other("report", {"a": 1})
    logger.log_confusion(np.asarray([[3, 1], [0, 2]]), ["cat", "dog"], epoch=1)
    logger.finish("completed")
    assert lines(logger) == [
        {"type": "params", "seed": 42, "width": 128},
        {"type": "tags", "tags": ["baseline"]},
        {"type": "metrics", "context": "train", "epoch": 1, "step": 4, "loss": 0.31},
        {"type": "other", "key": "report", "value": {"a": 1}},
        {"type": "confusion", "epoch": 1, "labels": ["cat", "dog"], "matrix": [[3, 1], [0, 2]]},
        {"type": "finish", "status": "completed"},
    ]


def test_non_finite_scalars_are_dropped_and_arrays_pass(logger):
    metrics = {"a": math.nan, "b": math.inf, "c": np.float32("-inf"), "d": np.float64("nan"), "e": np.asarray(math.nan)}
    logger.log_metrics({**metrics, "v": np.asarray([1.0, 2.0]), "ok": 1}, step=1, epoch=1, context="validate")
    assert lines(logger) == [
        {"type": "metrics", "context": "validate", "epoch": 1, "step": 1, "v": [1.0, 2.0], "ok": 1}
    ]


def test_what_has_no_value_is_null(logger):
    logger.log_metrics({"loss": None, "acc": 0.5}, step=1, epoch=1, context="train")
    assert lines(logger)[-1] == {"type": "metrics", "context": "train", "epoch": 1, "step": 1, "loss": None, "acc": 0.5}


def test_non_finite_entries_of_arrays_are_null_with_the_reason(logger):
    metrics = {"v": np.asarray([math.nan, 2.0]), "w": [[1.0, math.inf]]}
    logger.log_metrics(metrics, step=1, epoch=1, context="validate")
    (line,) = lines(logger)
    assert line["v"] == [None, 2.0]
    assert line["nonfinite"] == {"v[0]": "nan", "w[0][1]": "inf"}


VALUES = st.one_of(
    st.floats(),
    st.integers(),
    st.booleans(),
    st.floats(width=32).map(np.float32),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
)
NAMES = st.text(min_size=1).filter(lambda s: s not in ("type", "context", "epoch", "step", "nonfinite"))


@given(st.dictionaries(NAMES, VALUES, max_size=6), st.integers(0, 2**40), st.integers(0, 2**20))
def test_the_fast_line_is_the_line_that_json_would_write(metrics, step, epoch):
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in metrics.items()}
    finite = {k: v for k, v in plain.items() if math.isfinite(v)}
    expected = {"type": "metrics", "context": "train", "epoch": epoch, "step": step, **finite}
    text = MetricLines().line(metrics, step=step, epoch=epoch, context="train")
    assert text.endswith("}\n")
    assert "\n" not in text[:-1]
    got = json.loads(text)
    assert got == expected
    assert {k: repr(v) for k, v in got.items()} == {k: repr(v) for k, v in expected.items()}


def test_the_context_and_the_epoch_of_a_line_are_its_own():
    made = MetricLines()
    heads = [("train", 1), ("validate", 1), ("train", 2), ("train", 1)]
    got = [json.loads(made.line({}, step=7, epoch=e, context=c)) for c, e in heads]
    assert [(line["context"], line["epoch"]) for line in got] == heads


@pytest.mark.parametrize("value", [1.0, np.float32(1)])
@pytest.mark.parametrize("name", ["type", "context", "epoch", "step"])
def test_a_metric_named_like_a_key_of_the_line_is_refused(logger, name, value):
    with pytest.raises(MetricError, match=name):
        logger.log_metrics({name: value}, step=1, epoch=1, context="train")


def test_a_parameter_named_type_is_kept_under_another_name_with_a_warning(logger):
    with pytest.warns(NitroWarning, match=r"params\.type"):
        logger.log_params({"type": "resnet"})
    assert lines(logger) == [{"type": "params", "params.type": "resnet"}]


def test_values_of_an_experiment_are_written_readably(logger):
    logger.log_params({"logger": JSONLogger(), "big": np.zeros(20_000), "small": np.asarray([1, 2]), "f": len})
    (line,) = lines(logger)
    assert line["logger"] == {"kind": "json", "path": None}
    assert line["small"] == [1, 2]
    assert line["big"]["shape"] == [20_000]
    assert line["f"] == "len"


def test_a_second_training_continues_the_file_after_finish(logger):
    logger.finish("completed")
    logger.log_metrics({"loss": 1.0}, step=1, epoch=2, context="train")
    logger.finish("completed")
    assert [line["type"] for line in lines(logger)] == ["finish", "metrics", "finish"]


def test_finish_lets_go_of_the_file(logger):
    logger.finish("completed")
    logger.path.rename(logger.path.with_name("moved.jsonl"))
    logger.log_tags("x")
    assert [line["type"] for line in lines(logger)] == ["tags"]


def test_nothing_is_written_before_the_first_verb(tmp_path):
    open_logger(JSONLogger(), tmp_path / "r" / "metrics.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_logging_needs_no_jax(tmp_path):
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "from nitro_cli.tracking import JsonLogger\n"
        f"JsonLogger({str(tmp_path / 'm.jsonl')!r}).log_metrics({{'loss': 1.0}}, step=1, epoch=1, context='train')\n"
        "assert 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
