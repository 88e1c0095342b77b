"""JSON Lines files: appended whole, mended after a kill, cut on resume, refused on a full disk."""

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.errors import IntegrityError, NitroWarning, StorageError
from nitro_cli.tracking import JsonLinesWriter, truncate_to


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def written(path, *objects):
    with JsonLinesWriter(path) as writer:
        for obj in objects:
            writer.write(obj)
    return writer


def test_every_line_is_in_the_file_at_once(tmp_path):
    writer = JsonLinesWriter(tmp_path / "deep" / "m.jsonl")
    for i in range(3):
        writer.write({"i": i})
        assert [row["i"] for row in rows(writer.path)] == list(range(i + 1))
        assert writer.size() == writer.path.stat().st_size
    writer.close()


def test_a_file_that_exists_is_continued(tmp_path):
    path = tmp_path / "m.jsonl"
    written(path, {"i": 0})
    with JsonLinesWriter(path) as writer:
        writer.write({"i": 1})
        assert writer.size() == path.stat().st_size
    assert rows(path) == [{"i": 0}, {"i": 1}]


def test_the_size_is_known_before_anything_is_written(tmp_path):
    assert JsonLinesWriter(tmp_path / "m.jsonl").size() == 0
    written(tmp_path / "m.jsonl", {"i": 0})
    assert JsonLinesWriter(tmp_path / "m.jsonl").size() == len('{"i":0}\n')


@given(st.data())
def test_a_kill_in_the_middle_of_a_line_loses_that_line_only(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("log") / "m.jsonl"
    written(path, {"i": 0, "é": "ü\n"}, {"i": 1})
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    # A line is whole once its closing brace is there, newline or not.
    kept = sum(cut >= end - 1 for end in (len(lines[0]), len(whole)))
    written(path, {"i": "next"})
    assert [row["i"] for row in rows(path)] == [*range(kept), "next"]


def test_a_torn_line_found_on_continuing_is_set_aside(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"i":0}\n{"i":1, "lo')
    written(path, {"i": 2})
    assert rows(path) == [{"i": 0}, {"i": 2}]
    assert (tmp_path / "m.jsonl.discarded").read_text() == '{"i":1, "lo\n'


def test_cutting_moves_the_lines_to_the_discarded_file(tmp_path):
    path = tmp_path / "m.jsonl"
    size = written(path, {"i": 0}, {"i": 1}).size()
    written(path, {"i": 2}, {"i": 3})
    assert truncate_to(path, size) == len('{"i":2}\n{"i":3}\n')
    assert path.stat().st_size == size
    assert [row["i"] for row in rows(path)] == [0, 1]
    assert [row["i"] for row in rows(tmp_path / "m.jsonl.discarded")] == [2, 3]


def test_lines_cut_again_are_appended_to_the_discarded_file(tmp_path):
    path = tmp_path / "m.jsonl"
    size = written(path, {"i": 0}).size()
    for i in (1, 2):
        written(path, {"i": i})
        truncate_to(path, size)
    assert [row["i"] for row in rows(tmp_path / "m.jsonl.discarded")] == [1, 2]


def test_cutting_where_the_file_ends_changes_nothing(tmp_path):
    path = tmp_path / "m.jsonl"
    size = written(path, {"i": 0}).size()
    assert truncate_to(path, size) == 0
    assert truncate_to(tmp_path / "absent.jsonl", 0) == 0
    assert not (tmp_path / "m.jsonl.discarded").exists()
    assert not (tmp_path / "absent.jsonl").exists()


def test_a_file_shorter_than_the_checkpoint_counted_is_warned_about(tmp_path):
    path = tmp_path / "m.jsonl"
    written(path, {"i": 0})
    with pytest.warns(NitroWarning, match=r"8 bytes .* counted 99"):
        assert truncate_to(path, 99) == 0
    assert rows(path) == [{"i": 0}]


def test_a_cut_inside_a_line_takes_the_whole_line_with_a_warning(tmp_path):
    path = tmp_path / "m.jsonl"
    written(path, {"i": 0}, {"i": 1}, {"i": 2})
    with pytest.warns(NitroWarning, match="inside a line"):
        truncate_to(path, 10)
    assert [row["i"] for row in rows(path)] == [0]
    assert [row["i"] for row in rows(tmp_path / "m.jsonl.discarded")] == [1, 2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_is_one_storage_error():
    writer = JsonLinesWriter("/dev/full", own=False)
    with pytest.raises(StorageError, match="disk is full") as err:
        writer.write({"i": 0})
    assert "free space" in str(err.value)
    writer.write({"i": 1})
    writer.close()


def test_a_line_written_in_part_on_a_full_disk_is_taken_back(tmp_path, monkeypatch):
    writer = JsonLinesWriter(tmp_path / "m.jsonl")
    writer.write({"i": 0})
    size = writer.size()
    real = os.write
    calls = []

    def fills_up(fd, data):
        calls.append(len(data))
        if len(calls) == 1:
            return real(fd, data[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", fills_up)
    with pytest.raises(StorageError, match="disk is full"):
        writer.write({"i": 1})
    monkeypatch.undo()
    writer.close()
    assert (tmp_path / "m.jsonl").read_bytes() == b'{"i":0}\n'
    assert writer.size() == size


def test_a_write_in_two_parts_is_one_line(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:4]))
    written(tmp_path / "m.jsonl", {"long": "line"})
    assert rows(tmp_path / "m.jsonl") == [{"long": "line"}]


def test_a_directory_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="disk refused"):
        JsonLinesWriter(tmp_path / "file" / "m.jsonl").write({"i": 0})


def test_values_json_has_not_are_written_so_that_any_reader_can_read_them(tmp_path):
    import numpy as np

    path = tmp_path / "m.jsonl"
    value = {"a": float("nan"), "b": np.float32(0.5), "c": [1.0, float("inf")], "d": Path("x/y"), "e": (1, 2)}
    written(path, value)

    def refuse(token):
        raise AssertionError(f"{token} is not JSON")

    assert json.loads(path.read_text(), parse_constant=refuse) == {
        "a": None,
        "b": 0.5,
        "c": [1.0, None],
        "d": "x/y",
        "e": [1, 2],
        "nonfinite": {"a": "nan", "c[1]": "inf"},
    }


def test_a_name_that_is_no_utf8_is_written_so_that_it_is_read_back(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    written(tmp_path / "m.jsonl", {name: 1, "é": "ä"})
    text = (tmp_path / "m.jsonl").read_bytes().decode("utf-8")
    assert "caf\\udce9" in text
    assert "é" in text
    assert rows(tmp_path / "m.jsonl") == [{name: 1, "é": "ä"}]


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_a_file_that_is_no_plain_one_is_refused_and_not_waited_for(tmp_path, kind):
    path = tmp_path / "m.jsonl"
    (tmp_path / "thesis").write_text("years")
    make = {
        "link": lambda: path.symlink_to(tmp_path / "thesis"),
        "pipe": lambda: os.mkfifo(path),
        "directory": path.mkdir,
    }
    make[kind]()
    with pytest.raises(IntegrityError, match="no plain file"):
        JsonLinesWriter(path).write({"i": 0})
    with pytest.raises(IntegrityError, match="no plain file"):
        truncate_to(path, 0)
    assert (tmp_path / "thesis").read_text() == "years"
