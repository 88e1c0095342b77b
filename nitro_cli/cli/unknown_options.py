"""`nitro train EXP --width 3`: an option that there is not may be meant as a field of the experiment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

__all__ = ["note_field_meant"]

_FIELD = re.compile(r"--([A-Za-z_][\w.-]*)")
_NUMBER = re.compile(r"-[\d.]")


def note_field_meant(error: Exception, words: Sequence[str]) -> None:
    """Where `error` is about an unknown option of a command that takes `--set`, note how a field is set.

    Args:
        error: what left the command.
        words: the command line.
    """
    option = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    if not isinstance(option, str) or context is None:
        return
    named = _FIELD.fullmatch(option)
    if named is None or not any("--set" in parameter.opts for parameter in context.command.params):
        return
    assignment = f"{named[1].replace('-', '_')}={_value(option, words)}"
    error.add_note(f"a field of the experiment is set with `--set {shlex.quote(assignment)}`")


def _value(option: str, words: Sequence[str]) -> str:
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and following is not None and (not following.startswith("-") or _NUMBER.match(following)):
            return following
    return "VALUE"
