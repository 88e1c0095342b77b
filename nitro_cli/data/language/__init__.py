"""Text as tokens: tokenizers, documents and their rows. Works without JAX; the library is imported where it is used."""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from .bpe import BPE
    from .byte_codec import ByteCodec
    from .codec import SPECIALS, TextCodec
    from .documents import TextDocument, pydoc_documents, read_documents, without_doubles
    from .library_codec import LibraryCodec, read_codec
    from .tokenizer import TOKENIZERS, Tokenizer, register_tokenizer
    from .tokenizer_kinds import ByteTokenizer, TokenizerFile
