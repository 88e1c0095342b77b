"""Every document of a run directory with every key attacked: an error that names the file, or values that fit."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nitro_cli.checkpoints import (
    ResumeMeta,
    prune,
    record_info,
    rescan,
    resolve_resume,
    resolve_source,
    resume_meta,
    runs,
    verify,
)
from nitro_cli.checkpoints.documents import ManifestDocument, RecordDocument, RecordEntry, RunDocument
from nitro_cli.checkpoints.json_text import BLANK_DIGEST, seal
from nitro_cli.cli.app import app
from nitro_cli.errors import IncompatibleError, IntegrityError, NitroError, NitroWarning
from nitro_cli.metrics import History
from nitro_cli.metrics.row_document import HistoryRow
from tests.faults.hostile import TEXTS, field_places, mutations, places, schema_fields
from tests.faults.test_kill_matrix import ROOT

THEIRS = ("fields", "graphconst", "graphconst_sha256", "versions", "origins", "config", "derived", "log_bytes")
"""Parts of a record that hold what an experiment says: attacked as wholes."""


@pytest.fixture(scope="module")
def root(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a finished run, beside a thesis."""
    place = tmp_path_factory.mktemp("hostile")
    shutil.copytree(uninterrupted / ROOT, place / "runs")
    (place / "thesis").mkdir()
    (place / "thesis" / "chapter").write_text("years")
    return place / "runs"


@pytest.fixture(scope="module")
def record(root: Path) -> Path:
    """Its newest record."""
    (summary,) = runs(root)
    return root / max(summary.checkpoints, key=lambda entry: entry.step).path


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@contextmanager
def kept(root: Path) -> Iterator[None]:
    """Afterwards the run is as it was, and nothing else in its folder was touched or made."""
    whole = content(root)
    try:
        yield
    finally:
        for name in content(root).keys() - whole.keys():
            (root / name).unlink()
        for name, before in whole.items():
            (root / name).write_bytes(before)
    assert {name for name in content(root.parent) if not name.startswith("runs/")} == {"thesis/chapter"}
    assert (root.parent / "thesis" / "chapter").read_text() == "years"


def sealed(document: dict[str, Any]) -> bytes:
    return seal(json.dumps({**document, "sha256": BLANK_DIGEST}))


def attack(file: Path, made: bytes, reader: Callable[[], Any]) -> bool:
    """Read a file with this content; whether it was accepted. An error of nitro's names the file."""
    file.write_bytes(made)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NitroWarning)
        try:
            reader()
        except (IntegrityError, IncompatibleError) as error:
            refused: NitroError = error
        else:
            return True
    assert str(file) in f"{refused.where} {refused.why}", refused
    return False


