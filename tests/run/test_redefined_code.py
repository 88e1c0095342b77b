"""Code edited in a session: the next handle runs it, the old one says what was redefined."""

from __future__ import annotations

import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nitro_cli import Nitro

NOTEBOOK = """
from tests.tiny import Bare
import jax, jax.numpy as jnp

FACTOR = 1.0

def deeper(x):
    return x * FACTOR

@jax.jit
def helper(x):
    return deeper(x) + {offset}

class Session(Bare):
    logger = None
    checkpointer = None

    def forward(self, model, params, state, *, x):
        outputs, state = model(params, state, x)
        return helper(outputs), state

    def finalize_metrics(self, acc, split):
        return dict(acc)
"""


@pytest.fixture
def session() -> Iterator[ModuleType]:
    """A module as a notebook is one: its cells run again in the same namespace."""
    module = ModuleType("session_under_test")
    sys.modules[module.__name__] = module
    exec(textwrap.dedent(NOTEBOOK.format(offset=0.0)), module.__dict__)
    yield module
    del sys.modules[module.__name__]


def predicted(nitro: Nitro) -> Any:
    import numpy as np

    return nitro.predict({"x": np.ones((1, 6), np.float32)})


def test_the_next_handle_runs_an_edited_helper_and_the_old_one_keeps_its_code(
    session: ModuleType, tmp_path: Path
) -> None:
    old = Nitro(session.Session(), run_dir=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = predicted(old)
    exec("@jax.jit\ndef helper(x):\n    return deeper(x) + 100.0", session.__dict__)
    with pytest.warns(UserWarning, match=r"session_under_test\.helper.*Build a new Nitro"):
        kept = predicted(old)
    assert (kept == before).all()
    new = Nitro(session.Session(), run_dir=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert predicted(new) == pytest.approx(before + 100.0)


EDITS = {
    "a helper of a helper": ("def deeper(x):\n    return x * FACTOR * 3", r"\.deeper"),
    "a constant that a helper reads": ("FACTOR = 2.0", r"\.FACTOR"),
    "a hook": ("Session.forward = lambda self, model, params, state, *, x: model(params, state, x)", "hook forward"),
    "the class": (NOTEBOOK.format(offset=0.0).replace("dict(acc)", "{}"), "hook finalize_metrics"),
}


@pytest.mark.parametrize("what", EDITS)
def test_every_entry_point_names_what_was_redefined(what: str, session: ModuleType, tmp_path: Path) -> None:
    code, named = EDITS[what]
    handle = Nitro(session.Session(), run_dir=tmp_path)
    exec(code, session.__dict__)
    with pytest.warns(UserWarning, match=named):
        predicted(handle)
    with pytest.warns(UserWarning, match=named):
        handle.validate()


def test_running_the_same_definition_again_is_no_change(session: ModuleType, tmp_path: Path) -> None:
    handle = Nitro(session.Session(), run_dir=tmp_path)
    exec(NOTEBOOK.format(offset=0.0), session.__dict__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle.validate()


def test_a_part_that_is_edited_is_named(session: ModuleType, tmp_path: Path) -> None:
    cell = """
    from nitro_cli.experiment import Hook, Part

    class Judge(Part):
        scale: float = 1.0

        def finalize(self, acc, split):
            return {{name: value * {factor} for name, value in acc.items()}}

        def hooks(self):
            return {{"finalize_metrics": Hook(self.finalize)}}
    """
    exec(textwrap.dedent(cell.format(factor=1)), session.__dict__)
    exec("class Judged(Session):\n    finalize_metrics = None\n    judge: Judge = Judge()\n", session.__dict__)
    nitro = Nitro(session.Judged(), run_dir=tmp_path)
    nitro.validate()
    exec(textwrap.dedent(cell.format(factor=2)), session.__dict__)
    with pytest.warns(UserWarning, match="finalize of the part Judge"):
        nitro.validate()
