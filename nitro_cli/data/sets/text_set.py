"""Text as a data set of tokens: documents to rows of ids."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from nitro_cli.data.dist import Dist
from nitro_cli.data.language.codec import TextCodec
from nitro_cli.data.language.documents import (
    DocumentUnit,
    TextDocument,
    content_of_documents,
    pydoc_documents,
    read_documents,
    without_doubles,
)
from nitro_cli.data.language.library_codec import read_codec
from nitro_cli.data.language.packing import EncodedDocument, PackedRows, Packing, packed
from nitro_cli.data.language.tokenizer import Tokenizer
from nitro_cli.data.language.tokenizer_kinds import ByteTokenizer
from nitro_cli.data.sets.built_set import BuiltSet
from nitro_cli.data.sets.data_set import DataSet, register_data
from nitro_cli.data.splits import SplitPlan
from nitro_cli.errors import DataError, IncompatibleError
from nitro_cli.experiment import Declared, Host, RowSpec

__all__ = ["KEPT_TOKENIZER", "TEXT_BYTES", "UNCOUNTED", "Text"]

KEPT_TOKENIZER = "tokenizer.json"
"""What a run calls the tokenizer that it keeps."""

TEXT_BYTES = "text_bytes"
"""The batch field with the UTF-8 bytes of the documents that end in a row; negative where bytes say nothing."""

UNCOUNTED: Mapping[int, str] = {
    -1: "prompts are not scored",
    -2: "documents are cut at the end of a row",
    -3: "data.limit leaves rows out",
}
"""Why the bytes of a split cannot be set against its loss, by what stands in their place."""


@register_data("text")
class Text(DataSet):
    """Text files, or Python's own reference, as `tokens` and shifted `label`, int32 (B, block); -100 is not scored.

    Equal documents count once, so that none lies in two splits. The tokenizer is trained on the documents of train.
    """

    kept_by: ClassVar[tuple[str, ...]] = ("tokenizer",)

    files: tuple[str, ...] | None = None
    """Globs of text files: `.txt`, `.md`, and `.jsonl` with `text`, or with `prompt` and `response`, which alone is
    scored."""

    source: Literal["pydoc"] | None = None
    """`pydoc`: the paragraphs of Python's own reference."""

    documents: DocumentUnit = "file"
    """What of a `.txt` or `.md` is one document: the file, or a paragraph."""

    tokenizer: Host[Tokenizer] = ByteTokenizer()
    """How text becomes ids, such as `{ kind = "bpe", vocab_size = 1024 }`."""

    block: Annotated[int, Field(ge=1)] = 256
    """Tokens of a row."""

    packing: Packing = "stream"
    """`stream`: all documents in a row, cut every `block` tokens; `documents`: whole documents, as many as fit, that do
    not see each other; `pad`: a document a row."""

    tokenizer_digest: Host[str | None] = None
    """The SHA-256 of the tokenizer. Filled in; where it is written, the tokenizer must have it."""

    _kept: bytes | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.files is None) == (self.source is None):
            told = "text needs either files or source" + (", and both are set" if self.files is not None else "")
            raise PydanticCustomError("text", "{told}", {"told": told})
        if self.files == ():
            raise PydanticCustomError("text", "{told}", {"told": "files names no glob"})
        return self

    def build(self, dist: Dist, split: SplitPlan | None, seed: int) -> BuiltSet:
        """Splits by document; arguments as of `DataSet.build`.

        Raises:
            NotFoundError: a glob matches no file.
            DataError: a file cannot be read, or there is no document.
            SplitError, ConfigError: the plan does not fit the documents, or the tokenizer cannot be had.
            MissingExtraError: the tokenizer's library is not installed.
        """
        found = pydoc_documents() if self.source == "pydoc" else read_documents(self.files or (), self.documents)
        held = without_doubles(found)
        if not held:
            raise DataError("there is no document", where="data.files", why="the files hold nothing but white space")
        content = content_of_documents(held)
        rows, digest = self.rows_by_split(split, seed, len(held), content)
        by_split = {name: [held[row] for row in rows[name]] for name in rows}
        codec = self._codec([document.whole for document in by_split["train"]])
        packs = {name: self._packed(codec, documents) for name, documents in by_split.items()}
        size = codec.vocab_size
        declared = Declared(inputs=("tokens",), target="label", vocab_size=size, length=self.block)
        told = self._told(len(found), by_split, packs)
        arrays = {name: pack.arrays for name, pack in packs.items()}
        built = self.batched(arrays, declared, content, **told, split=digest)
        built.kept[KEPT_TOKENIZER] = codec.content
        return built

    def fills(self, data: Mapping[str, Any], batch: Mapping[str, RowSpec], declared: Declared) -> Mapping[str, Any]:
        """The digest of the tokenizer too; arguments as of `Part`.

        Raises:
            IncompatibleError: it is another than what is written.
        """
        found = dict(super().fills(data, batch, declared))
        content = self.kept_files(data).get(KEPT_TOKENIZER)
        if content is not None:
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            if self.tokenizer_digest not in (None, digest):
                raise IncompatibleError(
                    f"the tokenizer is {digest}, and data.tokenizer_digest is {self.tokenizer_digest}",
                    where="data.tokenizer_digest",
                    fix="use the tokenizer that was meant, or leave data.tokenizer_digest out",
                )
            found["tokenizer_digest"] = digest
        return found

    def with_kept(self, files: Mapping[str, bytes]) -> Self:
        """It with the tokenizer that a run kept, which is not trained again."""
        if KEPT_TOKENIZER not in files:
            return self
        copy = self.model_copy()
        copy._kept = files[KEPT_TOKENIZER]
        return copy

    def _codec(self, texts: Sequence[str]) -> TextCodec:
        if self._kept is not None:
            return read_codec(self._kept, self.tokenizer.special_names, where=KEPT_TOKENIZER)
        return self.tokenizer.trained(texts)

    def _packed(self, codec: TextCodec, documents: Sequence[TextDocument]) -> PackedRows:
        roles = ("pad", "eos") if self.packing == "stream" else ("pad", "bos", "eos")
        ids = dict(zip(roles, codec.needed(*roles), strict=True))
        prompts = codec.encode_all([document.prompt or "" for document in documents])
        texts = codec.encode_all([document.text for document in documents])
        encoded = [
            EncodedDocument([*before, *after], len(before), len(document.text.encode("utf-8")))
            for document, before, after in zip(documents, prompts, texts, strict=True)
        ]
        pack = packed(encoded, self.packing, self.block, ids)
        arrays = dict(pack.arrays)
        sizes = arrays.pop("ended_bytes")
        reason = self._uncounted(documents, pack, len(sizes))
        arrays[TEXT_BYTES] = sizes if reason is None else np.full_like(sizes, reason)
        return PackedRows(arrays, pack.cut)

    def _uncounted(self, documents: Sequence[TextDocument], pack: PackedRows, rows: int) -> int | None:
        if any(document.prompt is not None for document in documents):
            return -1
        if pack.cut:
            return -2
        return -3 if self.limit is not None and self.limit < rows else None

    def _told(
        self, read: int, by_split: Mapping[str, Sequence[TextDocument]], packs: Mapping[str, PackedRows]
    ) -> dict[str, Any]:
        used = sum(map(len, by_split.values()))
        told: dict[str, Any] = {"documents": {name: len(documents) for name, documents in by_split.items()}}
        told["equal documents left out"] = read - used
        cut = {name: pack.cut for name, pack in packs.items() if pack.cut}
        return told | ({"documents cut": cut} if cut else {})
