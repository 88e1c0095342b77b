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
