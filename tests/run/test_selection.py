"""A checkpointer that ranks by a metric of its own, beside another monitor: best is the checkpointer's everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli import Average, Best, Checkpointer, Nitro, runs
from nitro_cli.checkpoints import read_record
from nitro_cli.cli.targets import find_weights
from nitro_cli.registry import resolved_of
from tests.tiny import Light

A, B = [3.0, 1.0, 2.0, 4.0], [0.1, 0.4, 0.3, 0.2]  # a is best after epoch 2, b after epoch 1; training ends after 4


class Judged(Light):
    """Reports two written series; the run is judged by one and keeps its checkpoints by the other."""

    max_epochs = 4
    learning_rate = 0.1
    monitor = ("a", "min")
    checkpointer = Checkpointer(keep=("best(4)", "last(1)"), metric="b", mode="min")
    logger = None

    def finalize_metrics(self, acc: Any, split: str) -> Any:
        type(self).calls += 1
        return {"a": A[type(self).calls - 1], "b": B[type(self).calls - 1]}


Judged.calls = 0


def same(tree: Any, record: Path) -> bool:
    held = read_record(record).arrays
    return all(np.array_equal(np.asarray(leaf), held[f"params/{name}"]) for name, leaf in tree.items())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Nitro, dict[int, Path]]:
    folder = tmp_path_factory.mktemp("judged")
    Judged.calls = 0
    nitro = Nitro(Judged(), run_dir=folder, restore_best=True).train()
    records = {entry.epoch: folder / entry.path for entry in runs(folder)[0].checkpoints}
    return nitro, records


def test_the_handle_and_the_listing_call_best_what_the_checkpointer_ranks_first(trained: Any) -> None:
    nitro, records = trained
    found = nitro.best
    assert (found["metric"], found["mode"], found["epoch"], found["score"]) == ("b", "min", 1, 0.1)
    assert Path(found["checkpoint"]) == records[1]
    summary = runs(nitro.run_dir)[0]
    assert (summary.best.metric, summary.best.epoch) == ("b", 1)


def test_restore_best_ends_with_the_weights_that_the_checkpointer_ranks_first(trained: Any) -> None:
    nitro, records = trained
    assert same(nitro.params, records[1])
    assert not same(nitro.params, records[2])
    assert not same(nitro.params, records[4])
    assert nitro.epoch == 4


@pytest.mark.parametrize("source", [("latest", "best"), ("latest", Average(Best(1))), ("all", "best")])
def test_weights_of_the_best_are_those_that_the_checkpointer_ranks_first(trained: Any, source: Any) -> None:
    nitro, records = trained
    assert same(Nitro(Judged(), run_dir=nitro.run_dir, weights=source).params, records[1])


def test_a_resume_of_the_best_continues_after_the_epoch_that_the_checkpointer_ranks_first(trained: Any) -> None:
    nitro, records = trained
    again = Nitro(Judged(), run_dir=nitro.run_dir, resume=("latest", "best"))
    assert again.epoch == 1
    assert same(again.params, records[1])


def test_the_command_line_takes_the_same_checkpoint(trained: Any) -> None:
    nitro, records = trained
    resolved = resolved_of(Judged(run_dir=nitro.run_dir), preset=None, schedules=None)
    assert find_weights(resolved, "latest:best").path == records[1]


def test_restore_best_takes_an_average_of_what_the_checkpointer_ranks_first(tmp_path: Path) -> None:
    Judged.calls = 0
    nitro = Nitro(Judged(), run_dir=tmp_path, restore_best=Average(Best(2))).train()
    records = {entry.epoch: tmp_path / entry.path for entry in runs(tmp_path)[0].checkpoints}
    first, fourth = (read_record(records[epoch]).arrays["params/kernel"].astype(np.float64) for epoch in (1, 4))
    np.testing.assert_allclose(np.asarray(nitro.params["kernel"]), (first + fourth) / 2, rtol=1e-6)
