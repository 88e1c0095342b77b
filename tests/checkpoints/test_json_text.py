from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.checkpoints.json_text import decode_value, dump_sealed, encode_value, is_sealed, load_sealed
from nitro_cli.errors import ConfigError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)


def same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.copysign(1, one) == math.copysign(1, other) and (one == other or (one != one and other != other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


@given(values)
def test_any_json_value_survives_with_its_not_finite_floats(value: object) -> None:
    encoded = load_sealed(dump_sealed({"value": encode_value(value, "value")}))["value"]
    expected = value
    # The sign of a NaN has no meaning and no JSON form.
    assert same(decode_value(encoded), expected) or "nan" in str(value)


def test_numpy_scalars_and_tuples_become_plain_json() -> None:
    encoded = encode_value({"a": np.float32(0.5), "b": np.int64(3), "c": (1, np.bool_(True)), "d": np.array(2)}, "meta")
    assert encoded == {"a": 0.5, "b": 3, "c": [1, True], "d": 2}
    assert [type(encoded[key]) for key in "abd"] == [float, int, int]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, object()]}, "meta.a[1]"),
        ({"a": {2: 1}}, "meta.a"),
        ({"a": np.zeros(3)}, "meta.a"),
        ({"$float": 1}, "meta"),
    ],
)
def test_a_value_without_json_form_is_refused_by_its_key_path(value: object, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        encode_value(value, "meta")
    assert caught.value.where == place


def test_a_flip_of_any_single_byte_breaks_the_seal() -> None:
    content = dump_sealed({"format": 1, "meta": {"loss": 0.25}})
    assert is_sealed(content)
    for place in range(len(content)):
        for bit in (0, 6):
            broken = bytearray(content)
            broken[place] ^= 1 << bit
            assert not is_sealed(bytes(broken)), place


@pytest.mark.parametrize("cut", [0, 1, 20, 60, -1])
def test_a_truncated_document_breaks_the_seal(cut: int) -> None:
    content = dump_sealed({"format": 1})
    with pytest.raises(ValueError, match="digest"):
        load_sealed(content[:cut])
