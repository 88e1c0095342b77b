from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from nitro_cli.checkpoints import (
    CheckpointRecord,
    RecordMeta,
    migrations,
    read_record,
    record_info,
    verify_record,
    write_record,
)
from nitro_cli.checkpoints.json_text import dump_sealed, load_sealed
from nitro_cli.errors import CheckpointNotFoundError, ConfigError, IncompatibleError, IntegrityError

DTYPES = [
    *(
        "bool",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
    ),
    *("complex64", "complex128", "longdouble", ">f4", ">i8", "datetime64[s]"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3", "float8_e3m4", "float8_e8m0fnu", "float4_e2m1fn"),
    *("float6_e2m3fn", "int4", "uint4", "int2", "uint2"),
]


def every_dtype() -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name in DTYPES:
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        source = np.array([0, 1, 1, 0, 1, 0]).reshape(2, 3)
        leaves[f"a/{name}"] = source.astype(dtype)
        leaves[f"scalar/{name}"] = source[0, 1].astype(dtype).reshape(())
        leaves[f"empty/{name}"] = np.zeros((2, 0, 3), dtype)
    return leaves


def assert_same(found: Any, expected: Any) -> None:
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path: Path) -> None:
    leaves = every_dtype()
    bits = np.arange(2**16, dtype=np.uint16)
    leaves["all/bfloat16"] = bits.view(ml_dtypes.bfloat16)
    leaves["all/float16"] = bits.view(np.float16)
    leaves["all/float8"] = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    leaves["all/int4"] = np.arange(-8, 8).astype(ml_dtypes.int4)
    leaves["nan/payload"] = np.array([0x7FC00001, 0xFFC12345, 0x80000000], np.uint32).view(np.float32)
    leaves["transposed"] = np.arange(6).reshape(2, 3).T
    leaves["strided"] = np.arange(20)[::3]
    leaves["strided bytes"] = np.arange(9, dtype=np.longdouble)[::3]
    leaves["transposed bytes"] = np.arange(6, dtype=np.longdouble).reshape(2, 3).T
    write_record(tmp_path / "r", RecordMeta(), leaves)
    found = read_record(tmp_path / "r").arrays
    assert list(found) == list(leaves)
    for path, leaf in leaves.items():
        assert_same(found[path], leaf)


def test_any_path_text_is_kept(tmp_path: Path) -> None:
    paths = ["a/b/c", "a.b", "..", "../../x", "ä/ß/日本", "a b", "", "0", "a/b", "CON", "\ud800", "a" * 500, 'q"\\\n']
    leaves = {path: np.array(i) for i, path in enumerate(paths)}
    write_record(tmp_path / "r", RecordMeta(), leaves)
    assert {path: int(leaf) for path, leaf in read_record(tmp_path / "r").arrays.items()} == {
        path: i for i, path in enumerate(paths)
    }


def test_jax_arrays_and_keys_come_back_as_numpy(tmp_path: Path) -> None:
    key = jax.random.key_data(jax.random.key(3))
    weights = jnp.arange(4, dtype=jnp.bfloat16)
    write_record(tmp_path / "r", RecordMeta(), {"key": key, "w": weights, "rbg": np.array([1, 2, 3, 255], np.uint8)})
    found = read_record(tmp_path / "r").arrays
    assert_same(found["key"], np.asarray(key))
    assert_same(found["w"], np.asarray(weights))
    assert found["rbg"].dtype == np.uint8


def test_python_values_come_back_as_they_were(tmp_path: Path) -> None:
    values = {"i": 2**80, "f": 0.1, "nan": float("nan"), "inf": float("-inf"), "b": True, "n": None, "s": "text"}
    write_record(tmp_path / "r", RecordMeta(), values)
    found = read_record(tmp_path / "r").arrays
    assert str(found) == str(values)
    assert not (tmp_path / "r" / "arrays").exists()


def test_metadata_comes_back_with_tuples_as_lists(tmp_path: Path) -> None:
    write_record(tmp_path / "r", RecordMeta(position=3, pair=(1, 2), score=float("inf"), rows=[{"loss": 1.5}]), {})
    assert read_record(tmp_path / "r").meta.as_json() == {
        "position": 3,
        "pair": [1, 2],
        "score": float("inf"),
        "rows": [{"loss": 1.5}],
    }


def test_only_the_asked_for_leaves_are_loaded(tmp_path: Path) -> None:
    write_record(tmp_path / "r", RecordMeta(), {"params/w": np.ones(2), "opt/m": np.zeros(2), "params/n": 3})
    assert set(read_record(tmp_path / "r", prefixes=("params/",)).arrays) == {"params/w", "params/n"}


