"""What turns text into ids and back, and can be kept as a file."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from nitro_cli.errors import ConfigError, DataError

__all__ = ["SPECIALS", "TextCodec"]

SPECIALS: Mapping[str, str] = {"unk": "<unk>", "pad": "<pad>", "bos": "<bos>", "eos": "<eos>"}
"""What ids beside those of text are for, and what they are called unless a tokenizer says otherwise."""


class TextCodec(ABC):
    """A tokenizer that is ready. The name of a special inside a text is text, unless `specials` says otherwise.

    Args:
        names: what the specials are called, by what they are for; those that there are not are left out.
        ids: their ids, alike.
        content: the tokenizer as a file of the library tokenizers, `tokenizer.json`.

    Attributes:
        digest: `sha256:<hex>` of that file.
    """

    def __init__(self, names: Mapping[str, str], ids: Mapping[str, int], content: bytes) -> None:
        self.names = dict(names)
        self.ids = dict(ids)
        self.content = content
        self.digest = f"sha256:{hashlib.sha256(content).hexdigest()}"

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """How many ids there are: 0 to `vocab_size` - 1."""

    @abstractmethod
    def token(self, id: int) -> str:
        """An id as it is written in the file."""

    @abstractmethod
    def _encoded(self, texts: Sequence[str], specials: bool) -> list[list[int]]: ...

    @abstractmethod
    def _decoded(self, ids: Sequence[int], specials: bool) -> str: ...

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        """The ids of a text; nothing is put before or behind them.

        Args:
            text: the text.
            specials: whether the name of a special stands for it.

        Raises:
            DataError: the text is no Unicode text (half of a surrogate pair).
        """
        return self.encode_all([text], specials=specials)[0]

    def encode_all(self, texts: Sequence[str], *, specials: bool = False) -> list[list[int]]:
        """The ids of several texts; as `encode`."""
        for at, text in enumerate(texts):
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                told = f"text {at}, character {error.start}"
                raise DataError("the text is no Unicode text", where=told, why=error.reason) from error
        found = self._encoded(texts, specials)
        if not specials:
            self._refuse_specials(found)
        return found

    def decode(self, ids: Iterable[int], *, specials: bool = False) -> str:
        """The text of ids. Bytes that are no UTF-8, such as half a character, are U+FFFD.

        Args:
            ids: the ids.
            specials: whether specials are written by their names; they are left out unless asked for.

        Raises:
            DataError: there is no such id.
        """
        held = [int(id) for id in ids]
        wrong = next((id for id in held if not 0 <= id < self.vocab_size), None)
        if wrong is not None:
            raise DataError(f"there is no id {wrong}", why=f"the tokenizer has {self.vocab_size}, from 0")
        return self._decoded(held, specials)

    def needed(self, *roles: str) -> tuple[int, ...]:
        """The ids of specials that something cannot be without.

        Raises:
            ConfigError: the tokenizer has no such special.
        """
        missing = next((role for role in roles if role not in self.ids), None)
        if missing is not None:
            there = ", ".join(f"{role} {name}" for role, name in self.names.items()) or "none"
            raise ConfigError(
                f"the tokenizer has no {SPECIALS[missing]}, which is needed here",
                where="tokenizer",
                why=f"its specials: {there}",
                fix=f'say what it calls it: {missing} = "<...>", or add it to the specials',
            )
        return tuple(self.ids[role] for role in roles)

    def _refuse_specials(self, found: Iterable[Sequence[int]]) -> None:
        """Refuse ids of specials that were made of text: a file may spell a word like one of its specials."""
        own = {id: role for role, id in self.ids.items() if role != "unk"}
        for at, ids in enumerate(found):
            for id in own.keys() & set(ids):
                raise DataError(
                    f"the tokenizer makes its special {self.names[own[id]]!r} of the text {at}",
                    why="what is text would be taken for the end, the beginning or padding",
                    fix="use a tokenizer that spells that word otherwise",
                )
