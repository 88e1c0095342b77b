"""Text of a file or a user, as a person sees it: nothing in it can move a cursor or turn a line around."""

from __future__ import annotations

import unicodedata

__all__ = ["exception_text", "message_of", "visible"]

_UNSHOWN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories that draw nothing and may act on a terminal: controls, formats (bidirectional), surrogates."""


def visible(text: str, *, keep: str = "\n\t") -> str:
    r"""Write control characters, bidirectional overrides and lone surrogates as escapes, such as `\x1b`.

    Args:
        text: what a file, an exception or a person supplied.
        keep: control characters that stay as they are; `""` for a text that must stay on one line.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or unicodedata.category(c) not in _UNSHOWN else _escape(c) for c in text)


def message_of(exception: BaseException) -> str:
    """`str(exception)`; for one whose own `__str__` fails, that it does."""
    try:
        return str.__str__(str(exception))
    except BaseException as broken:  # whatever a class of the user's raises there
        return f"(no message: its __str__ raised {type(broken).__name__})"


def exception_text(exception: BaseException) -> str:
    """The exception as one text, `ValueError: message`."""
    return f"{type(exception).__name__}: {message_of(exception)}"


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
