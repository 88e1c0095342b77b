"""The task of language models: which tokens count, its loss and metrics, and what it refuses."""

import json
import math
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import Checkpointer, Nitro
from nitro_cli.errors import ConfigError, DataError, IncompatibleError
from nitro_cli.experiment import JSONLogger
from nitro_cli.metrics import SplitAccumulator, Undefined
from nitro_cli.tasks import CausalLM
from tests.tasks.token_table import TokenTable, V, by_hand, off_by, token_rows

P = np.log([[[0.5, 0.25, 0.125, 0.125], [0.25] * 4]])
LABEL = np.array([[0, 3]])


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def result(task, outputs, target, **words):
    """The metrics of a batch in NumPy, and why one has no value."""
    total = SplitAccumulator("metrics")
    total.add(task.sums(outputs, target, **words))
    values = task.values(total.result())
    reasons = {name: value.reason for name, value in values.items() if isinstance(value, Undefined)}
    return {name: None if name in reasons else value for name, value in values.items()}, reasons


def trained(data, **words):
    task = words.pop("task", CausalLM(V))
    return Nitro(TokenTable(source=data, task=task, **words)).train()


# Loss and metrics


def test_two_positions_by_hand():
    found, _ = result(CausalLM(), P, LABEL, text_bytes=np.array([3]))
    assert found["count"] == 2
    assert found["nll"] == pytest.approx(1.0397207708, abs=1e-10)
    assert found["perplexity"] == pytest.approx(2.8284271247, abs=1e-10)
    assert found["token_accuracy"] == 0.5
    assert found["bits_per_byte"] == pytest.approx(1.0)  # 1 + 2 bits over 3 bytes
    term = CausalLM(label_smoothing=0.1).terms(jnp.asarray(P), jnp.asarray(LABEL))["cross_entropy"]
    assert float(term.numerator) == pytest.approx(2.1660849392, rel=1e-6)
    assert float(term.denominator) == 2


def test_metrics_are_unsmoothed():
    found, _ = result(CausalLM(label_smoothing=0.5), P, LABEL)
    assert found["nll"] == pytest.approx(1.0397207708, abs=1e-10)


def test_a_perplexity_beyond_the_range_is_infinite():
    found, _ = result(CausalLM(), np.array([[[0.0, -800.0]]]), np.array([[1]]))
    assert found["nll"] == 800
    assert found["perplexity"] == math.inf


def test_a_logit_of_minus_infinity_is_no_nan():
    term = CausalLM().terms(jnp.asarray([[[0.0, 1.0, -jnp.inf]]]), jnp.asarray([[0]]))["cross_entropy"]
    assert float(term.numerator) == pytest.approx(math.log(1 + math.e), rel=1e-6)


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        ({}, [[1, 1, 0], [1, 1, 1]]),
        ({"mask": [[0, 1, 1], [1, 0, 1]]}, [[0, 1, 0], [1, 0, 1]]),
        ({"mask": [0, 1]}, [[0, 0, 0], [1, 1, 1]]),
        ({"valid": [1, 0]}, [[1, 1, 0], [0, 0, 0]]),
        ({"pad_id": 2}, [[1, 0, 0], [1, 1, 0]]),
    ],
)
def test_what_counts_is_what_is_scored_and_let_through_and_no_padding(words, counts):
    logits = np.random.default_rng(0).normal(size=(2, 3, 4))
    label, counts = np.array([[1, 2, -100], [0, 3, 2]]), np.array(counts, bool)
    task = CausalLM(pad_id=words.pop("pad_id", None))
    given = {name: np.array(value, bool) for name, value in words.items()}
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    wanted = -sum(log_p[b, t, label[b, t]] for b, t in np.argwhere(counts))
    found, _ = result(task, logits, label, **given)
    assert found["count"] == counts.sum()
    assert found["nll"] == pytest.approx(wanted / counts.sum())
    spoilt = np.where(counts[..., None], logits, np.nan)
    term = task.terms(jnp.asarray(spoilt), jnp.asarray(label), **{n: jnp.asarray(v) for n, v in given.items()})
    assert float(term["cross_entropy"].numerator) == pytest.approx(wanted, rel=1e-5)
    assert float(term["cross_entropy"].denominator) == counts.sum()


def test_labels_where_their_tokens_stand_are_shifted_once():
    logits = np.random.default_rng(0).normal(size=(2, 4, 5))
    ids = np.array([[0, 1, 2, 3], [4, 4, -100, 1]])
    mask = np.array([[1, 1, 0, 1], [1, 1, 1, 1]], bool)
    shifted, _ = result(CausalLM(alignment="shift_inputs"), logits, ids, mask=mask)
    plain, _ = result(CausalLM(), logits[:, :-1], ids[:, 1:], mask=mask[:, 1:])
    assert shifted == plain
    assert shifted["count"] == 4


