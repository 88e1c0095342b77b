"""What `derive` returned and what a person set, as the commands tell of runs."""

from __future__ import annotations

import pytest

EXPERIMENT = '''
import jax.numpy as jnp
import numpy as np

from nitro_cli import ArrayBatches, Device, Experiment


class Weighted(Experiment):
    pos_weight: Device[float] = 2.0
    """The weight of the rare class."""

    def build_data(self, dist):
        return {"train": ArrayBatches({"x": np.full((4, 1), 7.75, np.float32)}, 4)}

    def derive(self, data):
        return {"pos_weight": float(data["train"].arrays["x"].max())}

    def build_model(self, rng):
        return (lambda params, state, x: (x, state)), {"w": jnp.ones(())}, {}

    def forward(self, model, params, state, *, x):
        return model(params, state, x)

    def loss(self, outputs):
        return self.pos_weight + 0.0 * jnp.mean(outputs)
'''


@pytest.fixture
def runs(nitro, nitro_json, tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "weighted.py").write_text(EXPERIMENT)
    words = ([], ["--set", "pos_weight=1.0"], ["--set", "pos_weight=50.0"])
    return [nitro_json("train", "Weighted", *more)["run"] for more in words]


def test_train_uses_compare_and_show_tell_and_resume_keeps_the_value_that_was_set(runs, nitro, nitro_json):
    ids = [str(run).rpartition("/")[2] for run in runs]
    losses = [nitro_json("history", run)["rows"][-1]["train_loss"] for run in ids]
    assert losses == [7.75, 1.0, 50.0]
    differences = {found["field"]: found["values"] for found in nitro_json("compare", *ids)["differences"]}
    assert differences["pos_weight"] == losses
    for run, value, origin in zip(
        ids, losses, ["derived", "set: --set pos_weight", "set: --set pos_weight"], strict=True
    ):
        field = next(f for f in nitro_json("show", run)["fields"] if f["name"] == "pos_weight")
        assert field["value"] == value
        assert field["origin"].startswith(f"{origin}, recorded in runs/Weighted/{run}/config.toml:")
    result = nitro("resume", "--run", ids[2], "--max-epochs", "2")
    assert "pos_weight is 50.0" in " ".join(result.stderr.split())
    assert nitro_json("history", ids[2])["rows"][-1]["train_loss"] == 50.0
    dry = nitro_json("train", "Weighted", "--dry-run")
    field = next(f for f in dry["fields"] if f["name"] == "pos_weight")
    assert (field["value"], field["origin"]) == (7.75, "derived")

    refused = nitro("show", ids[0], "--preset", "x")
    assert refused.exit_code == 2
    assert "--preset does not go with a run" in refused.stderr