def whole_manifest(root: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((root / "manifest.json").read_text())
    (run,) = document["runs"]
    document["runs"][run]["displaced"] = [f"{run}/checkpoints/old"]
    document["entries"][0] |= {"score": None, "nonfinite": {"score": "nan"}}
    return document


def test_a_manifest(root: Path) -> None:
    file, document = root / "manifest.json", whole_manifest(root)
    at = [place for place in places(document) if place[0] != "sha256"]
    (run,) = document["runs"]
    assert schema_fields(ManifestDocument.model_json_schema()) <= field_places(at)

    def read() -> None:
        (summary,) = runs(root)
        assert json.loads(json.dumps(summary.as_json(), allow_nan=False))["id"] == run

    with kept(root):
        assert attack(file, sealed(document), read)
        accepted = [(place, name) for place, name, made in mutations(document, at) if attack(file, sealed(made), read)]
        assert ("entries", 0, "path") not in {place for place, _ in accepted}
        assert not any(name in ("upwards", "absolute") for place, name in accepted if place[-1] in ("run", "path", 0))
        for name, text in TEXTS.items():
            assert not attack(file, text, read), name


def test_a_manifest_whose_digest_does_not_fit_is_never_believed(root: Path) -> None:
    file = root / "manifest.json"
    whole = file.read_bytes()
    with kept(root):
        for at in range(0, len(whole), 7):
            changed = bytearray(whole)
            changed[at] ^= 1
            assert not attack(file, bytes(changed), lambda: runs(root)), changed[max(0, at - 20) : at + 20]


def test_what_a_manifest_lists_is_the_most_that_is_deleted(root: Path) -> None:
    file, document = root / "manifest.json", whole_manifest(root)
    (run,) = document["runs"]
    at: list[tuple[str | int, ...]] = [
        ("runs", run, "displaced"),
        ("runs", run, "displaced", 0),
        ("entries", 0, "path"),
    ]
    with kept(root):
        for _, _, made in mutations(document, at):
            attack(file, sealed(made), lambda: prune(root, delete=True))
            assert len(list(root.glob("*/checkpoints/*"))) == 2


def whole_record(record: Path) -> dict[str, Any]:
    """The record with few leaves, and with every key that a record may have."""
    document: dict[str, Any] = json.loads((record / "record.json").read_text())
    array = next(spec for spec in document["leaves"].values() if spec["kind"] == "array")
    piece = {"store": "arrays-1", "start": [0], "shape": [4], "kind": "array", "key": "0"}
    pieces = {"dtype": "float32", "shape": [4], "kind": "pieces", "pieces": [piece]}
    value = {"dtype": "float", "shape": [], "kind": "value", "value": 0.5}
    document["leaves"] = {"params/a": array, "params/b": pieces, "extra/c": value}
    document["files"] = dict(list(document["files"].items())[:1])
    document["entry"] |= {"score": None, "nonfinite": {"score": "inf"}}
    document["meta"]["history"] = document["meta"]["history"][:1]
    document["meta"]["history"][0] |= {
        "arrays": {"table": "float32"},
        "table": [1.0, None],
        "nonfinite": {"table[1]": "nan"},
    }
    document["meta"]["w0"] = {"path": "/somewhere/else", "text": "another record", "ema": False}
    document["meta"]["averaged_from"] = {
        "spec": "average(last(2))", "run": "0a1b2c3d", "directory": "runs", "files": ["a"], "epochs": [1], "steps": [5],
        "state": "a", "weights": "raw",
    }  # fmt: skip
    return document


def test_a_record(record: Path) -> None:
    file, document = record / "record.json", whole_record(record)
    at = [place for place in places(document) if place[0] != "sha256" and not set(place[:-1]) & set(THEIRS)]
    for schema in (RecordDocument, RecordEntry, ResumeMeta):
        assert schema_fields(schema.model_json_schema()) <= field_places(at), schema

    def read() -> None:
        info = record_info(record)
        meta = resume_meta(info.meta, record)
        History.from_json_rows(meta.history, origin=f"{file}: history")
        assert info.size >= 0
        assert info.parameters >= 0

    with kept(record.parents[2]):
        assert attack(file, sealed(document), read)
        accepted = {(place, name) for place, name, made in mutations(document, at) if attack(file, sealed(made), read)}
        for place, wrong in (
            (("leaves", "params/a", "shape"), "shape"),
            (("leaves", "params/a", "dtype"), "text"),
            (("leaves", "params/b", "pieces", 0, "store"), "upwards"),
            (("meta", "step"), "real"),
            (("meta", "epoch_loss"), "missing"),
            (("entry", "score"), "text"),
        ):
            assert (place, wrong) not in accepted
        for name, text in TEXTS.items():
            assert not attack(file, text, read), name


def test_a_run_description(root: Path, record: Path) -> None:
    file = record.parents[1] / "run.json"
    document = json.loads(file.read_text())
    document |= {"status": "completed", "parent": None, "seed": 1, "created": 1.0, "stop_cause": None}
    at = [(key,) for key in document]
    assert schema_fields(RunDocument.model_json_schema()) <= field_places(at)

    def read() -> None:
        (root / "manifest.json").unlink(missing_ok=True)
        rescan(root)
        (summary,) = runs(root)
        json.dumps(summary.as_json(), allow_nan=False)

    with kept(root):
        for _, name, made in mutations(document, at):
            if name in ("missing", "null", "large", "surrogate", "deep", "upwards", "largest real"):
                assert attack(file, json.dumps(made).encode(), read)
        for text in TEXTS.values():
            assert attack(file, text, read), "a run is known by its records too"


def test_a_history_row(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    row = {"epoch": 2, "step": 10, "loss": None, "acc": 0.5, "table": [[1, 2], [3, None]]}
    row |= {"monitor": {"value": 0.5, "status": "ok", "improved": True}}
    row |= {"arrays": {"table": "float32"}, "nonfinite": {"loss": "inf", "table[1,1]": "nan"}}
    at = list(places(row))
    assert schema_fields(HistoryRow.model_json_schema()) <= field_places(at)
    first = b'{"epoch":1,"step":5,"loss":1.0}\n'

    def read() -> None:
        history = History.read_jsonl(file, monitor=("loss", "min"))
        assert repr(history)
        json.dumps(history.json_rows(), allow_nan=False)
        history.to_csv()
        assert history.best is None or history.best["epoch"] in (1, 2)

    assert attack(file, first + json.dumps(row).encode() + b"\n", read)
    for _, _, made in mutations(row, at):
        attack(file, first + json.dumps(made).encode() + b"\n", read)
    for name, text in TEXTS.items():
        if name != "empty":
            assert not attack(file, first + text + b"\n" + first, read), name


@pytest.mark.parametrize("document", ["manifest.json", "record.json", "run.json", "history.jsonl"])
def test_no_command_shows_a_traceback_or_touches_anything_else(
    root: Path, record: Path, document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    monkeypatch.setenv("NITRO_NO_PLUGINS", "1")
    place = {"manifest.json": root, "record.json": record}.get(document, record.parents[1])
    commands = [
        ["runs", "runs", "--checkpoints"],
        ["history", "runs"],
        ["checkpoint", "info", record.relative_to(root.parent).as_posix(), "--leaves"],
        ["checkpoint", "verify", "runs"],
        ["checkpoint", "prune", "runs", "--yes"],
        ["compare", "runs"],
    ]
    with kept(root):
        for name, text in TEXTS.items():
            (place / document).write_bytes(text)
            for words in commands:
                done = CliRunner().invoke(app, words)
                told = done.output + done.stderr
                assert done.exception is None or isinstance(done.exception, SystemExit), (name, words)
                assert "Traceback" not in told, (name, words)
                assert "defect" not in told, (name, words, told)
                if document == "manifest.json":
                    assert done.exit_code != 0 or words[1] == "info", (name, words)


@pytest.mark.parametrize(
    "source", ["x" * 300, f"{'x' * 300}/record.json", "loop", "pipe", "a\x00b", "latest:" + "y" * 300]
)
def test_a_name_that_no_file_can_have_and_a_loop_of_links_are_no_checkpoint(
    root: Path, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    for find in (resolve_source, resolve_resume):
        with pytest.raises(NitroError):
            find(source, root)


def test_a_whole_run_is_found_whole(root: Path) -> None:
    assert all(outcome.ok for outcome in verify(root))
