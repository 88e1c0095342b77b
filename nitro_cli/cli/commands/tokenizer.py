"""`nitro tokenizer`: tokenizers trained from text files, looked into and tried."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nitro_cli.cli.options import Force
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.tables import table
from nitro_cli.data.language import (
    BPE,
    SPECIALS,
    TextCodec,
    TokenizerFile,
    read_documents,
    without_doubles,
)
from nitro_cli.errors import ConfigError, ExitCode
from nitro_cli.text import user_path, write_atomically

__all__ = ["decode", "encode", "info", "train"]

_File = Annotated[str, typer.Argument(metavar="FILE", help="The tokenizer.json.")]
_Specials = Annotated[bool, typer.Option("--specials", help="The name of a special stands for it.")]


def train(
    output: Output,
    files: Annotated[list[str], typer.Argument(metavar="GLOB...", help="Text files: .txt, .md, .jsonl.")],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="The file to write.")] = "tokenizer.json",
    vocab_size: Annotated[int, typer.Option("--vocab-size", metavar="N", help="The most ids.")] = 8192,
    min_frequency: Annotated[
        int, typer.Option("--min-frequency", metavar="N", help="How often a pair occurs that becomes a token.")
    ] = 2,
    form: Annotated[str, typer.Option("--form", help="bytes: any text; words: split at white space.")] = "bytes",
    special: Annotated[
        list[str] | None, typer.Option("--special", metavar="NAME", help="A further special; may be repeated.")
    ] = None,
    documents: Annotated[str, typer.Option("--documents", help="What is one document: file or paragraph.")] = "file",
    force: Force = False,
) -> int:
    """Train a byte-pair tokenizer on text files, and write it as tokenizer.json."""
    specials = (*SPECIALS.values(), *(special or ()))
    chosen: dict[str, Any] = {"vocab_size": vocab_size, "min_frequency": min_frequency, "form": form}
    tokenizer = BPE(**chosen, specials=specials)
    if documents not in ("file", "paragraph"):
        raise ConfigError(f"--documents is {documents!r}", fix="use file or paragraph")
    target = user_path(out)
    if target.exists() and not force:
        raise ConfigError(f"{target.name} is there already", where=str(target), fix="choose another --out, or --force")
    held = without_doubles(read_documents(files, "file" if documents == "file" else "paragraph"))
    codec = tokenizer.trained([document.whole for document in held])
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, codec.content)
    return _told(output, codec, target, documents=len(held))


def info(output: Output, file: _File) -> int:
    """How many ids a tokenizer has, its specials and its digest."""
    path = user_path(file)
    return _told(output, _loaded(path), path)


def encode(
    output: Output,
    file: _File,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="The text; without it, standard input.")] = None,
    specials: _Specials = False,
) -> int:
    """The ids of a text."""
    codec = _loaded(user_path(file))
    ids = codec.encode(sys.stdin.read() if text is None else text, specials=specials)
    if output.json:
        output.document(ids=ids, tokens=[codec.token(id) for id in ids])
    else:
        output.text(" ".join(map(str, ids)))
    return ExitCode.OK


def decode(
    output: Output,
    file: _File,
    ids: Annotated[list[int] | None, typer.Argument(metavar="ID...", help="The ids; without, standard input.")] = None,
    specials: _Specials = False,
) -> int:
    """The text of ids."""
    text = _loaded(user_path(file)).decode(ids or _read_ids(), specials=specials)
    if output.json:
        output.document(text=text)
    else:
        output.text(text)
    return ExitCode.OK


def _read_ids() -> Sequence[int]:
    words = sys.stdin.read().split()
    wrong = next((word for word in words if not word.isdecimal()), None)
    if wrong is not None:
        raise ConfigError(f"{wrong!r} is no id", where="standard input", fix="write whole numbers with space between")
    return [int(word) for word in words]


def _loaded(path: Path) -> TextCodec:
    return TokenizerFile(path).trained(())


def _told(output: Output, codec: TextCodec, path: Path, **more: Any) -> int:
    specials = {name: codec.ids[role] for role, name in codec.names.items()}
    if output.json:
        output.document(path=str(path), vocab_size=codec.vocab_size, specials=specials, digest=codec.digest, **more)
        return ExitCode.OK
    rows: list[list[object]] = [
        ["file", str(path)],
        ["ids", codec.vocab_size],
        ["specials", ", ".join(f"{name} {id}" for name, id in specials.items()) or "none"],
        ["digest", codec.digest],
        *([name, value] for name, value in more.items()),
    ]
    output.show(table(["tokenizer", ""], rows, fold=(1,)))
    return ExitCode.OK
