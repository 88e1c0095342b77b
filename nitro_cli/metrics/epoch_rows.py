"""The rows of a history: one per trained epoch, by epoch, by step and by metric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from nitro_cli.errors import ConfigError, IntegrityError, NotFoundError, nearest
from nitro_cli.metrics.history_file import read_rows
from nitro_cli.metrics.reported import flatten_scalars
from nitro_cli.metrics.rows import decode_row, encode_row
from nitro_cli.text import user_path

if TYPE_CHECKING:
    import numpy as np

__all__ = ["EpochRows"]

_AXES = ("epoch", "step")


class EpochRows:
    """The rows of a history and how they are selected; `History` adds the forms in which they are shown."""

    def __init__(
        self,
        rows: Iterable[Mapping[str, Any]] = (),
        *,
        monitor: tuple[str, str] | None = None,
        title: str | None = None,
        place: str | None = None,
        note: str | None = None,
    ) -> None:
        self.monitor = monitor
        self.title = title
        self.place = place
        self.note = note
        self._rows: list[dict[str, Any]] = []
        self._index: dict[int, int] = {}
        self._scalars: dict[str, None] = {}
        self._others: dict[str, None] = {}
        self._only: tuple[str, ...] | None = None
        if not isinstance(rows, Iterable) or isinstance(rows, str | Mapping):
            raise ConfigError(f"A history is made of rows, not of {type(rows).__name__}.", fix="give a list of them")
        for row in rows:
            self.append(row)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add the row of the next epoch.

        Raises:
            ConfigError: no mapping, no whole-number epoch or step, or an epoch that is not later than the last.
        """
        if not isinstance(row, Mapping):
            raise ConfigError(f"A history row is a {type(row).__name__}.", fix="give a mapping with epoch and step")
        judged = {"monitor": dict(row["monitor"])} if isinstance(row.get("monitor"), Mapping) else {}
        scalars, others = flatten_scalars({name: value for name, value in row.items() if name not in judged})
        epoch, step = scalars.get("epoch"), scalars.get("step")
        if type(epoch) is not int or type(step) is not int:
            raise ConfigError(f"A history row has epoch {epoch!r} and step {step!r}.", fix="give both as whole numbers")
        if self._rows and epoch <= self._rows[-1]["epoch"]:
            raise ConfigError(
                f"The history already reaches epoch {self._rows[-1]['epoch']}; a row for epoch {epoch} came.",
                why="there is one row per epoch, in order",
            )
        self._add({"epoch": epoch, "step": step, **scalars, **others, **judged})

    def _add(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, Mapping):
                continue  # the monitor, which is no column
            (self._scalars if isinstance(value, int | float) else self._others)[name] = None
        self._index[row["epoch"]] = len(self._rows)
        self._rows.append(row)

    @classmethod
    def read_jsonl(cls, path: str | Path, **keywords: Any) -> Self:
        """Read the rows of a `history.jsonl`; a torn last line is left out.

        Args:
            path: the file.
            keywords: `monitor`, `title`, `place`, `note`.

        Raises:
            RunNotFoundError: there is no such file.
            IntegrityError: a line other than the last is not a history row.
        """
        return cls.from_json_rows(read_rows(user_path(path)), origin=str(path), **keywords)

    @classmethod
    def from_json_rows(cls, rows: Iterable[Mapping[str, Any]], *, origin: str = "history", **keywords: Any) -> Self:
        """Build a history from what `json_rows` gave.

        Args:
            rows: the JSON objects.
            origin: where they lie, for errors.
            keywords: `monitor`, `title`, `place`, `note`.

        Raises:
            IntegrityError: a row is none that it gives, or the epochs do not ascend.
        """
        made = cls(**keywords)
        for number, obj in enumerate(rows):
            row = decode_row(obj, f"{origin}[{number}]")
            if made._rows and row["epoch"] <= made._rows[-1]["epoch"]:
                raise IntegrityError(f"{origin}[{number}] is not the row of a later epoch than the one before")
            made._add(row)
        return made

    def json_rows(self) -> list[dict[str, Any]]:
        """Every row as JSON-ready values, a non-finite number as null with the reason in `nonfinite`."""
        return [encode_row(row) for row in self]

    @property
    def columns(self) -> tuple[str, ...]:
        """The scalar columns: epoch, step, train_loss, the monitored metric, the others as they first came."""
        first = [*_AXES, "train_loss", *([self.monitor[0]] if self.monitor else [])]
        order = dict.fromkeys([n for n in first if n in self._scalars] + list(self._scalars))
        return tuple(n for n in order if self._shows(n) and n not in self._others)

    @property
    def arrays(self) -> tuple[str, ...]:
        """The metrics that are not scalars: not tabulated, reachable as columns."""
        return tuple(n for n in self._others if self._shows(n))

    @property
    def is_selection(self) -> bool:
        """Whether metrics were selected by name."""
        return self._only is not None

    def _shows(self, name: str) -> bool:
        return self._only is None or name in self._only or name in _AXES

    @property
    def best(self) -> dict[str, Any] | None:
        """The row with the best finite value of the monitored metric, the first of equals; None without one."""
        at = self.best_index
        return None if at is None else self._row(at)

    @property
    def best_index(self) -> int | None:
        """The position of the best row from 0; None without one."""
        if self.monitor is None:
            return None
        name, mode = self.monitor
        sign = 1.0 if mode == "max" else -1.0
        scored = [
            (sign * row[name], -i)
            for i, row in enumerate(self._rows)
            if isinstance(row.get(name), int | float) and math.isfinite(row[name])
        ]
        return -max(scored)[1] if scored else None

    def _row(self, at: int) -> dict[str, Any]:
        return {k: v for k, v in self._rows[at].items() if self._shows(k)}

    def __len__(self) -> int:
        return len(self._rows)

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self._row(i) for i in range(len(self._rows)))

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            return key in self.columns or key in self.arrays
        return key in self._index

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.column(key)
        if isinstance(key, slice):
            return self.select(epoch=key)
        if isinstance(key, tuple):
            names: list[str] = []
            epochs: slice | None = None
            for part in key:
                if isinstance(part, slice) and epochs is None:
                    epochs = part
                elif isinstance(part, str):
                    names.append(part)
                elif isinstance(part, tuple | list) and all(isinstance(n, str) for n in part):
                    names.extend(part)
                else:
                    raise TypeError(f"a history is selected by one slice of epochs and by metric names, not {part!r}")
            return self.select(*names, epoch=epochs)
        if not hasattr(key, "__index__") or isinstance(key, bool):
            raise TypeError(f"a history is indexed by epoch, slice or metric name, not {key!r}")
        return self._row(self._position(int(key)))

    def _position(self, epoch: int) -> int:
        if epoch in self._index:
            return self._index[epoch]
        if -len(self._rows) <= epoch < 0:
            return len(self._rows) + epoch
        there = (
            f"it holds epochs {self._rows[0]['epoch']} to {self._rows[-1]['epoch']}" if self._rows else "it is empty"
        )
        raise NotFoundError(
            f"The history has no epoch {epoch}.", why=there, fix="epochs count from 1; -1 is the last row"
        )

    def select(self, *names: str, epoch: slice | None = None, step: slice | None = None) -> Self:
        """Return the history of some metrics, epochs, or steps.

        Args:
            names: metrics to keep beside epoch and step; all when none is given.
            epoch: range of epochs, both ends included; a negative start counts from the end.
            step: range of optimizer steps, both ends included: the epochs that closed within it.
        """
        for name in names:
            self._check_name(name)
        chosen = range(len(self._rows))
        if epoch is not None:
            chosen = self._within(chosen, "epoch", epoch)
        rows = [self._rows[i] for i in chosen]
        if step is not None:
            rows = [self._rows[i] for i in self._within(chosen, "step", step)]
        made = type(self)(monitor=self.monitor, title=self.title, place=self.place, note=self.note)
        for row in rows:
            made._add(row)
        made._only = names or self._only
        return made

    def _within(self, chosen: Iterable[int], axis: Literal["epoch", "step"], bounds: slice) -> Any:
        start, stop = bounds.start, bounds.stop
        if (stop is not None and stop < 0) or (bounds.step is not None and bounds.step < 1):
            raise ConfigError(
                f"A history cannot be selected by {axis} {start}:{stop}:{bounds.step}.",
                why="both ends of the range are included, and rows keep their order",
                fix="give the last one to keep, and a positive stride",
            )
        if start is not None and start < 0:
            if axis == "step":
                raise ConfigError(f"Steps count from 1; {start} was given.")
            start = self._rows[max(0, len(self._rows) + start)]["epoch"] if self._rows else 1
        low = -math.inf if start is None else start
        high = math.inf if stop is None else stop
        kept = [i for i in chosen if low <= self._rows[i][axis] <= high]
        return kept[:: bounds.step or 1]

    def column(self, name: str) -> np.ndarray:
        """Return a column as an array with one entry per epoch.

        Scalars are int64 or float64, NaN where an epoch lacks the metric. Other metrics are stacked
        `[epochs, ...]`, or an object array with None where an epoch lacks one or its shape differs.

        Raises:
            ConfigError: there is no such column.
        """
        import numpy as np

        self._check_name(name)
        values = [row.get(name) for row in self._rows]
        if name not in self._others:
            return np.asarray([math.nan if v is None else v for v in values])
        arrays = [None if v is None else np.asarray(v) for v in values]
        if len({None if a is None else a.shape for a in arrays}) == 1:
            return np.stack(arrays)  # type: ignore[arg-type]
        ragged = np.empty(len(arrays), dtype=object)
        ragged[:] = arrays
        return ragged

    def _check_name(self, name: str) -> None:
        if name not in self:
            names = [*self.columns, *self.arrays]
            raise ConfigError(
                f"The history has no column {name!r}.",
                why=f"the columns are: {', '.join(names)}" if names else "it has no rows yet",
                nearest=nearest(name, names),
            )

    def __getattr__(self, name: str) -> Any:
        # Copying and pickling look attributes up before __init__ has run.
        if name.startswith("_") or name not in self:
            there = "" if name.startswith("_") else f"; its columns are {', '.join(self.columns)}"
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{there}")
        return self.column(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.columns, *self.arrays})
