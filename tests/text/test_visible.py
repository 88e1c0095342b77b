"""What a file or a person wrote is shown so that nothing in it acts on the terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nitro_cli.text import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Übung 漢字 🙂", "Übung 漢字 🙂"),
        ("a\x1b[31mred", r"a\x1b[31mred"),
        ("over\rwritten", r"over\rwritten"),
        ("\x9b2J", r"\x9b2J"),
        ("abc\u202edef", r"abc\u202edef"),
        ("\u2066x\u2069", r"\u2066x\u2069"),
        ("lone \ud800", r"lone \ud800"),
        ("two\nlines\tand", "two\nlines\tand"),
    ],
)
def test_controls_are_written_as_escapes_and_letters_stay(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_text_for_one_line_keeps_no_line_break() -> None:
    assert visible("a\nb\tc", keep="") == r"a\nb\tc"


@given(st.text())
def test_nothing_shown_can_act_on_a_terminal(text: str) -> None:
    shown = visible(text, keep="")
    shown.encode()
    assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or 0x202A <= ord(c) <= 0x202E for c in shown)
    assert not any(0x2066 <= ord(c) <= 0x2069 for c in shown)
