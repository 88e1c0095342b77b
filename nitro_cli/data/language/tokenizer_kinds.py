"""The tokenizers that are not trained: bytes, and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nitro_cli.data.language.byte_codec import ByteCodec
from nitro_cli.data.language.codec import SPECIALS, TextCodec
from nitro_cli.data.language.library_codec import read_codec
from nitro_cli.data.language.tokenizer import Tokenizer, register_tokenizer
from nitro_cli.errors import DataError, NotFoundError
from nitro_cli.text import read_regular

__all__ = ["ByteTokenizer", "TokenizerFile"]

_LARGEST = 2**30


@register_tokenizer("bytes")
class ByteTokenizer(Tokenizer):
    """An id per byte of UTF-8 behind the four specials: 260 ids, any text, no library."""

    def trained(self, texts: Sequence[str]) -> TextCodec:
        """It; there is nothing to train."""
        return ByteCodec()


@register_tokenizer("file")
class TokenizerFile(Tokenizer):
    """A `tokenizer.json` of the library tokenizers."""

    path: Path
    """The file."""

    unk: str = SPECIALS["unk"]
    """What it calls what it does not know."""

    pad: str = SPECIALS["pad"]
    """What it calls the filling of a row."""

    bos: str = SPECIALS["bos"]
    """What it calls the beginning of a document."""

    eos: str = SPECIALS["eos"]
    """What it calls the end of a document."""

    def __init__(self, path: Path | str | None = None, /, **values: Any) -> None:
        given: dict[str, Any] = {} if path is None else {"path": Path(path)}
        super().__init__(**given, **values)

    def trained(self, texts: Sequence[str]) -> TextCodec:
        """The tokenizer of the file; there is nothing to train.

        Raises:
            NotFoundError: there is no such file.
            DataError: it cannot be read.
            MissingExtraError: the library is not installed.
        """
        try:
            content = read_regular(self.path, limit=_LARGEST)
        except FileNotFoundError:
            fix = "name a tokenizer.json, as `nitro tokenizer train` writes it"
            raise NotFoundError(f"there is no tokenizer {self.path.name}", where=str(self.path), fix=fix) from None
        except OSError as error:
            raise DataError(f"{self.path.name} cannot be read", where=str(self.path), why=str(error)) from error
        return read_codec(content, self.special_names, where=str(self.path))

    @property
    def special_names(self) -> dict[str, str]:
        """As the fields say."""
        return {role: getattr(self, role) for role in SPECIALS}
