"""Reading and writing arrays batch by batch."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_cli.analysis import OutputFile
from nitro_cli.cli.prediction_files import InputFields
from nitro_cli.errors import ConfigError, DataError, NotFoundError


@settings(max_examples=25, deadline=None)
@given(
    samples=st.integers(1, 9),
    size=st.integers(1, 10),
    row=st.lists(st.integers(1, 3), max_size=2),
    dtype=st.sampled_from(["f4", "i8", "u1", ">f8", "?", "c8"]),
    fortran=st.booleans(),
    compressed=st.booleans(),
)
def test_batches_together_are_the_array_that_numpy_reads(
    tmp_path_factory, samples, size, row, dtype, fortran, compressed
):
    path = tmp_path_factory.mktemp("input") / "in.npz"
    array = np.arange(samples * int(np.prod(row)) or 1).reshape(samples, *row).astype(dtype)
    (np.savez_compressed if compressed else np.savez)(path, x=np.asfortranarray(array) if fortran else array)
    batches = list(InputFields(path, ["x"]).batches(size))
    assert all(len(batch["x"]) == size for batch in batches[:-1])
    np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in batches]), array)


def test_a_missing_field_a_wrong_length_and_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.zeros(4), o=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="z"):
        InputFields(tmp_path / "a.npz", ["z"])
    with pytest.raises(DataError, match="lengths"):
        InputFields(tmp_path / "a.npz", ["x", "y"])
    with pytest.raises(DataError, match="Python objects"):
        InputFields(tmp_path / "a.npz", ["o"])
    with pytest.raises(NotFoundError):
        InputFields(tmp_path / "b.npz", ["x"])
    (tmp_path / "c.npz").write_text("no archive")
    with pytest.raises(DataError, match=r"no \.npz"):
        InputFields(tmp_path / "c.npz", ["x"])


@pytest.mark.parametrize(
    ("dtype", "held"),
    [
        ("bfloat16", "float32"),
        ("float8_e4m3fn", "float32"),
        ("float8_e5m2", "float32"),
        ("float8_e8m0fnu", "float32"),
        ("float4_e2m1fn", "float32"),
        ("int4", "int8"),
        ("uint4", "uint8"),
    ],
)
def test_a_dtype_that_numpys_files_do_not_know_is_written_in_one_that_holds_it_and_told(tmp_path, dtype, held):
    values = np.array([[1, 2], [1, 4]]).astype(getattr(ml_dtypes, dtype))
    with OutputFile(tmp_path / "out.npz") as file:
        file.write({"a": values, "b": np.zeros((2, 1))})
        file.write({"a": values, "b": np.zeros((2, 1))})
    with np.load(tmp_path / "out.npz") as found:
        assert found["a"].dtype == held
        assert found["a"].tolist() == values.astype(np.float64).tolist() * 2
    assert file.document()["a"] == {"shape": (4, 2), "dtype": held, "computed_in": dtype}
    assert file.document()["b"] == {"shape": (4, 1), "dtype": "float64"}
    assert f"a is {dtype}, which .npz files do not know: it is written as {held}" in file.told()


def test_an_input_whose_dtype_numpy_lost_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3), ml_dtypes.bfloat16))
    with pytest.raises(DataError, match=r"raw bytes, \|V2") as caught:
        InputFields(tmp_path / "a.npz", ["x"])
    assert "float32" in str(caught.value)


def test_an_npy_is_the_one_field_and_two_fields_need_names(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6).reshape(3, 2))
    (batch,) = InputFields(tmp_path / "x.npy", ["image"]).batches(5)
    assert batch["image"].tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(DataError, match="one array"):
        InputFields(tmp_path / "x.npy", ["image", "mask"])


def test_fields_beside_are_read_in_the_same_batches_and_are_no_inputs(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3), age=np.array([1, 2, 3]))
    source = InputFields(tmp_path / "a.npz", ["x"], ["mask"], ["age", "x"])
    assert [batch["age"].tolist() for batch in source.batches(2)] == [[1, 2], [3]]
    assert set(source.types()) == {"x"}
    with pytest.raises(DataError, match="holds no aeg") as caught:
        InputFields(tmp_path / "a.npz", ["x"], beside=["aeg"])
    assert caught.value.nearest == ("age",)


def test_optional_fields_are_read_where_they_are_there(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3), mask=np.ones(3))
    assert InputFields(tmp_path / "a.npz", ["x"], ["mask", "weight"]).fields == ("x", "mask")


def test_the_output_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "out.npz"
    with OutputFile(path) as file:
        file.write({"a": np.ones((3, 2), np.float32), "b/c": np.arange(3)})
        assert not path.exists()
        file.write({"a": np.zeros((2, 2), np.float32), "b/c": np.arange(3, 5)})
    with np.load(path) as held:
        assert held["a"].tolist() == [[1, 1]] * 3 + [[0, 0]] * 2
        assert held["b/c"].tolist() == [0, 1, 2, 3, 4]
    batches = ({"a": np.ones((6, width))} for width in (2, 3))
    with pytest.raises(DataError, match="change their shape"), OutputFile(tmp_path / "broken.npz") as file:
        list(map(file.write, batches))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.npz"]


def test_a_text_may_be_longer_than_all_before_and_a_value_stands_for_the_whole_file(tmp_path):
    with OutputFile(tmp_path / "out.npz") as file:
        file.write({"name": np.array([["a", "bc"]]), "meta": np.array("{}")})
        file.write({"name": np.array([["longer", "d"], ["", "even longer"]])})
    with np.load(tmp_path / "out.npz") as held:
        assert held["name"].tolist() == [["a", "bc"], ["longer", "d"], ["", "even longer"]]
        assert held["meta"].item() == "{}"
    assert list(file.document()) == ["name"]


def test_an_existing_output_needs_force(tmp_path):
    path = tmp_path / "out.npz"
    path.write_bytes(b"mine")
    with pytest.raises(ConfigError, match="exists"):
        OutputFile(path)
    with OutputFile(path, force=True) as file:
        file.write({"a": np.ones(1)})
    assert np.load(path)["a"].tolist() == [1.0]
    with pytest.raises(ConfigError, match=r"\.npz"):
        OutputFile(tmp_path / "out.csv")


def test_an_output_that_is_a_directory_is_refused_before_anything_is_computed(tmp_path):
    (tmp_path / "out.npz").mkdir()
    for force in (False, True):
        with pytest.raises(ConfigError, match="is a directory"):
            OutputFile(tmp_path / "out.npz", force=force)


def test_an_output_that_is_a_link_to_nothing_is_refused_and_stays(tmp_path):
    (tmp_path / "out.npz").symlink_to(tmp_path / "elsewhere.npz")
    for force in (False, True):
        with pytest.raises(ConfigError, match="a link to nothing"):
            OutputFile(tmp_path / "out.npz", force=force)
    assert [item.name for item in tmp_path.iterdir()] == ["out.npz"]
