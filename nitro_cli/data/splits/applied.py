"""What a split plan gives for the rows of one source, and the manifest that says it again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nitro_cli.data.splits.row_keys import RowKeys
from nitro_cli.errors import IntegrityError, NotFoundError, SplitError
from nitro_cli.text import read_regular, write_atomically
from nitro_cli.text.canonical import canonical_digest

__all__ = ["EXCLUDED", "SPLIT_NAMES", "AppliedSplit", "applied_split", "read_manifest_of_split"]

SPLIT_NAMES = ("train", "val", "test")
EXCLUDED = "excluded"
_FORMAT = 1
_LARGEST = 2**30


@dataclass(frozen=True, eq=False)
class AppliedSplit(Mapping[str, np.ndarray]):
    """Rows by split: `applied["train"]` is int64 (n,), ascending; `val` and `test` may be absent.

    Attributes:
        strategy: the plan that was applied, as plain data, with the seed that held.
        source: what the rows are of; None where ids alone name them.
        id_type: `text`, `int`, or `position` where rows have no ids.
        rows: the rows of each split, `excluded` among them.
        ids: the ids of each split, in the order of `rows`.
    """

    strategy: Mapping[str, Any]
    source: str | None
    id_type: str
    rows: Mapping[str, np.ndarray]
    ids: Mapping[str, tuple[Any, ...]]

    @property
    def active(self) -> tuple[str, ...]:
        """The splits that have rows, in the order train, val, test."""
        return tuple(name for name in SPLIT_NAMES if len(self.rows[name]))

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.active:
            raise KeyError(name)
        return self.rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.active)

    def __len__(self) -> int:
        return len(self.active)

    @property
    def excluded(self) -> np.ndarray:
        """The rows of no split, int64 (n,)."""
        return self.rows[EXCLUDED]

    @property
    def manifest(self) -> dict[str, Any]:
        """What `SavedSplit` needs to say it again, with the digest of the rest; no order of rows is in it."""
        held = {
            "format": _FORMAT,
            "strategy": dict(self.strategy),
            "source": self.source,
            "id_type": self.id_type,
            "splits": {name: sorted(self.ids[name]) for name in (*SPLIT_NAMES, EXCLUDED)},
        }
        return held | {"digest": canonical_digest(held)}

    @property
    def digest(self) -> str:
        """The digest of the manifest: equal for equal splits of equal ids, whatever the order of the rows."""
        return str(self.manifest["digest"])

    def save(self, path: Path | str) -> None:
        """Write the manifest as sorted JSON, whole or not at all; `SavedSplit(path)` reads it."""
        text = json.dumps(self.manifest, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
        write_atomically(Path(path), text.encode("utf-8"))


def read_manifest_of_split(path: Path) -> dict[str, Any]:
    """The manifest that `AppliedSplit.save` wrote.

    Raises:
        NotFoundError: there is no such file.
        IntegrityError: it is no manifest of a split, or its digest is another.
    """
    where = str(path)
    try:
        held = json.loads(read_regular(path, limit=_LARGEST).decode("utf-8"))
    except FileNotFoundError:
        fix = "name the file that was saved"
        raise NotFoundError(f"there is no split file {path.name}", where=where, fix=fix) from None
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path.name} cannot be read as a split", where=where, why=str(error)) from error
    problem = _problem_of(held)
    if problem is not None:
        raise IntegrityError(f"{path.name} is no split manifest: {problem}", where=where)
    rest = {key: value for key, value in held.items() if key != "digest"}
    if canonical_digest(rest) != held["digest"]:
        raise IntegrityError(
            f"{path.name} is not what was written: its digest is another",
            where=where,
            fix="save the split again, or take the file from where it was made",
        )
    return dict(held)


def _problem_of(held: Any) -> str | None:
    if not isinstance(held, dict):
        return "it holds no object"
    wanted = {"format", "strategy", "source", "id_type", "splits", "digest"}
    if held.keys() != wanted:
        return f"its keys are {', '.join(sorted(held))}"
    if held["format"] != _FORMAT:
        return f"its format is {held['format']!r}, and this nitro reads {_FORMAT}"
    splits = held["splits"]
    if not isinstance(splits, dict) or splits.keys() != {*SPLIT_NAMES, EXCLUDED}:
        return "its splits are not train, val, test and excluded"
    if not all(isinstance(ids, list) for ids in splits.values()) or held["id_type"] not in ("text", "int", "position"):
        return "it holds no ids"
    kind = str if held["id_type"] == "text" else int
    if any(type(id) is not kind for ids in splits.values() for id in ids):
        return f"an id is no {held['id_type']}"
    return None


def applied_split(strategy: Mapping[str, Any], keys: RowKeys, of_row: Sequence[str]) -> AppliedSplit:
    """Put rows to the splits that they belong to.

    Args:
        strategy: the plan as plain data.
        keys: `RowKeys` of the rows.
        of_row: the split of each row, or `excluded`.

    Raises:
        SplitError: no row trains.
    """
    names = np.asarray(of_row, dtype="U8")
    rows = {name: np.flatnonzero(names == name) for name in (*SPLIT_NAMES, EXCLUDED)}
    if not len(rows["train"]):
        raise SplitError(
            "no row is left to train on",
            where=f"split, strategy {strategy.get('strategy')}",
            why=f"of {len(names)} rows {', '.join(f'{len(found)} {name}' for name, found in rows.items())}",
        )
    ids = {name: tuple(keys.ids[row] for row in found) for name, found in rows.items()}
    return AppliedSplit(strategy, keys.source, keys.id_type, rows, ids)
