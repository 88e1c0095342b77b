"""Arrays from `.npz` files."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from nitro_cli.data.dist import Dist
from nitro_cli.data.sets.built_set import BuiltSet, content_of_arrays
from nitro_cli.data.sets.data_set import DataSet, register_data
from nitro_cli.data.splits import SplitPlan
from nitro_cli.errors import DataError, NotFoundError, nearest
from nitro_cli.experiment import Declared, Host

__all__ = ["Arrays"]

_TARGETS = ("label", "labels", "target")


@register_data("arrays")
class Arrays(DataSet):
    """The arrays of an `.npz` file, which are split, or of a folder with one `.npz` per split; a field per array.

    Arrays of Python objects are refused: reading them would run code.
    """

    path: Path
    """The `.npz` file, or a folder with `train.npz` and others."""

    inputs: Host[tuple[str, ...] | None] = None
    """The arrays that a network takes; unset, all numbers but target and id."""

    target: Host[str | None] = None
    """The array of the targets; unset, the first of `label`, `labels`, `target` that there is."""

    id: Host[str | None] = None
    """The array that names the rows, by which a split does not depend on their order."""

    def __init__(self, path: Path | str | None = None, /, **values: Any) -> None:
        given: dict[str, Any] = {} if path is None else {"path": Path(path)}
        super().__init__(**given, **values)

    def build(self, dist: Dist, split: SplitPlan | None, seed: int) -> BuiltSet:
        """The splits of the folder, or of the plan; arguments as of `DataSet.build`.

        Raises:
            NotFoundError: there is no such file.
            DataError: a file cannot be read, holds objects, or arrays that go with no other.
            SplitError, ConfigError: the plan does not fit the rows.
        """
        if self.path.is_dir():
            self.refuse_split(split)
            files = sorted(self.path.glob("*.npz"))
            if not files:
                raise NotFoundError("the folder has no .npz file", where=str(self.path), fix="name them train.npz, ...")
            splits = {file.stem: self._loaded(file) for file in files}
            first = next(iter(splits.values()))
            whole = {f"{name}/{field}": array for name, arrays in splits.items() for field, array in arrays.items()}
            target = self._target(first)
            held = np.concatenate([a[target] for a in splits.values() if target in a]) if target else None
            return self.batched(splits, self._declared(first, target, held), content_of_arrays(whole))
        arrays = self._loaded(self.path)
        target, content = self._target(arrays), content_of_arrays(arrays)
        values = None if target is None else arrays[target]
        classes = values if values is not None and values.ndim == 1 and values.dtype.kind in "iub" else None
        ids = None if self.id is None else self._named(arrays, self.id, "id")
        count = len(next(iter(arrays.values())))
        rows, digest = self.rows_by_split(split, seed, count, content, labels=classes, ids=ids, columns=arrays)
        views = {name: (arrays, rows[name]) for name in rows}
        return self.batched(views, self._declared(arrays, target, values), content, split=digest)

    def _loaded(self, path: Path) -> dict[str, np.ndarray]:
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files} if hasattr(file, "files") else None
        except FileNotFoundError:
            raise NotFoundError("the file of arrays is missing", where=str(path), fix="name it by data.path") from None
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            pickled = "allow_pickle" in str(error)
            raise DataError(
                f"{path.name} holds Python objects" if pickled else f"{path.name} cannot be read as .npz",
                where=str(path),
                why="reading them would run code of whoever wrote the file" if pickled else str(error),
                fix="save numbers or fixed-width text: np.savez(path, x=..., label=...)",
            ) from error
        if not arrays:
            raise DataError(f"{path.name} holds no arrays by name", where=str(path), fix="save it by np.savez")
        sizes = {name: len(array) if array.ndim else None for name, array in arrays.items()}
        if len(set(sizes.values())) > 1 or None in sizes.values() or 0 in sizes.values():
            told = ", ".join(f"{name} {'no' if size is None else size}" for name, size in sizes.items())
            raise DataError(f"the arrays of {path.name} have different numbers of rows: {told}", where=str(path))
        return arrays

    def _named(self, arrays: dict[str, np.ndarray], name: str, field: str) -> np.ndarray:
        if name not in arrays:
            raise DataError(
                f"there is no array {name!r}",
                where=f"data.{field}",
                why=f"there are: {', '.join(arrays)}",
                nearest=nearest(name, arrays),
            )
        return arrays[name]

    def _target(self, arrays: dict[str, np.ndarray]) -> str | None:
        if self.target is not None:
            self._named(arrays, self.target, "target")
            return self.target
        return next((name for name in _TARGETS if name in arrays), None)

    def _declared(self, arrays: dict[str, np.ndarray], target: str | None, values: np.ndarray | None) -> Declared:
        for name in self.inputs or ():
            self._named(arrays, name, "inputs")
        rest = tuple(n for n, a in arrays.items() if n not in (target, self.id) and a.dtype.kind in "biuf")
        found = Declared(inputs=self.inputs or rest or None, target=target)
        if values is None:
            return found
        if values.dtype.kind in "iub" and values.ndim == 1 and values.min() >= 0:
            return Declared(found.inputs, target, num_classes=int(values.max()) + 1)
        if values.dtype.kind == "f" and values.ndim <= 2:
            return Declared(found.inputs, target, num_targets=1 if values.ndim == 1 else values.shape[1])
        return found
