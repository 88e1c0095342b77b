"""Mistakes in a callback's class, and in the knob that holds callbacks: told when the class or experiment is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nitro_cli import Callback, Nitro
from nitro_cli.errors import ConfigError
from tests.tiny import Light


class Counting(Callback):
    """Sets a field, which it may not."""

    seen: int = 0

    def on_epoch_end(self, run: Any, row: Any) -> None:
        self.seen += 1


def test_a_misspelt_method_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"nothing calls Late\.on_epoch_ended") as error:

        class Late(Callback):
            def on_epoch_ended(self, run: Any, row: Any) -> None: ...

    assert error.value.nearest[0] == "on_epoch_end"


@pytest.mark.parametrize(("has", "lacks"), [("state", "load_state"), ("load_state", "state")])
def test_a_state_that_cannot_be_given_back_is_refused(has: str, lacks: str) -> None:
    with pytest.raises(ConfigError, match=f"has {has} without {lacks}"):
        type("Half", (Callback,), {"__module__": __name__, has: lambda self, *state: {}})


def test_a_value_without_a_type_is_told_what_it_may_be() -> None:
    with pytest.raises(ConfigError, match=r"Bare\.n has no type") as error:

        class Bare(Callback):
            n = 0

    assert "_n: int" in str(error.value.fix)


def test_a_callback_that_sets_a_field_is_told_of_private_attributes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Counting\.seen cannot be set") as error:
        Nitro(Light(callbacks=(Counting(),)), run_dir=tmp_path).train()
    assert "_seen" in str(error.value.fix)


def test_a_class_one_callback_or_text_is_not_taken_for_a_list() -> None:
    for given, told in (
        ([Counting], r"Counting is a class.*Counting\(\)"),
        (Counting(), "should be a list"),
        ({"id": "save_predictions"}, "should be a list"),
        ("save_predictions", r'\[\{ id = "save_predictions" \}\]'),
    ):
        with pytest.raises(ConfigError, match=told):
            Light(callbacks=given)
