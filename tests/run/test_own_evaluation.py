"""`evaluate_split`: an evaluation of the experiment's own."""

import numpy as np
import pytest

from nitro_cli import Nitro
from nitro_cli.errors import MetricError
from tests.tiny import Tiny


class Retrieving(Tiny):
    """Judges `val` by how far the outputs reach, and leaves `test` to the ordinary pass."""

    monitor = ("reach", "max")
    checkpointer = None
    logger = None
    max_epochs = 2

    def evaluate_split(self, nitro, split):
        if split == "test":
            return None
        seen = [np.abs(nitro.predict({"x": batch["x"]})).max() for batch in nitro.batches(split)]
        return {"reach": max(seen), "taken": nitro.step, "deep": {"rows": len(seen)}}


def test_what_it_returns_is_reported_and_judged_in_the_place_of_a_pass():
    handle = Nitro(Retrieving()).train()
    x = handle.data["val"].arrays["x"]
    outputs = np.concatenate([handle.predict({"x": x[i : i + 8]}) for i in range(0, len(x), 8)])
    found = handle.evaluate("val")
    assert found == {"reach": np.abs(outputs).max(), "taken": 24, "deep/rows": 7}
    assert handle.history[-1]["reach"] == found["reach"]
    assert [row["step"] for row in handle.history] == [12, 24]
    assert "acc" in handle.evaluate("test")


def test_what_cannot_be_reported_is_refused_by_name():
    class Wrong(Retrieving):
        def evaluate_split(self, nitro, split):
            return {"reach": "far"}

    with pytest.raises(MetricError, match="reach") as caught:
        Nitro(Wrong()).evaluate("val")
    assert "evaluate_split" in str(caught.value)
