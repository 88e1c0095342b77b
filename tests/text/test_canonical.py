"""One text for one value."""

import hashlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.text.canonical import canonical, canonical_digest

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("aé"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abé", max_size=3), inner, max_size=3),
    max_leaves=12,
)


def test_the_digest_of_a_known_document():
    value = {"b": [1, 1.0], "a": "é"}
    assert canonical(value) == '{"a":"é","b":[1,1.0]}'.encode()
    known = "sha256:67cbe8cbd0f9c216e90fd1e8519d67a3e3daf8b72abc38f1835adb2300199a9b"
    assert canonical_digest(value) == known == f"sha256:{hashlib.sha256(canonical(value)).hexdigest()}"


@given(VALUES)
def test_the_text_reads_back_as_the_value_and_does_not_depend_on_the_order_of_keys(value):
    assert json.loads(canonical(value)) == value
    if isinstance(value, dict):
        assert canonical(dict(reversed(value.items()))) == canonical(value)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, math.nan]}, r"a\[1\] is nan"),
        ({"a": {"b": math.inf}}, r"a\.b is inf"),
        ({"a": {1: 2}}, "a has the key 1"),
        ([{1, 2}], r"\[0\] is of type set"),
        ("\ud800", "the value is text"),
        (b"bytes", "the value is of type bytes"),
    ],
)
def test_what_is_no_json_is_refused_by_its_path(value, place):
    with pytest.raises(ValueError, match=place):
        canonical(value)