def test_why_there_is_no_value_is_said():
    found, reasons = result(CausalLM(), P, np.array([[-100, -100]]), text_bytes=np.array([3]))
    assert [found[name] for name in ("nll", "perplexity", "token_accuracy", "bits_per_byte")] == [None] * 4
    assert reasons["perplexity"] == "no token counts"
    for words, reason in (
        ({}, "do not say how many bytes"),
        ({"text_bytes": np.array([-1])}, "prompts are not scored"),
        ({"text_bytes": np.array([-2])}, "cut"),
        ({"text_bytes": np.array([3]), "mask": np.array([[True, False]])}, "a mask or pad_id leaves tokens out"),
    ):
        found, reasons = result(CausalLM(), P, LABEL, **words)
        assert found["nll"] is not None
        assert found["bits_per_byte"] is None
        assert reason in reasons["bits_per_byte"]


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan"), True])
def test_a_smoothing_outside_of_its_range_is_refused(value):
    with pytest.raises(ConfigError):
        CausalLM(label_smoothing=value)


# Runs


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_micro_batches_of_unlike_token_counts_give_the_gradient_of_the_whole(parts):
    data = token_rows(16)
    handle = trained(data, batch_size=16 // parts, accum=parts)
    loss, _, count = by_hand(data)
    assert off_by(handle, data) < 1e-6
    row = handle.history[-1]
    assert row["train_loss"] == pytest.approx(loss, rel=1e-6)
    assert row["tokens_seen"] == count


def test_four_devices_give_the_gradient_of_the_whole(tmp_path):
    script = Path(__file__).with_name("token_table.py")
    told = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout.splitlines()[-1])
    assert len(found) == 2
    assert max(found.values()) < 1e-6


def test_an_evaluation_says_the_same_at_any_batch_size():
    data = token_rows(11)
    found = [Nitro(TokenTable(source=data, batch_size=size)).evaluate("val") for size in (11, 4)]
    loss, _, count = by_hand(data)
    for row in found:
        assert row["nll"] == pytest.approx(loss, rel=1e-6)
        assert row["count"] == count


def test_lines_have_tokens_and_a_resume_goes_on_counting(tmp_path):
    data = token_rows(16)
    words = {"logger": JSONLogger(), "log_every_n_steps": 1, "run_dir": tmp_path / "runs"}
    e = TokenTable(source=data, batch_size=8, checkpointer=Checkpointer(), monitor=("nll", "min"), **words)
    first = Nitro(e).train()
    lines = [
        json.loads(line) for line in (Path(first.run_dir) / first.run_id / "metrics.jsonl").read_text().splitlines()
    ]
    tokens = [line["tokens"] for line in lines if line.get("context") == "train" and "tokens" in line]
    count = by_hand(data)[2]
    assert sum(tokens) == count
    again = Nitro(e, max_epochs=3, resume=(first.run_id, "latest")).train()
    assert [row["tokens_seen"] for row in again.history] == [count, 2 * count, 3 * count]
    with pytest.raises(IncompatibleError):
        Nitro(e.replace(task=CausalLM(V, pad_id=1)), max_epochs=4, resume=(first.run_id, "latest"))


def test_steps_without_a_token_are_not_taken():
    data = token_rows(16)
    data["label"][8:] = -100
    row = trained(data, batch_size=8).history[-1]
    assert row["skipped"] == 1
    assert row["tokens_seen"] == by_hand(data)[2]


# What is refused


def changed(name, value, at=(2, 3)):
    data = {key: array.copy() for key, array in token_rows(16).items()}
    data[name][at] = value
    return data


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (changed("tokens", V), f"the token is {V} at \\[3\\]"),
        (changed("tokens", -1), r"the token is -1 at \[3\]"),
        (changed("label", V), f"the label is {V} at \\[3\\]"),
        (changed("label", -1), r"the label is -1 at \[3\]"),
        ({**token_rows(16), "label": token_rows(16)["label"].astype(np.float32)}, "the labels are float32"),
        ({**token_rows(16), "label": token_rows(16)["label"][:, 0]}, "the labels have the shape"),
    ],
)
def test_ids_that_there_are_not_are_refused_before_a_step(data, told):
    with pytest.raises(DataError, match=told):
        Nitro(TokenTable(source=data))


def test_logits_of_another_width_are_refused():
    with pytest.raises(DataError, match="the output has 7 ids, vocab_size says 8"):
        Nitro(TokenTable(task=CausalLM(8)))


@pytest.mark.parametrize(
    ("mask", "told"),
    [([0, 1, 1, 1, 1, 1], "pads position 0, before a token"), ([1, 1, 1, 1, 1, 0], "pads position 5, which is scored")],
)
def test_an_attention_mask_that_the_model_would_have_needed_is_refused(mask, told):
    data = token_rows(16)
    data["label"][3, 5] = 1
    data["attention_mask"] = np.ones((16, 6), np.int32)
    trained(data)
    data["attention_mask"][3] = mask
    with pytest.raises(DataError, match=told):
        Nitro(TokenTable(source=data))
    if mask[0]:
        data["label"][3, 5] = -100
        trained(data)
