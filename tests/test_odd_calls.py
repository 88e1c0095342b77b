"""What the public names say when they are called with values of another kind: one error of nitro each."""

from __future__ import annotations

import inspect
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import nitro_cli
from nitro_cli import ArrayBatches, Experiment, Nitro
from nitro_cli.errors import ConfigError, DataError, NitroError

OF_THE_PROCESS = ("register_phase_monitor", "set_progress_reporter", "setup_distributed")
ODD = (3, None, [1], {"a": 1}, object(), b"x", np.zeros(2), 1.5, True, (), Experiment)


class Wide(Experiment):
    """A matrix of three rows."""

    logger = None
    checkpointer = None

    def build_data(self, dist):
        return {"train": ArrayBatches({"x": np.ones((4, 3), np.float32)}, 4)}

    def build_model(self, rng):
        return (lambda p, s, x: (x @ p["w"], s)), {"w": jnp.ones((3, 2))}, {}

    def forward(self, model, params, state, *, x):
        return model(params, state, x)

    def loss(self, outputs):
        return jnp.mean(outputs**2)


@pytest.fixture(scope="module")
def handle() -> Nitro:
    return Nitro(Wide())


def told(call: Any) -> None:
    """Whatever becomes of a call, Python's own errors from inside nitro are none of it."""
    try:
        call()
    except (NitroError, nitro_cli.BundleError):
        return


def callables() -> list[str]:
    """The functions and the classes with a positional argument, but for what a whole run or process hangs on."""
    found = []
    for name in nitro_cli.__all__:
        value = getattr(nitro_cli, name)
        if (
            name in OF_THE_PROCESS
            or not (inspect.isclass(value) or inspect.isfunction(value))
            or (isinstance(value, type) and issubclass(value, BaseException | Experiment))
        ):
            continue
        try:
            inspect.signature(value).bind(object())
        except (TypeError, ValueError):
            continue
        if getattr(value, "__module__", "").startswith("nitro_cli") and not hasattr(value, "model_fields"):
            found.append(name)
    return found


@pytest.mark.parametrize("name", callables())
def test_a_public_name_called_with_a_value_of_another_kind_tells_it_or_takes_it(name: str) -> None:
    for value in ODD:
        told(lambda value=value: getattr(nitro_cli, name)(value))


@pytest.mark.parametrize("word", ["data", "weights", "resume", "w0", "schedules", "compile_options", "restore_best"])
def test_a_word_of_a_handle_with_a_value_of_another_kind_is_told_or_taken(word: str) -> None:
    for value in ODD:
        told(lambda value=value: Nitro(Wide(), **{word: value}))


def test_a_preset_that_is_not_named_by_text_is_refused() -> None:
    for value in (3, [1]):
        with pytest.raises(ConfigError, match="no name of a preset"):
            Nitro.from_preset(Wide, value)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="no name of a preset"):
            Wide.from_preset(value)  # type: ignore[arg-type]
    for value in (3, Wide(), int):
        with pytest.raises(ConfigError, match="no class of an experiment"):
            Nitro.from_preset(value, "base")  # type: ignore[arg-type]


def test_a_path_that_is_none_is_refused_by_every_reader() -> None:
    for read in ("runs", "read_manifest", "checkpoint_info", "load_checkpoint"):
        for value in (3, None, b"runs", ["runs"]):
            with pytest.raises(ConfigError, match="is no path"):
                getattr(nitro_cli, read)(value)


def test_samples_of_another_shape_than_in_training_explain_a_forward_that_fails(handle: Nitro) -> None:
    assert handle.predict({"x": np.ones((2, 3), np.float32)}).tolist() == [[3, 3], [3, 3]]
    with pytest.raises(DataError, match=r"x is float32\[2, 5\], the model was trained with float32\[n, 3\]") as caught:
        handle.predict({"x": np.ones((2, 5), np.float32)})
    assert "forward fails" in str(caught.value)
    with pytest.raises(DataError, match=r"float32\[2, 5\]"):
        list(handle.predict([{"x": np.ones((2, 5), np.float32)}]))
    with pytest.raises(DataError, match="named 3"):
        handle.predict({3: np.ones((2, 3), np.float32)})


def test_what_has_no_hashable_name_is_not_found(handle: Nitro) -> None:
    for value in (3, [1], {"a": 1}):
        with pytest.raises(NitroError, match="no split"):
            handle.evaluate(value)  # type: ignore[arg-type]
        with pytest.raises(NitroError, match="no name of a field"):
            handle.device_value(value)  # type: ignore[arg-type]
