"""What is known about the fields of a class."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import jax
import numpy as np
import pytest
from pydantic import Field

from nitro_cli.experiment import (
    KNOBS,
    NO_DEFAULT,
    Device,
    EarlyStopping,
    Experiment,
    FieldKind,
    GraphConst,
    Part,
    config_metadata,
    type_text,
)


class Documented(Experiment):
    """An experiment."""

    width: GraphConst[int] = 128
    """Width of the hidden layer.

    Structural: another value is another program.
    """

    smoothing: Device[float] = 0.05
    classes: GraphConst[int]
    """How many classes."""
    described: int = Field(default=1, description="From the field.")
    max_epochs = 5
    early_stop = {"patience": 2}  # noqa: RUF012
    """Stops after two."""


class Sub(Documented):
    width = 256


def line_of(cls: type, text: str) -> int:
    lines, first = inspect.getsourcelines(cls)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_each_field_has_type_default_kind_documentation_and_line():
    meta = config_metadata(Documented)
    width = meta["width"]
    assert (width.type, width.default, width.kind) == (int, 128, FieldKind.GRAPHCONST)
    assert width.doc == "Width of the hidden layer.\n\nStructural: another value is another program."
    assert width.line == line_of(Documented, "width: GraphConst")
    assert meta["smoothing"].doc is None
    assert meta["classes"].default is NO_DEFAULT
    assert not NO_DEFAULT
    assert meta["described"].doc == "From the field."


def test_fields_come_in_declaration_order_with_the_knobs_first():
    names = list(config_metadata(Documented))
    assert tuple(names[: len(KNOBS)]) == KNOBS
    assert names[len(KNOBS) :] == ["width", "smoothing", "classes", "described"]
    assert all(meta.knob == (name in KNOBS) for name, meta in config_metadata(Documented).items())


def test_every_run_knob_is_documented():
    assert [name for name, meta in config_metadata(Experiment).items() if not meta.doc] == []


def test_a_reassigned_default_has_its_own_line_and_the_inherited_documentation():
    meta = config_metadata(Sub)["width"]
    assert (meta.default, meta.owner) == (256, "Sub")
    assert meta.line == line_of(Sub, "width = 256")
    assert meta.doc.startswith("Width of the hidden layer.")
    assert config_metadata(Documented)["max_epochs"].doc == "How many epochs to train for."
    assert config_metadata(Documented)["early_stop"].doc == "Stops after two."


def test_defaults_are_given_as_validated():
    assert config_metadata(Documented)["early_stop"].default == EarlyStopping(patience=2)

    class Complete(Experiment):
        early_stop = {"patience": 3}  # noqa: RUF012

    assert config_metadata(Complete)["early_stop"].default == EarlyStopping(patience=3)


def test_a_class_without_source_has_no_documentation_and_line_zero():
    scope: dict[str, Any] = {"Experiment": Experiment}
    exec("class NoSource(Experiment):\n    width: int = 3\n    'Documented, but nowhere to read.'\n", scope)
    meta = config_metadata(scope["NoSource"])["width"]
    assert (meta.doc, meta.line, meta.default) == (None, 0, 3)


def test_two_classes_of_one_name_in_a_file_are_told_apart_by_their_line():
    def make(which: int) -> type[Experiment]:
        if which == 1:

            class Twin(Experiment):
                a: int = 1
                """First."""

            return Twin

        class Twin(Experiment):  # type: ignore[no-redef]
            a: int = 1
            """Second."""

        return Twin

    assert config_metadata(make(1))["a"].doc == "First."
    assert config_metadata(make(2))["a"].doc == "Second."


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        (int | None, "int | None"),
        (tuple[int, ...], "tuple[int, ...]"),
        (dict[str, list[float]], "dict[str, list[float]]"),
        (Literal["a", "b"], "Literal['a', 'b']"),
        (np.ndarray, "ndarray"),
        (Any, "Any"),
        (Device[float], "float"),
        (jax.Array, "Array"),
    ],
)
def test_types_are_written_as_one_writes_them(annotation, text):
    assert type_text(annotation) == text


def test_the_default_of_a_part_is_known_beside_a_field_without_one():
    class Held(Part):
        size: int = 3

    class Needs(Experiment):
        rows: int
        part: Held = Held(size=4)
        early: EarlyStopping = EarlyStopping(patience=2)

    found = config_metadata(Needs)
    assert found["part"].default == Held(size=4)
    assert found["early"].default == EarlyStopping(patience=2)
    assert found["rows"].default is NO_DEFAULT
