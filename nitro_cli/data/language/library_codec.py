"""A tokenizer of the library tokenizers, from its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from nitro_cli.data.language.byte_codec import ByteCodec
from nitro_cli.data.language.codec import SPECIALS, TextCodec
from nitro_cli.errors import DataError
from nitro_cli.installation import import_extra

__all__ = ["LibraryCodec", "read_codec"]


class LibraryCodec(TextCodec):
    """What the library tokenizers makes of a `tokenizer.json`.

    Args:
        content: the file.
        names: what its specials are called, by what they are for; one that the file has not is left out.
        where: the file, for errors.

    Raises:
        MissingExtraError: the library is not installed.
        DataError: the library cannot read it.
    """

    def __init__(self, content: bytes, names: Mapping[str, str] = SPECIALS, *, where: str | None = None) -> None:
        self._library = import_extra("tokenizers", use="A trained tokenizer", where=where)
        try:
            self._plain = self._loaded(content)
        except Exception as error:  # the library raises Exception itself
            raise DataError("it is no file of the library tokenizers", where=where, why=str(error)) from error
        # The library does not write this switch: without it the name of a special in a text is the special.
        self._plain.encode_special_tokens = True
        found = {role: self._plain.token_to_id(name) for role, name in names.items()}
        ids = {role: id for role, id in found.items() if id is not None}
        super().__init__({role: names[role] for role in ids}, ids, content)

    def _loaded(self, content: bytes) -> Any:
        held = self._library.Tokenizer.from_str(content.decode("utf-8"))
        # Rows are cut and filled up by whoever packs them, and never in silence.
        held.no_truncation()
        held.no_padding()
        return held

    @cached_property
    def _with_specials(self) -> Any:
        return self._loaded(self.content)

    @property
    def vocab_size(self) -> int:
        """How many ids there are, specials among them."""
        return int(self._plain.get_vocab_size())

    def token(self, id: int) -> str:
        """An id as it is written in the file."""
        return str(self._plain.id_to_token(id))

    def _encoded(self, texts: Sequence[str], specials: bool) -> list[list[int]]:
        library = self._with_specials if specials else self._plain
        return [found.ids for found in library.encode_batch_fast(list(texts), add_special_tokens=False)]

    def _decoded(self, ids: Sequence[int], specials: bool) -> str:
        return str(self._plain.decode(list(ids), skip_special_tokens=not specials))


def read_codec(content: bytes, names: Mapping[str, str] = SPECIALS, *, where: str | None = None) -> TextCodec:
    """A tokenizer from its file; arguments and errors as of `LibraryCodec`. That of bytes needs no library."""
    plain = ByteCodec()
    return plain if content == plain.content else LibraryCodec(content, names, where=where)
