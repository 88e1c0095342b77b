"""The grammar of selectors as text: `best(3)`, `last(1)`, `every(10)`, `epochs(1:5, 8)`, `best(5, among=last(20))`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from nitro_cli.errors import ConfigError, nearest

__all__ = ["read_selector"]

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][A-Za-z_0-9]*)|([(),:=]))")
_NAMES = ("average", "best", "epochs", "every", "last")
_EXAMPLES = "best(3), last(1), every(10), epochs(1:5), best(5, among=last(20)), average(last(10))"
_KEYWORDS: dict[str, dict[str, str]] = {
    "average": {"selector": "selector", "state": "word"},
    "best": {"k": "int", "among": "selector"},
    "epochs": {},
    "every": {"n": "int"},
    "last": {"n": "int"},
}


def read_selector(text: str, kinds: Mapping[str, Callable[..., Any]], *, average: bool) -> Any:
    """Read a selector from its text form, as `parse_selector` says.

    Args:
        text: the selector.
        kinds: what makes a selector, by its name in the text.
        average: whether `average(...)` is allowed at the top.

    Raises:
        ConfigError: the text is no selector; it names the place and the nearest selector.
    """
    return _Parser(text, kinds).parse(average)


class _Parser:
    def __init__(self, text: str, kinds: Mapping[str, Callable[..., Any]]) -> None:
        self._text = text
        self._kinds = kinds
        self._tokens = self._split(text)
        self._at = 0

    def _split(self, text: str) -> list[str]:
        tokens: list[str] = []
        at = 0
        stripped = text.rstrip()
        while at < len(stripped):
            match = _TOKEN.match(stripped, at)
            if match is None:
                raise self._error(f"cannot read {stripped[at:].strip()!r}")
            tokens.append(match.group().strip())
            at = match.end()
        return tokens

    def parse(self, average: bool) -> Any:
        if not self._tokens:
            raise self._error("it is empty")
        result = self._call(average)
        if self._at < len(self._tokens):
            raise self._error(f"{self._tokens[self._at]!r} after its end")
        return result

    def _call(self, average: bool) -> Any:
        name = self._take("a name")
        if name not in _NAMES:
            raise self._error(f"there is no selector {name!r}", nearest(name, _NAMES))
        if name == "average" and not average:
            raise self._error("average(...) is no selector: it is what a source may be")
        if self._peek() != "(" and name in ("best", "last"):
            return self._kinds[name]()
        self._expect("(")
        positional, keywords = self._arguments(name)
        self._expect(")")
        return self._build(name, positional, keywords)

    def _arguments(self, name: str) -> tuple[list[Any], dict[str, Any]]:
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        while self._peek() not in (")", None):
            word = self._peek()
            if word is not None and word.isidentifier() and self._peek(1) == "=":
                self._at += 2
                if word not in _KEYWORDS[name]:
                    raise self._error(f"{name}(...) has no {word!r}", nearest(word, _KEYWORDS[name]))
                if word in keywords:
                    raise self._error(f"{word!r} is given twice")
                keywords[word] = self._value(_KEYWORDS[name][word])
            elif keywords:
                raise self._error(f"{word!r} without a name follows one with a name")
            else:
                positional.append(self._positional(name, len(positional)))
            if self._peek() != ",":
                break
            self._at += 1
        return positional, keywords

    def _positional(self, name: str, index: int) -> Any:
        if name == "epochs":
            return self._span()
        kinds = list(_KEYWORDS[name].values())
        if index >= len(kinds) or (name == "best" and index == 1):
            raise self._error(f"{name}(...) has one argument without a name")
        return self._value(kinds[index])

    def _value(self, kind: str) -> Any:
        if kind == "int":
            return self._number()
        if kind == "word":
            return self._take("a word")
        return self._call(average=False)

    def _span(self) -> range:
        first = last = self._number()
        if self._peek() == ":":
            self._at += 1
            last = self._number()
        if last < first:
            raise self._error(f"{first}:{last} runs backwards")
        return range(first, last + 1)

    def _build(self, name: str, positional: list[Any], keywords: dict[str, Any]) -> Any:
        names = list(_KEYWORDS[name])
        if name != "epochs" and positional and names[0] in keywords:
            raise self._error(f"{names[0]!r} is given twice")
        try:
            return self._kinds[name](*positional, **keywords)
        except ConfigError as error:
            raise self._error(error.what) from None
        except TypeError:
            raise self._error(f"{name}(...) needs {names[0]!r}") from None

    def _number(self) -> int:
        token = self._take("a whole number")
        if not token.isdecimal():
            raise self._error(f"a whole number belongs where {token!r} is")
        return int(token)

    def _peek(self, ahead: int = 0) -> str | None:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else None

    def _take(self, wanted: str) -> str:
        token = self._peek()
        if token is None:
            raise self._error(f"{wanted} is missing at its end")
        self._at += 1
        return token

    def _expect(self, token: str) -> None:
        found = self._peek()
        if found != token:
            place = "its end" if found is None else repr(found)
            raise self._error(f"{token!r} is missing at {place}")
        self._at += 1

    def _error(self, why: str, close: tuple[str, ...] = ()) -> ConfigError:
        return ConfigError(f"selector {self._text!r}: {why}", fix=f"write one of {_EXAMPLES}", nearest=close)
