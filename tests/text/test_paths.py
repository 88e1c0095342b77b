"""Paths as a person writes them."""

from pathlib import Path

import pytest

from nitro_cli.text import is_utf8, user_path


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("~", "/home/me"),
        ("~/runs", "/home/me/runs"),
        ("runs/~/x", "runs/~/x"),
        ("a~", "a~"),
        ("./~", "~"),
        ("~nobody-of-that-name/x", "~nobody-of-that-name/x"),
        (Path("~/x"), "/home/me/x"),
    ],
)
def test_a_tilde_is_the_home_directory_where_a_path_begins_with_it(monkeypatch, written, meant):
    monkeypatch.setenv("HOME", "/home/me")
    assert user_path(written) == Path(meant)


def test_a_name_that_only_the_file_system_knows_is_no_utf8():
    assert is_utf8("größe/漢字")
    assert not is_utf8(b"r\xff".decode("utf-8", "surrogateescape"))


def test_a_path_that_ends_in_dots_is_the_directory_by_its_name(monkeypatch, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path / "run" / "checkpoints")
    (tmp_path / "named").symlink_to(tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run" / "checkpoints")
    assert user_path("..") == tmp_path / "run"
    assert user_path(".") == user_path("") == tmp_path / "run" / "checkpoints"
    assert user_path(tmp_path / "named" / "checkpoints" / "..") == tmp_path / "named"
    assert user_path(tmp_path / "elsewhere" / "link" / "..") == tmp_path / "run"
    assert user_path("nothing/..") == tmp_path / "run" / "checkpoints"
    assert user_path("../a") == Path("../a")
