"""Byte-pair encoding, trained by the library tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from nitro_cli.data.language.byte_codec import byte_letters
from nitro_cli.data.language.codec import SPECIALS, TextCodec
from nitro_cli.data.language.library_codec import LibraryCodec
from nitro_cli.data.language.tokenizer import Tokenizer, register_tokenizer
from nitro_cli.errors import ConfigError, DataError
from nitro_cli.installation import import_extra

__all__ = ["BPE"]


@register_tokenizer("bpe")
class BPE(Tokenizer):
    """Byte-pair encoding, trained on the documents of train alone. The same texts give the same file, byte for byte."""

    vocab_size: Annotated[int, Field(ge=1)] = 8192
    """The most ids; fewer, where the texts have no more pairs."""

    min_frequency: Annotated[int, Field(ge=1)] = 2
    """How often a pair has to occur to become one token."""

    specials: tuple[Annotated[str, Field(min_length=1)], ...] = tuple(SPECIALS.values())
    """The ids that no text has, first of all; those called `<unk>`, `<pad>`, `<bos>` and `<eos>` have their meaning."""

    form: Literal["bytes", "words"] = "bytes"
    """`bytes`: any text comes back as it was. `words`: split at white space, which is lost; what was in no text is
    `<unk>`."""

    @model_validator(mode="after")
    def _check_specials(self) -> Self:
        twice = next((name for name in self.specials if self.specials.count(name) > 1), None)
        if twice is not None:
            raise PydanticCustomError("tokenizer", "{told}", {"told": f"specials: {twice!r} stands twice"})
        return self

    def trained(self, texts: Sequence[str]) -> TextCodec:
        """Train it.

        Raises:
            DataError: there is no text, or one is empty.
            ConfigError: `vocab_size` is below specials and alphabet, or a special's name could be a token of text.
            MissingExtraError: the library is not installed.
        """
        library = import_extra("tokenizers", use="The tokenizer bpe", where="tokenizer.kind")
        self._check_texts(texts)
        from tokenizers import decoders, models, pre_tokenizers, trainers

        specials = self._all_specials
        if self.form == "bytes":
            made = library.Tokenizer(models.BPE())
            made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            made.decoder = decoders.ByteLevel()
            alphabet = byte_letters()
        else:
            made = library.Tokenizer(models.BPE(unk_token=SPECIALS["unk"]))
            made.pre_tokenizer = pre_tokenizers.Whitespace()
            alphabet = sorted({letter for text in texts for letter in text if not letter.isspace()})
        self._check_names(specials, made.pre_tokenizer)
        if self.vocab_size < len(specials) + len(alphabet):
            raise ConfigError(
                f"vocab_size = {self.vocab_size} is below {len(specials)} specials and an alphabet of {len(alphabet)}",
                where="tokenizer.vocab_size",
                fix=f"use {len(specials) + len(alphabet)} or more",
            )
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            min_frequency=self.min_frequency,
            special_tokens=list(specials),
            initial_alphabet=alphabet,
            show_progress=False,
        )
        made.train_from_iterator(texts, trainer)
        return LibraryCodec(made.to_str(pretty=True).encode("utf-8"))

    @property
    def _all_specials(self) -> tuple[str, ...]:
        unknown = SPECIALS["unk"]
        return self.specials if self.form == "bytes" or unknown in self.specials else (*self.specials, unknown)

    def _check_texts(self, texts: Sequence[str]) -> None:
        empty = next((at for at, text in enumerate(texts) if not text.strip()), None)
        if texts and empty is None:
            return
        raise DataError(
            "there is no text to train a tokenizer on" if empty is None else f"the text {empty} is empty",
            where="tokenizer",
            fix="give texts that say something",
        )

    def _check_names(self, specials: Sequence[str], splitter: Any) -> None:
        """Refuse a special that text could become: training would give both one id."""
        for name in specials:
            if len(splitter.pre_tokenize_str(name)) < 2:
                raise ConfigError(
                    f"the special {name!r} could be a word of a text",
                    where="tokenizer.specials",
                    why="a text that has it would hold the special",
                    fix=f'write it with signs around: "<{name.strip("<>")}>"',
                )