def test_a_record_can_be_written_and_read_under_a_running_event_loop(tmp_path: Path) -> None:
    original = asyncio.run

    async def notebook() -> Any:
        write_record(tmp_path / "r", RecordMeta(), {"w": np.arange(3)})
        return read_record(tmp_path / "r").arrays["w"]

    assert asyncio.run(notebook()).tolist() == [0, 1, 2]
    # nest_asyncio would have replaced it.
    assert asyncio.run is original


@pytest.mark.parametrize(
    "leaf",
    [jax.random.key(0), np.array(["a"]), np.array([object()]), [1, 2], np.zeros(2, [("a", "f4")])],
    ids=["typed key", "strings", "objects", "list", "structured"],
)
def test_a_leaf_that_cannot_be_saved_is_refused_by_name(tmp_path: Path, leaf: Any) -> None:
    with pytest.raises(ConfigError, match="params/odd"):
        write_record(tmp_path / "r", RecordMeta(), {"params/odd": leaf})
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    write_record(tmp_path / "r", RecordMeta(n=1), {})
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("r", "empty", "dangling"):
        with pytest.raises(ConfigError, match="overwrite"):
            write_record(tmp_path / name, RecordMeta(n=2), {})
    assert read_record(tmp_path / "r").meta.as_json() == {"n": 1}


def files_of(record: Path) -> list[str]:
    return sorted(p.relative_to(record).as_posix() for p in record.rglob("*") if p.is_file())


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pristine") / "r"
    write_record(path, RecordMeta(epoch=3), {"params/w": np.arange(300.0), "state/n": np.array(3), "opt/count": 7})
    return path


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def empty(file: Path) -> None:
    file.write_bytes(b"")


def delete(file: Path) -> None:
    file.unlink()


def link(file: Path) -> None:
    """Replace it by a link to the same bytes elsewhere."""
    outside = next(p for p in file.parents if p.name == "copy").with_name("elsewhere")
    file.replace(outside)
    file.symlink_to(outside)


@pytest.mark.parametrize("damage", [flip, truncate, lengthen, empty, delete, link])
def test_damage_to_any_file_is_found_and_the_file_named(tmp_path: Path, pristine: Path, damage: Any) -> None:
    names = files_of(pristine)
    assert len(names) >= 5
    for name in names:
        copy = tmp_path / "copy"
        shutil.copytree(pristine, copy)
        damage(copy / name)
        with pytest.raises(IntegrityError) as caught:
            read_record(copy)
        assert name in str(caught.value)
        with pytest.raises(IntegrityError):
            verify_record(copy)
        shutil.rmtree(copy)


def test_a_listed_file_that_is_no_plain_file_is_refused_unread(tmp_path: Path) -> None:
    record = write_record(tmp_path / "r", RecordMeta(), {})
    (record / "inner").write_bytes(b"")
    digest = hashlib.sha256(b"").hexdigest()
    reseal(record, files={"data": {"size": 0, "sha256": digest}})
    (record / "data").symlink_to(record / "inner")
    with pytest.raises(IntegrityError):
        verify_record(record)
    (record / "data").unlink()
    # Opening a pipe would wait for a writer for ever.
    os.mkfifo(record / "data")
    with pytest.raises(IntegrityError):
        verify_record(record)


