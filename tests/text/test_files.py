"""Files are read when they are regular files, replaced whole, and never written through a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nitro_cli.text import append_descriptor, read_regular, write_atomically


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    assert read_regular(path) == b"abc"
    assert read_regular(path, limit=3) == b"abc"


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abcd")
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_regular(path, limit=3)


def test_a_named_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="named pipe"):
        read_regular(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        append_descriptor(tmp_path / "pipe")


def test_a_directory_and_a_device_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="a directory"):
        read_regular(tmp_path)
    with pytest.raises(OSError, match="a device"):
        read_regular("/dev/zero")


def test_links_are_followed_only_where_asked(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("real")
    assert read_regular(tmp_path / "link") == b"abc"
    with pytest.raises(OSError, match="is a link"):
        read_regular(tmp_path / "link", follow=False)


def test_links_in_a_circle_are_an_oserror(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        read_regular(tmp_path / "a")


def test_nothing_is_appended_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(OSError, match="is a link"):
        append_descriptor(tmp_path / "link")
    assert (tmp_path / "real").read_bytes() == b"abc"


def test_appending_makes_the_file_and_keeps_what_is_there(tmp_path: Path) -> None:
    for word in (b"one", b"two"):
        descriptor = append_descriptor(tmp_path / "log")
        os.write(descriptor, word)
        os.close(descriptor)
    assert (tmp_path / "log").read_bytes() == b"onetwo"


def test_a_failed_replacement_leaves_the_old_file_and_no_stray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise OSError("full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]
