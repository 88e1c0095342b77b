"""The family of tokenizers, and the catalogue that holds them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from nitro_cli.data.language.codec import SPECIALS, TextCodec
from nitro_cli.experiment import FieldKind, Part
from nitro_cli.text import Catalogue

__all__ = ["TOKENIZERS", "Tokenizer", "register_tokenizer"]

TOKENIZERS: Catalogue[type[Tokenizer]] = Catalogue(
    "tokenizer",
    "nitro.tokenizers",
    shipped={
        "bpe": "nitro_cli.data.language.bpe:BPE",
        "bytes": "nitro_cli.data.language.tokenizer_kinds:ByteTokenizer",
        "file": "nitro_cli.data.language.tokenizer_kinds:TokenizerFile",
    },
)
"""The tokenizers by (id, version): nitro's own, those of `register_tokenizer`, and those of the entry points
`nitro.tokenizers`."""


class Tokenizer(Part):
    """Says how text becomes ids. In TOML it is a table with its `kind`, or the kind alone."""

    catalogue: ClassVar[Catalogue[Any] | None] = TOKENIZERS
    unmarked: ClassVar[FieldKind] = FieldKind.HOST
    on_host: ClassVar[bool] = True

    @abstractmethod
    def trained(self, texts: Sequence[str]) -> TextCodec:
        """The tokenizer, ready.

        Args:
            texts: what it is trained on, in their order; one that needs no training leaves them alone.

        Raises:
            MissingExtraError: the library that it needs is not installed.
            ConfigError, DataError: it cannot be trained so.
        """

    @property
    def special_names(self) -> dict[str, str]:
        """What the specials are called, by what they are for: `unk`, `pad`, `bos`, `eos`."""
        return dict(SPECIALS)


register_tokenizer = TOKENIZERS.register
"""`@register_tokenizer(id, version=1)`: a class decorator that makes a tokenizer known as `{ kind = id }`."""
