"""One seed is one run, bit for bit, however its data is fed and however it is watched."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from nitro_cli import ArrayBatches, Nitro, NoPrefetch, Prefetch, set_progress_reporter
from nitro_cli.display.live import LiveReporter
from tests.tiny import Quick, points


def jittered(batch: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {**batch, "x": batch["x"] + rng.normal(0, 0.1, batch["x"].shape).astype(np.float32)}


def augmented() -> ArrayBatches:
    return ArrayBatches(points(96, 1), 8, shuffle=True, transform=jittered)


FEEDS = {
    "one producer": lambda source: Prefetch(source, workers=1),
    "two producers": lambda source: Prefetch(source, workers=2),
    "eight producers": lambda source: Prefetch(source, workers=8, device_batches=3),
    "no prefetch": NoPrefetch,
    "the default": lambda source: source,
}


def trained(folder: Path, feed: Any, **fields: Any) -> Nitro:
    val = ArrayBatches(points(51, 2), 8, resident=False)
    return Nitro(Quick(**fields), data={"train": feed(augmented()), "val": feed(val)}, run_dir=folder).train()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Nitro:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NITRO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
        set_progress_reporter(None)
        return trained(tmp_path_factory.mktemp("first"), FEEDS["one producer"])


def assert_same_run(one: Nitro, other: Nitro, bits: Any, log_lines: Any) -> None:
    assert bits(one.train_state) == bits(other.train_state)
    assert one.history.json_rows() == other.history.json_rows()
    assert log_lines(one, "train", "validate") == log_lines(other, "train", "validate")
    assert len(log_lines(one, "train")) == 24
    assert len(log_lines(one, "validate")) == 2


@pytest.mark.parametrize("feed", FEEDS)
def test_the_same_seed_is_the_same_run_at_any_number_of_producers(
    feed: str, first: Nitro, tmp_path: Path, bits: Any, log_lines: Any
) -> None:
    assert_same_run(first, trained(tmp_path, FEEDS[feed]), bits, log_lines)


def test_a_live_terminal_display_changes_nothing(first: Nitro, tmp_path: Path, bits: Any, log_lines: Any) -> None:
    drawn = io.StringIO()
    reporter = LiveReporter(Console(file=drawn, force_terminal=True, width=100))
    set_progress_reporter(reporter)
    watched = trained(tmp_path, FEEDS["one producer"])
    reporter.close()
    assert_same_run(first, watched, bits, log_lines)
    assert "\x1b[" in drawn.getvalue()


def test_another_seed_is_another_run(first: Nitro, tmp_path: Path, bits: Any) -> None:
    other = trained(tmp_path, FEEDS["one producer"], seed=43)
    assert bits(first.params) != bits(other.params)


def test_resident_data_trains_on_the_batches_that_streaming_would_deliver(tmp_path: Path) -> None:
    def run(name: str, resident: bool) -> Nitro:
        train = ArrayBatches(points(96, 1), 8, shuffle=True, resident=resident)
        return Nitro(Quick(), data={"train": train}, run_dir=tmp_path / name, checkpointer=None).train()

    kept, streamed = run("kept", True), run("streamed", False)
    assert "resident" in str(kept.report)
    for name in ("body", "head"):
        np.testing.assert_allclose(kept.params[name]["kernel"], streamed.params[name]["kernel"], atol=1e-6)
    assert kept.history[2]["train_loss"] == pytest.approx(streamed.history[2]["train_loss"], abs=1e-6)
