"""SavedModels in TensorFlow; run where it is installed (extra `savedmodel`)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nitro_cli import ExportSpec, Nitro, NitroWarning
from nitro_cli.errors import ConfigError
from tests.export.served import Scores, Softmaxed, Wired, inputs, returning

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]

RUN = """
import sys
for name in ("jax", "nitro_cli"):
    sys.modules[name] = None
import numpy as np
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
given = np.load(sys.argv[2])
found = {key: loaded.signatures["serving_b" + key](x=tf.constant(given[key]))["scores"].numpy() for key in given.files}
np.savez(sys.argv[3], signatures=sorted(loaded.signatures), variables=len(loaded.weights), **found)
"""


def test_a_savedmodel_gives_what_predict_gives_without_nitro_and_jax(tmp_path: Path) -> None:
    nitro = Nitro(Scores(), data={})
    wanted = {str(size): nitro.predict({"x": inputs(size)}) for size in (32, 7, 1)}
    np.savez(tmp_path / "given.npz", **{size: inputs(int(size)) for size in wanted})
    path = nitro.export("savedmodel", dir=tmp_path, batch_sizes=(7, 1, 32))
    out = tmp_path / "out.npz"
    words = [str(path), str(tmp_path / "given.npz"), str(out)]
    subprocess.run([sys.executable, "-c", RUN, *words], cwd="/", check=True, timeout=300)
    with np.load(out) as found:
        assert list(found["signatures"]) == ["serving_b1", "serving_b32", "serving_b7", "serving_default"]
        assert found["variables"] == 5
        for size, value in wanted.items():
            np.testing.assert_allclose(found[size], value, rtol=1e-5, atol=1e-5)
    entries = json.loads((path / "assets.extra" / "provenance.json").read_text())
    assert entries["experiment"] == "tests.export.served:Scores"


def test_the_default_signature_is_the_first_batch_size_and_echoes_come_back(tmp_path: Path) -> None:
    import tensorflow as tf

    path = Nitro(Wired(), data={}).export("savedmodel", dir=tmp_path, batch_sizes=(3, 1))
    number = tf.constant([5, 6, 7], tf.int32)
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    found = signature(number=number, levels=tf.zeros((3, 6), tf.uint8))
    assert sorted(found) == ["best", "number", "scores"]
    np.testing.assert_array_equal(found["number"].numpy(), [5, 6, 7])


def test_a_postprocess_stays_behind_and_that_is_said(tmp_path: Path) -> None:
    with pytest.warns(NitroWarning, match="the program's own outputs, scores"):
        Nitro(Softmaxed(), data={}).export("savedmodel", dir=tmp_path)


def test_a_name_that_a_signature_cannot_have_is_refused(tmp_path: Path) -> None:
    class Named(Wired):
        def export_outputs(self) -> list[ExportSpec]:
            return [ExportSpec("scores.raw", source="scores")]

    with pytest.raises(ConfigError, match="cannot be the name of a tensor in a SavedModel"):
        Nitro(Named(), data={}).export("savedmodel", dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_without_hooks_has_tensors_that_a_signature_can_name(tmp_path: Path) -> None:
    import tensorflow as tf

    handle = Nitro(returning(lambda out: {"cls": {"logits": out}, "mask": out * 2})())
    path = handle.export("savedmodel", dir=tmp_path, batch_sizes=(2,))
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    found = signature(tokens=tf.zeros((2, 4), tf.int32), mask=tf.ones((2, 3)))
    assert sorted(found) == ["cls_logits", "outputs_mask"]
    row = 4 * np.asarray(handle.params["table"])[0]
    np.testing.assert_allclose(found["outputs_mask"].numpy(), [2 * row, 2 * row], rtol=1e-6)
