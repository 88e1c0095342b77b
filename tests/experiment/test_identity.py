"""GraphConst values compare and hash by content; run knobs are none of them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.errors import ConfigError
from nitro_cli.experiment import (
    Device,
    Experiment,
    GraphConst,
    Last,
    check_graphconst,
    check_knob_kinds,
    graphconst_fingerprint,
)


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Block:
    width: int
    rates: tuple[float, ...] = (0.1,)


@dataclass
class Mutable:
    width: int = 1


@dataclass(frozen=True)
class HoldsMutable:
    inner: Any = field(default_factory=Mutable)


class Holder(Experiment):
    value: GraphConst[Any] = 1
    host: int = 0
    device: Device[float] = 0.0


def fingerprint(value):
    return graphconst_fingerprint(Holder(value=value))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        1.5,
        1j,
        "relu",
        b"x",
        Colour.RED,
        Path("a/b"),
        (1, (2.0, "x")),
        [1, [2]],
        {"a": [1], "b": {"c": 2}},
        MappingProxyType({"a": 1}),
        frozenset({1, 2}),
        Block(3),
        [Block(1), Block(2)],
        np.arange(3),
        jnp.ones(2),
        np.float32,
        jnp.bfloat16,
        np.dtype("int8"),
        Last(3),
        range(3),
    ],
)
def test_values_with_content_are_admitted_and_give_one_fingerprint(value):
    check_graphconst(Holder(value=value))
    assert fingerprint(value) == fingerprint(value)
    assert fingerprint(value) != fingerprint("another")


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (Mutable(), "value"),
        (HoldsMutable(), "value.inner"),
        ({"a": [1, Mutable()]}, "value['a'][1]"),
        (jax.nn.relu, "value"),
        (lambda x: x, "value"),
        (object(), "value"),
        (Mutable, "value"),
        (np.array([object()]), "value"),
    ],
)
def test_values_without_content_are_refused_naming_field_part_and_fix(value, part):
    with pytest.raises(ConfigError, match="GraphConst field 'value'") as caught:
        check_graphconst(Holder(value=value))
    assert caught.value.where == f"Holder.{part}"
    assert "Host field" in caught.value.fix


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ((1, 2), [1, 2]),
        ("1", 1),
        (("astrb", "c"), ("a", "bstrc")),
        ({"a": 1}, {"a": 2}),
        (np.arange(3), np.arange(3, dtype=np.int32)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (Block(1), Block(2)),
        (Colour.RED, Colour.BLUE),
        (Colour.RED, 1),
        (np.float32, np.float16),
    ],
)
def test_different_content_has_different_fingerprints(one, other):
    assert fingerprint(one) != fingerprint(other)


@given(st.dictionaries(st.text(max_size=3), st.one_of(st.integers(), st.floats(), st.text(max_size=3)), max_size=5))
def test_the_order_of_a_mapping_is_no_content(value):
    assert fingerprint(value) == fingerprint(dict(reversed(list(value.items()))))


def test_only_graphconst_fields_count():
    e = Holder()
    assert graphconst_fingerprint(e) == graphconst_fingerprint(e.replace(host=5, device=1.0, seed=7, max_epochs=9))
    assert graphconst_fingerprint(e) != graphconst_fingerprint(e.replace(value=2))
    assert e.graphconst_items() == {"value": 1}


def test_the_fingerprint_is_the_same_in_another_process():
    code = (
        "from nitro_cli.experiment import Experiment, GraphConst, graphconst_fingerprint\n"
        "from typing import Any\n"
        "class Holder(Experiment):\n"
        "    value: GraphConst[Any] = 1\n"
        "print(graphconst_fingerprint(Holder(value={'b': (1, 2.5), 'a': frozenset({'x', 'y', 'z'})})))\n"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == fingerprint({"a": frozenset({"z", "y", "x"}), "b": (1, 2.5)})


@pytest.mark.parametrize("marker", [GraphConst, Device])
def test_a_marked_run_knob_is_refused_at_setup_with_the_fix(marker):
    class Marked(Experiment):
        max_epochs: marker[int] = 3  # type: ignore[valid-type]

    with pytest.raises(ConfigError, match="max_epochs") as caught:
        check_knob_kinds(Marked)
    assert "max_epochs = ..." in caught.value.fix
    check_knob_kinds(Holder)
