"""One strict schema in front of every reader of a document: what does not fit is told with its file and its place."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError
from pydantic_core import PydanticCustomError

from nitro_cli.errors import IntegrityError
from nitro_cli.text.display_text import visible

__all__ = ["Count", "Digest", "Document", "Name", "Names", "Number", "check_document"]

_T = TypeVar("_T", bound=BaseModel)
_LONGEST_NAME = 16384
_SHOWN = 60


def _short(text: str) -> str:
    if len(text) > _LONGEST_NAME:
        raise PydanticCustomError("long", f"A text of {len(text)} characters is too long")
    return text


Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A whole number that counts or places something."""

Name = Annotated[str, AfterValidator(_short)]
"""A name or a path; may hold lone surrogates, as names of files do."""

Names = Annotated[tuple[Name, ...], Strict(False)]
"""Several names, a list in a document."""

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
"""A digest as `text.canonical.canonical_digest` writes it."""

Number = Annotated[float, Field(allow_inf_nan=False)]
"""A finite real number."""


class Document(BaseModel):
    """Base of the schemas. Types are strict, keys that are not known are ignored: a later nitro may write more."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", defer_build=True, protected_namespaces=())


def check_document(
    model: type[_T], value: Any, path: Path | str, *, what: str, fix: str | None = None, place: str = ""
) -> _T:
    """Return a parsed document as its schema.

    Args:
        model: the schema.
        value: what `parse_json` gave.
        path: the file, for the error.
        what: what is then damaged, such as "the manifest is damaged".
        fix: what to do.
        place: the key path of `value` in the document, if it is a part of it.

    Raises:
        IntegrityError: it does not fit; the first places that do not are named.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
    shown = "; ".join(f"{_place((*filter(None, [place]), *item['loc']))}: {_reason(item)}" for item in problems[:3])
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    raise IntegrityError(what, where=str(path), why=shown + more, fix=fix)


def _place(location: Sequence[str | int]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{visible(part[:_SHOWN], keep='')}"
    return text.removeprefix(".") or "the document"


def _reason(item: Any) -> str:
    found = visible(reprlib.repr(item["input"])[:_SHOWN], keep="")
    return f"{item['msg'][0].lower()}{item['msg'][1:]}, not {found}"
