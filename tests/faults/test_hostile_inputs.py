"""Files from somebody else, given to predict and to bundles: an error that names file and place, never a traceback."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from nitro_cli import Nitro
from nitro_cli.cli.app import app
from nitro_cli.cli.prediction_files import InputFields
from nitro_cli.errors import DataError, ExitCode, NitroError, NotFoundError, StorageError
from nitro_cli.export import BundleError, DamagedBundleError, bundle_info, load, load_bundle, verify_bundle
from tests.export.served import Scores


def npy(header: bytes, data: bytes = b"") -> bytes:
    padded = header + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + data


HEADERS = {
    "pickled": b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
    "a list": b"[1, 2, 3]",
    "no shape": b"{'descr': '<f4', 'fortran_order': False}",
    "huge": b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 1099511627776)}",
    "huge fortran": b"{'descr': '<f4', 'fortran_order': True, 'shape': (1099511627776, 1099511627776)}",
    "longer than the file": b"{'descr': '<f4', 'fortran_order': False, 'shape': (1073741824, 100)}",
    "negative": b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2)}",
    "three below none": b"{'descr': '<f4', 'fortran_order': False, 'shape': (-3, 2)}",
    "an open bracket": b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2}",
    "never closed": b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2",
    "a bool": b"{'descr': '<f4', 'fortran_order': False, 'shape': (True, 2)}",
    "deep": b"{'descr': '<f4', 'fortran_order': False, 'shape': " + b"(" * 3000 + b")" * 3000 + b"}",
    "no dtype": b"{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,)}",
    "a call": b"__import__('os').system('touch ran')",
    "no literal": b"\xff\xfe\x00",
}


def archive(path: Path, content: bytes, **words: Any) -> Path:
    with zipfile.ZipFile(path, "w", **words) as made:
        made.writestr("x.npy", content)
    return path


def read(path: Path) -> list[dict[str, np.ndarray]]:
    return list(InputFields(path, ["x"]).batches(2))


@pytest.mark.parametrize("kind", ["npz", "npy"])
@pytest.mark.parametrize("header", sorted(HEADERS))
def test_an_array_that_no_array_is_is_refused_by_file_and_field(tmp_path: Path, header: str, kind: str) -> None:
    path = tmp_path / f"data.{kind}"
    content = npy(HEADERS[header], b"\0" * 64)
    _ = archive(path, content) if kind == "npz" else path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value.where).startswith(str(path))
    assert not Path("ran").exists()


def test_an_archive_that_is_damaged_encrypted_or_packed_in_an_unknown_way_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(64.0, dtype=np.float32))
    path = archive(tmp_path / "data.npz", buffer.getvalue())
    whole = path.read_bytes()
    at = whole.index(b"x.npy") + 200
    central = whole.index(b"PK\x01\x02")
    damaged = {
        "a changed byte": whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
        "encrypted": whole[:6] + b"\x01" + whole[7 : central + 8] + b"\x01" + whole[central + 9 :],
        "unknown compression": whole[:8] + b"\x63" + whole[9 : central + 10] + b"\x63" + whole[central + 11 :],
        "cut": whole[: len(whole) // 2],
        "empty": b"",
    }
    for name, content in damaged.items():
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            read(path)
        assert str(path) in str(caught.value.where), name


@pytest.mark.parametrize("kind", ["stored", "deflated", "npy"])
def test_any_changed_byte_is_no_more_than_an_error_of_the_input(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("data.npy" if kind == "npy" else "data.npz")
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    if kind == "npy":
        np.save(path, values)
    else:
        (np.savez if kind == "stored" else np.savez_compressed)(path, x=values)
    whole, chance = path.read_bytes(), random.Random(0)
    refused = []
    for _ in range(300):
        at = chance.randrange(len(whole))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ chance.randrange(1, 256)]) + whole[at + 1 :])
        try:
            read(path)
        except DataError as error:
            refused.append(str(error.where))
    assert len(refused) > 50
    assert all(where.startswith(str(path)) for where in refused)


def test_an_input_without_samples_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((0, 2)))
    with pytest.raises(DataError, match=r"the input holds no samples") as caught:
        read(tmp_path / "data.npz")
    assert "x: (0, 2)" in str(caught.value)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "loop.npz").symlink_to("loop.npz")
    for name, told in {
        "pipe.npz": "it is a named pipe",
        "folder.npz": "it is a directory",
        "loop.npz": "symbolic links",
        "n" * 300 + ".npz": "too long",
    }.items():
        with pytest.raises(DataError, match=told):
            read(tmp_path / name)
    with pytest.raises(NotFoundError):
        read(tmp_path / "absent.npz")


def test_the_other_byte_order_is_read_as_the_numbers_it_holds(tmp_path: Path) -> None:
    values = np.arange(6.0).reshape(3, 2)
    np.savez(tmp_path / "data.npz", x=values.astype(">f4"))
    found = np.concatenate([batch["x"] for batch in read(tmp_path / "data.npz")])
    np.testing.assert_array_equal(found, values)
    assert found.dtype == np.dtype(np.float32)
    assert found.dtype.isnative


@pytest.mark.parametrize(
    "words",
    [
        *(["evaluate"], ["resume"], ["runs"], ["history"], ["average"]),
        *(["checkpoint", "verify"], ["checkpoint", "info"]),
    ],
)
def test_a_name_that_no_file_has_is_not_found_in_every_command(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [*words, "n" * 300], prog_name="nitro")
    assert result.exit_code == ExitCode.NOT_FOUND, result.output
    assert "there can be no file or directory of this name" in result.output


class Drawn(Scores):
    def visualize(self, outputs: Any, *, x: Any) -> Any:
        return x

    def save_figure(self, figure: Any, stem: str) -> str:
        path = Path(f"{stem}.txt")
        path.write_text("drawn")
        return str(path)


def test_a_picture_is_not_drawn_through_a_link_of_a_run(tmp_path: Path) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    nitro = Nitro(Drawn(run_dir=tmp_path / "runs"))
    folder = tmp_path / "runs" / "viz"
    folder.mkdir(parents=True)
    (folder / "val_000.txt").symlink_to(victim)
    with pytest.raises(StorageError, match="through a link"):
        nitro.render(split="val")
    shutil.rmtree(folder)
    folder.symlink_to(tmp_path)
    with pytest.raises(StorageError, match="through a link"):
        nitro.render(split="val")
    assert victim.read_text() == "mine"
    assert not list(tmp_path.glob("val_*"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Nitro(Scores(), data={}).export(dir=tmp_path_factory.mktemp("made"), name="bundle")


@pytest.fixture
def bundle(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "bundle"))


WRONG: list[Any] = [None, True, -1, 0.5, 10**400, "", "../../etc/passwd", "n" * 5000, "a\0b", [], [1], {}, {"a": 1}]


def sealed(bundle: Path, change: Any) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    change(manifest)
    manifest["seal"] = load.manifest_seal({key: value for key, value in manifest.items() if key != "seal"})
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def test_a_manifest_of_another_form_is_damaged_whatever_key_it_is(exported: Path, bundle: Path) -> None:
    keys = [key for key in json.loads((exported / "manifest.json").read_text()) if key not in ("x64", "seal")]
    for key in keys:
        for value in (*WRONG, "missing"):

            def change(manifest: dict[str, Any], key: str = key, value: Any = value) -> None:
                if value == "missing":
                    del manifest[key]
                else:
                    manifest[key] = value

            shutil.copy(exported / "manifest.json", bundle / "manifest.json")
            if key in ("postprocess", "patch") and value is None:
                continue  # there is none
            sealed(bundle, change)
            try:
                verify_bundle(bundle)
            except BundleError:
                continue
            assert key in ("nitro", "jax", "exported_at", "platforms", "batch_sizes"), (key, value)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"kind": "nitro-bundle", "format": ' + b"1" * 5000 + b"}",
        b'{"kind": "nitro-bundle", "format": Infinity}',
        b"\xff\xfe",
        b"[]",
        b"3",
        b'{"kind": "nitro-bundle", "format": true}',
    ],
)
def test_a_manifest_that_is_no_document_is_damaged(bundle: Path, content: bytes) -> None:
    (bundle / "manifest.json").write_bytes(content)
    for read_it in (verify_bundle, bundle_info, load_bundle):
        with pytest.raises(DamagedBundleError, match=r"manifest\.json"):
            read_it(bundle)
    (bundle / "manifest.json").unlink()
    os.mkfifo(bundle / "manifest.json")
    with pytest.raises(DamagedBundleError, match="not a regular file"):
        verify_bundle(bundle)


@pytest.mark.parametrize("name", ["weights.safetensors", "provenance.json", "config.toml", "program.bin"])
def test_a_file_of_a_bundle_that_is_a_pipe_or_a_link_is_refused(bundle: Path, name: str, tmp_path: Path) -> None:
    (bundle / name).rename(tmp_path / name)
    (bundle / name).symlink_to(tmp_path / name)
    with pytest.raises(DamagedBundleError):
        verify_bundle(bundle)
    (bundle / name).unlink()
    os.mkfifo(bundle / name)
    with pytest.raises(DamagedBundleError, match=name):
        verify_bundle(bundle)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b"[]",
        b'{"w": 3}',
        b'{"w": {"dtype": "F32", "shape": [1099511627776, 1099511627776], "data_offsets": [0, 4]}}',
        b'{"w": {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 4]}}',
        b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}',
        b'{"w": {"dtype": "nonsense", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"w": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}',
    ],
)
def test_weights_of_a_wrong_form_are_damaged(tmp_path: Path, header: bytes) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    with pytest.raises(DamagedBundleError, match="weights"):
        load.read_safetensors(file)
    assert not issubclass(DamagedBundleError, NitroError)
