"""Where Python says that a warning of nitro comes from."""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import ArrayBatches, Experiment, Nitro, NitroWarning, train
from nitro_cli.checkpoints import resolve_source
from nitro_cli.errors import warn


class Line(Experiment):
    """Fits a weight."""

    logger = None

    def build_data(self, dist):
        x = np.ones((4, 1), np.float32)
        return {"train": ArrayBatches({"x": x}, 4), "val": ArrayBatches({"x": x}, 4)}

    def build_model(self, rng):
        return (lambda p, s, x: (x * p["w"], s)), {"w": jnp.ones((1,))}, {}

    def forward(self, model, params, state, *, x):
        return model(params, state, x)

    def loss(self, out):
        return jnp.mean(out**2)


def in_a_thread(call: Callable[[str], None], text: str) -> None:
    thread = threading.Thread(target=call, args=(text,))
    thread.start()
    thread.join()


def line() -> int:
    """The number of the line that calls."""
    return sys._getframe(1).f_lineno


def test_a_warning_points_at_the_line_that_called_nitro(tmp_path: Path) -> None:
    with pytest.warns(NitroWarning, match="starting fresh") as fresh:
        train(Line(), run_dir=tmp_path, resume="auto")
    at = line() - 1
    with pytest.warns(NitroWarning, match="last") as kept:
        Nitro(Line(), run_dir=tmp_path, checkpointer={"keep": ["best(1)"]})
    there = line() - 1
    with pytest.warns(NitroWarning, match="finds 1 checkpoint") as few:
        resolve_source("latest:average(last(3))", tmp_path)
    here = line() - 1
    for caught, number in ((fresh, at), (kept, there), (few, here)):
        assert {(one.filename, one.lineno) for one in caught} == {(__file__, number)}


def test_a_warning_from_a_thread_without_code_of_ones_own_is_still_given() -> None:
    with pytest.warns(NitroWarning, match="on its own") as caught:
        in_a_thread(warn, "on its own")
    assert "nitro_cli" not in Path(caught[0].filename).parts


def test_a_filter_for_the_calling_module_holds() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", module=re.escape(__name__))
        warn("of this module")
