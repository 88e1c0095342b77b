"""Places of keys in TOML text, and errors of text that is not TOML."""

import tomllib

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_cli.errors import ConfigError, PresetError
from nitro_cli.registry.toml_text import format_key_path, key_positions, read_toml, split_key_path

DOCUMENT = '''\
title = "a # not a comment"  # a comment
"quoted key" = 1
'literal.key' = 2
dotted."b.c".d = 3

[fields]
width = 128
early_stop = { patience = 5, "min_delta" = 1e-4, inner = { deep = [1, { x = 2 }] } }
text = """
[not a table]
fake = 1
ends with two quotes"""""
raw = \'\'\'
also = "not"
\'\'\'
escaped = "a \\" quote = 1"
keep = [
    "best(3)",   # [ in a comment
    "last(1)",
]
when = 1979-05-27 07:32:00

  [fields . "sub table"]
  x = 1

[[runs]]
id = 1
[[runs]]
id = 2
[runs.more]
y = 1
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 1),
        (("quoted key",), 2),
        (("literal.key",), 3),
        (("dotted", "b.c", "d"), 4),
        (("dotted",), 4),
        (("fields",), 6),
        (("fields", "width"), 7),
        (("fields", "early_stop", "min_delta"), 8),
        (("fields", "early_stop", "inner", "deep", 1, "x"), 8),
        (("fields", "text"), 9),
        (("fields", "raw"), 13),
        (("fields", "escaped"), 16),
        (("fields", "keep", 0), 18),
        (("fields", "keep", 1), 19),
        (("fields", "when"), 21),
        (("fields", "sub table", "x"), 24),
        (("runs", 0, "id"), 27),
        (("runs", 1, "id"), 29),
        (("runs", 1, "more", "y"), 31),
    ],
)
def test_each_key_is_found_on_its_line(path, line):
    tomllib.loads(DOCUMENT)
    assert key_positions(DOCUMENT)[path].line == line


def test_text_inside_strings_is_no_key():
    places = key_positions(DOCUMENT)
    assert not any("fake" in path or "not a table" in path or "also" in path for path in places)


def test_an_escaped_quote_ends_no_string():
    text = 'a = """x \\""" y = 1\nz = 2"""\nb = "\\""\nc = 3\n'
    assert tomllib.loads(text) == {"a": 'x """ y = 1\nz = 2', "b": '"', "c": 3}
    assert {path: place.line for path, place in key_positions(text).items()} == {("a",): 1, ("b",): 3, ("c",): 4}


def test_a_missing_key_has_the_line_of_its_table(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(DOCUMENT)
    document = read_toml(file)
    assert document.line(("fields", "early_stop", "absent")) == 8
    assert document.line(("fields", "absent")) == 6
    assert document.line(("absent",)) is None


def test_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path):
    file = tmp_path / "a.toml"
    file.write_bytes(b"\xef\xbb\xbfa = 1\r\n[t]\r\nb = 2\r\n")
    document = read_toml(file)
    assert document.data == {"a": 1, "t": {"b": 2}}
    assert document.line(("t", "b")) == 3


_keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=0, max_size=6)
_scalars = st.one_of(
    st.integers(-(2**62), 2**62),
    st.booleans(),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=12,
)


def _paths(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from _paths(inner, (*path, key))


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(_keys, _values, max_size=4))
def test_every_key_of_any_document_is_found_and_no_other(data):
    text = tomli_w.dumps(data)
    parsed = tomllib.loads(text)
    assert set(key_positions(text)) == set(_paths(parsed))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(_keys, _scalars, min_size=1, max_size=5))
def test_the_line_of_a_key_holds_it(data):
    text = tomli_w.dumps(data)
    lines = text.split("\n")
    for path, position in key_positions(text).items():
        written, rest = split_key_path(lines[position.line - 1][position.column - 1 :])
        assert (written, rest[0]) == (path, "=")


@given(st.lists(_keys, min_size=1, max_size=4))
def test_a_key_path_is_read_as_it_is_written(segments):
    assert split_key_path(format_key_path(segments) + " = 1") == (tuple(segments), "= 1")


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a = 1\nb = = 2\n", 2, 5),
        ("a = 1\na = 2\n", 2, 6),
        ('[fields]\nx = "open\n', 2, 10),
        ("[fields\n", 1, 8),
        ("a = ", 1, 5),
        ('a = """open\n\n', 3, 1),
    ],
)
def test_malformed_toml_is_one_error_with_line_and_column(tmp_path, text, line, column):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(PresetError) as caught:
        read_toml(file, PresetError)
    assert caught.value.where == f"{file}:{line}:{column}"
    assert f"line {line}, column {column}: " in caught.value.why


def test_text_of_another_encoding_names_the_line(tmp_path):
    file = tmp_path / "latin.toml"
    file.write_bytes(b"a = 1\nb = '\xe9'\n")
    with pytest.raises(ConfigError, match="UTF-8") as caught:
        read_toml(file)
    assert caught.value.where == f"{file}:2"


def test_a_document_nested_without_end_is_an_error_and_not_a_crash(tmp_path):
    file = tmp_path / "deep.toml"
    file.write_text("a = " + "[" * 5000 + "]" * 5000)
    with pytest.raises(ConfigError):
        read_toml(file)


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        read_toml(tmp_path / "absent.toml")
