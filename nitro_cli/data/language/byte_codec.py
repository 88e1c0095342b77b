"""A tokenizer without training: an id per byte."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from nitro_cli.data.language.codec import SPECIALS, TextCodec

__all__ = ["ByteCodec", "byte_letters"]


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a file of a byte-level tokenizer, as GPT-2 has it: printable Latin-1 as
    it is, the others from U+0100 on.
    """
    plain = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(0x100 + at) for at in range(256))
    return [chr(byte) if byte in plain else next(others) for byte in range(256)]


class ByteCodec(TextCodec):
    """260 ids: `<unk>`, `<pad>`, `<bos>`, `<eos>`, then one for each byte of UTF-8."""

    def __init__(self) -> None:
        ids = {role: at for at, role in enumerate(SPECIALS)}
        super().__init__(SPECIALS, ids, _file())
        self._split = re.compile("|".join(f"({re.escape(name)})" for name in SPECIALS.values()))

    @property
    def vocab_size(self) -> int:
        """260."""
        return len(SPECIALS) + 256

    def token(self, id: int) -> str:
        """The name of a special, or the letter of a byte."""
        return [*SPECIALS.values(), *byte_letters()][id]

    def _encoded(self, texts: Sequence[str], specials: bool) -> list[list[int]]:
        return [self._with_specials(text) if specials else self._bytes(text) for text in texts]

    def _with_specials(self, text: str) -> list[int]:
        by_name = {name: self.ids[role] for role, name in self.names.items()}
        pieces = (piece for piece in self._split.split(text) if piece)
        return [id for piece in pieces for id in ([by_name[piece]] if piece in by_name else self._bytes(piece))]

    def _bytes(self, text: str) -> list[int]:
        return [byte + len(SPECIALS) for byte in text.encode("utf-8")]

    def _decoded(self, ids: Sequence[int], specials: bool) -> str:
        first = len(SPECIALS)
        names = [name.encode() if specials else b"" for name in SPECIALS.values()]
        held = b"".join(bytes([id - first]) if id >= first else names[id] for id in ids)
        return held.decode("utf-8", errors="replace")


def _file() -> bytes:
    """It as the library tokenizers would write it: byte-level, without merges."""
    names = [*SPECIALS.values()]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: id for id, token in enumerate([*names, *byte_letters()])},
        "merges": [],
    }
    held = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": id, "content": name, **flags} for id, name in enumerate(names)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": model,
    }
    return json.dumps(held, ensure_ascii=False, indent=2).encode("utf-8")
