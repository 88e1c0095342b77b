"""`nitro render`: pictures of samples, drawn by the experiment."""

import json
import textwrap

import pytest

SKETCH = textwrap.dedent(
    '''
    import numpy as np

    from .probe import Probe


    class Sketch(Probe):
        """Draws a sample as text."""

        def visualize(self, outputs, *, x, y):
            return f"x={x.shape} y={y:.3f} outputs={outputs if outputs is None else float(outputs):}"

        def save_figure(self, figure, stem):
            path = stem + ".txt"
            with open(path, "w") as file:
                file.write(figure)
            return path
    '''
)


@pytest.fixture
def sketch(probe, nitro):
    (probe / "experiments" / "sketch.py").write_text(SKETCH)
    result = nitro("train", "Sketch", "--max-epochs", "1")
    assert result.exit_code == 0, result.output
    return probe


def names(text):
    return [line.rpartition("/")[2] for line in text.splitlines()]


def test_a_run_is_drawn_with_its_predictions_into_its_own_directory(sketch, nitro):
    result = nitro("render", "runs/Sketch", "--predictions")
    assert result.exit_code == 0, result.output
    assert names(result.stdout) == [f"val_{i:03d}.txt" for i in range(8)]
    text = (sketch / "runs" / "Sketch" / "viz" / "val_000.txt").read_text()
    assert text.startswith("x=(2,) y=")
    assert "None" not in text


def test_split_batches_folder_and_tag_are_chosen(sketch, nitro):
    result = nitro("render", "runs/Sketch", "--split", "test", "--batches", "2", "--out", "drawn", "--tag", "mine")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [f"drawn/mine_{i:03d}.txt" for i in range(16)]
    assert (sketch / "drawn" / "mine_015.txt").read_text().endswith("outputs=None")


def test_json_names_the_run_the_checkpoint_and_the_paths(sketch, nitro_json):
    found = nitro_json("render", "runs/Sketch", "--out", "drawn")
    assert {"experiment", "run", "checkpoint", "split", "paths"} <= set(found)
    assert (found["experiment"], found["split"], len(found["paths"])) == ("Sketch", "val", 8)


def test_a_bare_experiment_needs_weights_for_predictions_only(sketch, nitro):
    assert len(names(nitro("render", "Sketch", "--out", "drawn").stdout)) == 8
    refused = nitro("render", "Sketch", "--out", "never", "--predictions")
    assert refused.exit_code == 2
    assert "has no trained weights" in refused.stderr
    with_weights = nitro("render", "Sketch", "--out", "drawn", "--predictions", "--weights", "latest:latest")
    assert len(names(with_weights.stdout)) == 8


def test_what_cannot_be_drawn_is_refused_and_leaves_no_folder(sketch, nitro):
    wrong = nitro("render", "runs/Sketch", "--split", "tset", "--out", "never")
    assert wrong.exit_code == 3
    assert "nearest: test" in wrong.stderr
    assert nitro("train", "Probe", "--max-epochs", "1").exit_code == 0
    without = nitro("render", "runs/Probe", "--out", "never", "--json")
    assert without.exit_code == 2
    assert "visualize" in json.loads(without.stderr.splitlines()[-1])["what"]
    assert not (sketch / "never").exists()