def test_every_byte_of_the_small_files_is_covered(tmp_path: Path, pristine: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(pristine, copy)
    for name in files_of(copy):
        content = (copy / name).read_bytes()
        for place in range(0, len(content), max(1, len(content) // 15)):
            broken = bytearray(content)
            broken[place] ^= 0x10
            (copy / name).write_bytes(bytes(broken))
            with pytest.raises(IntegrityError):
                verify_record(copy)
        (copy / name).write_bytes(content)
    verify_record(copy)


def test_a_lost_array_directory_is_an_integrity_error(tmp_path: Path, pristine: Path) -> None:
    shutil.copytree(pristine, tmp_path / "r")
    shutil.rmtree(tmp_path / "r" / "arrays")
    with pytest.raises(IntegrityError, match="damaged"):
        read_record(tmp_path / "r")


def reseal(record: Path, **changes: Any) -> None:
    """What a careless or a hostile editor would do: change record.json and make its digest right."""
    document = load_sealed((record / "record.json").read_bytes())
    document.pop("sha256")
    (record / "record.json").write_bytes(dump_sealed({**document, **changes}))


def test_a_leaf_of_another_dtype_or_shape_is_refused_with_both_sides(tmp_path: Path) -> None:
    for i, (key, value) in enumerate({"dtype": "float64", "shape": [3, 2]}.items()):
        record = write_record(tmp_path / f"r{i}", RecordMeta(), {"params/w": np.zeros((2, 3), np.float32)})
        leaves = json.loads((record / "record.json").read_bytes())["leaves"]
        leaves["params/w"][key] = value
        reseal(record, leaves=leaves)
        with pytest.raises(IntegrityError, match="params/w") as caught:
            read_record(record)
        assert "float32[2, 3]" in (caught.value.why or "")


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "arrays/../../outside"])
def test_a_listed_file_outside_the_record_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    record = write_record(tmp_path / "r", RecordMeta(), {})
    reseal(record, files={name: {"size": 6, "sha256": "0" * 64}})
    with pytest.raises(IntegrityError, match="leads outside"):
        read_record(record)


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    record = write_record(tmp_path / "r", RecordMeta(), {})
    reseal(record, format=99, framework="9.9.9")
    with pytest.raises(IncompatibleError, match="format 99") as caught:
        read_record(record)
    assert "9.9.9" in (caught.value.why or "")
    assert caught.value.exit_code == 4


def test_an_older_format_goes_through_each_migration_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = write_record(tmp_path / "r", RecordMeta(epoch=1), {})
    reseal(record, format=1)
    monkeypatch.setattr(migrations, "RECORD_FORMAT", 3)

    def to_2(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "meta": {**document["meta"], "position": 0}}

    def to_3(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "meta": {**document["meta"], "twice": document["meta"]["position"] + 2}}

    monkeypatch.setattr(migrations, "RECORD_MIGRATIONS", {1: to_2, 2: to_3})
    assert read_record(record).meta.as_json() == {"epoch": 1, "position": 0, "twice": 2}
    assert record_info(record).format == 1


def test_a_record_of_format_2_says_what_it_said_by_silence_and_by_null(tmp_path: Path) -> None:
    record = write_record(tmp_path / "r", RecordMeta(step=4), {})
    plateau = {"metric": "loss", "mode": "min", "scale": 0.5, "best": 1.0, "bad_epochs": 0, "cooldown_left": 0}
    old = {"step": 4, "anchors": None, "rules": {"early_stop": None, "schedules": {"plateaus": {"lr": plateau}}}}
    reseal(record, format=2, meta=old)
    meta = read_record(record).meta
    assert (meta.step, meta.steps_per_dispatch, meta.anchors) == (4, 1, {})
    assert meta.rules.schedules == {"plateaus": {"lr": {**plateau, "reductions": 0}}}
    reseal(record, format=3, meta=old)
    with pytest.raises(IntegrityError, match="is damaged") as caught:
        record_info(record)
    assert "anchors" in (caught.value.why or "")


def test_metadata_goes_through_strict_json_and_keeps_what_a_later_nitro_adds() -> None:
    meta = RecordMeta(epoch=3, metrics={"loss": float("inf")}, experiment={"name": "A", "import": "m:A"}, later=[1])
    text = json.dumps(CheckpointRecord(meta, {}).meta_as_json(), allow_nan=False)
    again = CheckpointRecord.from_json(json.loads(text), {"params/w": 1})
    assert (again.meta, again.arrays) == (meta, {"params/w": 1})
    assert again.meta.as_json()["later"] == [1]
    with pytest.raises(IncompatibleError, match="format 99"):
        CheckpointRecord.from_json({**json.loads(text), "format": 99}, {})
    with pytest.raises(IntegrityError, match="is damaged"):
        CheckpointRecord.from_json({**json.loads(text), "epoch": "third"}, {})
    with pytest.raises(ValueError, match="frozen"):
        meta.epoch = 4


def test_what_is_no_checkpoint_is_not_found(tmp_path: Path) -> None:
    write_record(tmp_path / "epoch-0001", RecordMeta(), {})
    (tmp_path / "other").mkdir()
    with pytest.raises(CheckpointNotFoundError) as caught:
        record_info(tmp_path / "epoch-001")
    assert caught.value.nearest == ("epoch-0001",)
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint"):
        record_info(tmp_path / "other")


def test_the_info_of_a_record_counts_without_reading_arrays(tmp_path: Path) -> None:
    record = write_record(
        tmp_path / "r", RecordMeta(a=1), {"params/w": np.zeros((3, 4), np.float32), "opt/m": np.zeros(9)}
    )
    (next((record / "arrays").rglob("d/*"))).unlink()
    info = record_info(record / "record.json")
    assert info.parameters == 12
    assert info.leaves["params/w"].nbytes == 48
    assert info.size > 48


def test_orbax_itself_can_read_the_arrays(tmp_path: Path) -> None:
    """Nothing locks a checkpoint in: its arrays are an ordinary orbax PyTree."""
    import orbax.checkpoint as ocp
    from etils import epath

    record = write_record(tmp_path / "r", RecordMeta(), {"params/w": np.arange(5, dtype=np.float32)})
    tree = ocp.PyTreeCheckpointHandler().restore(epath.Path(record / "arrays"))
    assert np.asarray(tree["0"]).tolist() == [0, 1, 2, 3, 4]
