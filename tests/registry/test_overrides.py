"""The grammar of `--set` and `--unset`."""

import datetime
import shlex
from pathlib import Path
from typing import Literal

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli import Experiment, Host
from nitro_cli.errors import ConfigError
from nitro_cli.registry import parse_set, parse_unset, parse_value, resolve
from nitro_cli.registry.overrides import ordered


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("width=256", ("width",), 256),
        ("lr=3e-4", ("lr",), 3e-4),
        ("a=1_000", ("a",), 1000),
        ("flag=true", ("flag",), True),
        ("flag=yes", ("flag",), "yes"),
        ("flag=True", ("flag",), "True"),
        ('name="128"', ("name",), "128"),
        ("name='a b'", ("name",), "a b"),
        ("name=two words", ("name",), "two words"),
        ("early_stop.patience=3", ("early_stop", "patience"), 3),
        ("schedules.learning_rate.peak=3e-4", ("schedules", "learning_rate", "peak"), 3e-4),
        ('schedules."opt.bias.learning_rate"=0.1', ("schedules", "opt.bias.learning_rate"), 0.1),
        ("checkpointer.keep=['best(3)', 'last(1)']", ("checkpointer", "keep"), ["best(3)", "last(1)"]),
        ("early_stop={ patience = 5 }", ("early_stop",), {"patience": 5}),
        ("select=best(5, among=last(20))", ("select",), "best(5, among=last(20))"),
        ("max_time=55m", ("max_time",), "55m"),
        ("path=/tmp/a=b", ("path",), "/tmp/a=b"),
        ("version=1.2.3", ("version",), "1.2.3"),
        ("tag=#1", ("tag",), "#1"),
        ("tag=1 # one", ("tag",), "1 # one"),
        ("pair=1, 2", ("pair",), "1, 2"),
        ("two=1\nb=2", ("two",), "1\nb=2"),
        ("day=2024-02-01", ("day",), datetime.date(2024, 2, 1)),
        (" width = 1 ", ("width",), 1),
        ('empty=""', ("empty",), ""),
    ],
)
def test_a_set_is_a_dotted_key_and_a_toml_value_or_a_bare_word(text, path, value):
    override = parse_set(text)
    assert (override.path, override.value) == (path, value)
    assert type(override.value) is type(value)


def test_infinity_and_nan_are_toml_floats():
    assert parse_value("inf", "x") == float("inf")
    assert parse_value("nan", "x") != parse_value("nan", "x")


@pytest.mark.parametrize(
    "text", ["width", "=1", "", "a..b=1", ".a=1", "a.=1", '"open=1', "a b=1", "a=", "a=  ", "a[0]=1"]
)
def test_what_is_no_set_is_refused_with_the_text(text):
    with pytest.raises(ConfigError) as caught:
        parse_set(text)
    assert f"--set {text}" in caught.value.where


@pytest.mark.parametrize("text", ["a={ b = 1", 'a="open', "a=[1, 2", "a=[1] # two", "a={b=1}{c=2}", "a='x' 'y'"])
def test_an_opened_value_that_does_not_close_is_refused(text):
    with pytest.raises(ConfigError, match="TOML"):
        parse_set(text)


def test_a_set_without_a_value_says_how_to_set_none():
    with pytest.raises(ConfigError) as caught:
        parse_set("early_stop")
    assert "--unset early_stop" in caught.value.fix


def test_a_value_nested_without_end_is_refused():
    with pytest.raises(ConfigError):
        parse_set("a=" + "[" * 5000)


def test_unset_takes_one_key():
    assert parse_unset("early_stop.metric").path == ("early_stop", "metric")
    for text in ("", "a=1", "a b"):
        with pytest.raises(ConfigError):
            parse_unset(text)


def test_sets_keep_their_order_and_unsets_come_after():
    assert [o.text for o in ordered(["a=1", "b=2", "a=3"], ["c"])] == [
        "--set a=1",
        "--set b=2",
        "--set a=3",
        "--unset c",
    ]


def test_an_unset_comes_before_a_set_inside_it():
    assert [o.text for o in ordered(["a.b=1"], ["a"])] == ["--unset a", "--set a.b=1"]
    assert [o.text for o in ordered(["a={b=1,c=2}"], ["a.c"])] == ["--set a={b=1,c=2}", "--unset a.c"]


def test_setting_and_unsetting_one_key_is_refused():
    with pytest.raises(ConfigError, match="both set and unset"):
        ordered(["a=1"], ["a"])


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
_leaves = st.integers(-(2**62), 2**62) | st.booleans() | st.floats(allow_nan=False) | _text


@given(st.recursive(_leaves, lambda inner: st.lists(inner, max_size=3), max_leaves=6))
def test_every_toml_value_is_read_as_written(value):
    written = tomli_w.dumps({"k": value}, multiline_strings=False).removeprefix("k = ").rstrip("\n").replace("\n", " ")
    assert parse_set(f"k={written}").value == value


@given(st.from_regex(r"[a-zA-Z_/][a-zA-Z0-9_./()-]*", fullmatch=True))
def test_a_bare_word_is_a_string(word):
    expected = {"true": True, "false": False}.get(word, word)
    if word in ("inf", "nan"):
        return
    assert parse_value(word, "x") == expected


class Tagged(Experiment):
    tag: Host[str] = ""
    choice: Host[Literal["1", "2"]] = "1"
    place: Host[Path] = Path()
    count: Host[int] = 1


@pytest.mark.parametrize("word", ["1e5", "true", "1", "2024-01-01", "12:00:00", "[1]", "[a]", "{ a = 1 }"])
def test_a_word_that_is_no_text_says_how_a_text_field_gets_it(word):
    with pytest.raises(ConfigError) as refused:
        resolve(Tagged, sets=[f"tag={word}"])
    expected = f"--set 'tag=\"{word}\"'"
    assert expected in refused.value.fix
    given = shlex.split(expected)[1]
    assert resolve(Tagged, sets=[given]).experiment.tag == word


def test_a_choice_and_a_path_say_it_too_and_a_number_does_not():
    for field in ("choice", "place"):
        with pytest.raises(ConfigError) as refused:
            resolve(Tagged, sets=[f"{field}=2"])
        assert f"--set '{field}=\"2\"'" in refused.value.fix
    with pytest.raises(ConfigError) as refused:
        resolve(Tagged, env={"NITRO_RUN_DIR": "2024"})
    assert "NITRO_RUN_DIR='\"2024\"'" in refused.value.fix
    with pytest.raises(ConfigError) as refused:
        resolve(Tagged, sets=["count=1.5"])
    assert "--set" not in refused.value.fix
