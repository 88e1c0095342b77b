import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.data import BatchCheck, FieldSpec, batch_length, check_device_fields, field_specs, pad_batch
from nitro_cli.errors import DataError

FIRST = {"image": np.zeros((4, 3), np.float32), "label": np.zeros(4, np.int32)}


def check(batch, index=3, **kw):
    BatchCheck("train", fields=field_specs(FIRST), batch_size=4, **kw)(index, batch)


@given(length=st.integers(1, 9), extra=st.integers(0, 9), width=st.integers(0, 3))
def test_padding_repeats_the_last_sample_and_slices_back(length, extra, width):
    rng = np.random.default_rng(length)
    batch = {"x": rng.random((length, width)), "y": rng.integers(0, 9, length).astype(np.int8)}
    padded = pad_batch(batch, length + extra)
    for name, value in batch.items():
        # numpy's own edge padding is the independent source
        widths = [(0, extra)] + [(0, 0)] * (value.ndim - 1)
        np.testing.assert_array_equal(padded[name], np.pad(value, widths, mode="edge"))
        assert padded[name].dtype == value.dtype


def test_full_batch_is_not_copied():
    assert pad_batch(FIRST, 4)["image"] is FIRST["image"]


def test_text_fields_are_padded_too():
    assert pad_batch({"id": np.array(["a", "bc"])}, 3)["id"].tolist() == ["a", "bc", "bc"]


def test_wider_batch_is_refused_with_both_sizes():
    with pytest.raises(DataError, match=r"4 samples .* 3"):
        pad_batch(FIRST, 3)


def test_batch_without_samples_cannot_be_padded():
    with pytest.raises(DataError, match="without samples"):
        pad_batch({"x": np.zeros((0, 2))}, 3)


def test_length_is_the_shared_leading_size():
    assert batch_length(FIRST) == 4


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"image": np.zeros((4, 3)), "label": np.zeros(5)}, "`label` has 5 samples, field `image` has 4"),
        ({"image": np.float32(1) * np.zeros(())}, "not a numpy array|without a batch dimension"),
        ({"image": np.zeros(())}, "without a batch dimension"),
        ({"image": [1, 2]}, "`image` is a builtins.list"),
        ({}, "no fields"),
        ([1, 2], "is a list, not a mapping"),
        (None, "returned None"),
        (np.zeros(3), "is a ndarray, not a mapping"),
    ],
)
def test_what_is_no_batch_is_named(batch, message):
    with pytest.raises(DataError, match=message):
        batch_length(batch)


def test_equal_batch_passes():
    check({"label": np.ones(4, np.int32), "image": np.ones((4, 3), np.float32)})


@pytest.mark.parametrize(
    ("batch", "field", "message"),
    [
        (FIRST | {"image": np.zeros((4, 3))}, "image", "dtype float64.* it had float32"),
        (FIRST | {"label": np.zeros((4, 1), np.int32)}, "label", "2 dimensions.* it had 1"),
        (FIRST | {"label": np.zeros(3, np.int32)}, "label", "3 samples"),
    ],
)
def test_changed_field_is_named_with_split_batch_and_field(batch, field, message):
    with pytest.raises(DataError, match=message) as caught:
        check(batch)
    assert "split `train`" in caught.value.where
    assert "batch 3" in caught.value.where
    assert f"`{field}`" in caught.value.where


def test_changed_field_names_are_refused():
    with pytest.raises(DataError, match=r"\['image'\], the first batch had \['image', 'label'\]"):
        check({"image": FIRST["image"]})


def test_trailing_shape_may_vary():
    check(FIRST | {"image": np.zeros((4, 9), np.float32)})


def test_wider_batch_than_the_first_is_refused_and_shorter_only_where_exact():
    rows = {name: np.concatenate([value, value]) for name, value in FIRST.items()}
    with pytest.raises(DataError, match="8 samples, more than the 4"):
        check(rows)
    short = {name: value[:2] for name, value in FIRST.items()}
    check(short)
    with pytest.raises(DataError, match="2 samples, the first batch had 4"):
        check(short, exact=True)
    with pytest.raises(DataError, match="no samples"):
        check({name: value[:0] for name, value in FIRST.items()})


def test_text_width_may_vary_on_the_host():
    fields = field_specs({"id": np.array(["abc"])})
    BatchCheck("val", fields=fields, batch_size=1)(1, {"id": np.array(["a"])})


@pytest.mark.parametrize(
    "array",
    [np.array(["a"]), np.array([b"a"]), np.array([{}], object), np.array(["2020"], "M8[D]"), np.zeros(1, "i4,f4")],
)
def test_device_fields_refuse_what_no_device_holds(array):
    fields = {"id": FieldSpec(array.dtype, ()), "x": FieldSpec(np.dtype("f4"), ())}
    check_device_fields("split `val`, batch 0", fields, frozenset({"x"}))
    with pytest.raises(DataError, match="no device can hold") as caught:
        check_device_fields("split `val`, batch 0", fields, frozenset({"id"}))
    assert caught.value.where == "split `val`, batch 0, field `id`"


def test_device_fields_refuse_foreign_byte_order():
    foreign = np.dtype("f4").newbyteorder("S")
    with pytest.raises(DataError, match="foreign order") as caught:
        check_device_fields("split `val`", {"x": FieldSpec(foreign, ())}, frozenset({"x"}))
    assert "astype(np.float32)" in caught.value.fix


def test_device_fields_accept_the_dtypes_of_accelerators():
    bfloat16 = pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes, which JAX brings").bfloat16
    check_device_fields("split `val`", {"x": FieldSpec(np.dtype(bfloat16), ())}, frozenset({"x"}))
