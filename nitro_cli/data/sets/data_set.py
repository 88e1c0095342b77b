"""The family of data sets: the fields that all have, the hooks they supply, and how rows become sources."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from nitro_cli.data.arrays import ArrayBatches
from nitro_cli.data.dist import Dist
from nitro_cli.data.sets.augment import Augment
from nitro_cli.data.sets.built_set import BuiltSet
from nitro_cli.data.sets.preparation import Normalize, check_preparation, check_spacing, prepared_fields
from nitro_cli.data.splits import SplitPlan, StratifiedSplit
from nitro_cli.data.standardizer import Standardizer
from nitro_cli.errors import ConfigError
from nitro_cli.experiment import Declared, Device, FieldKind, GraphConst, Hook, Host, Part, RowSpec
from nitro_cli.text import Catalogue

__all__ = ["DATA_SETS", "BatchSize", "DataSet", "register_data"]

DATA_SETS: Catalogue[type[DataSet]] = Catalogue(
    "data set",
    "nitro.data",
    shipped={
        "arrays": "nitro_cli.data.sets.arrays_set:Arrays",
        "mnist": "nitro_cli.data.sets.mnist:Mnist",
        "sklearn": "nitro_cli.data.sets.sklearn_set:Sklearn",
        "text": "nitro_cli.data.sets.text_set:Text",
    },
)
"""The data sets by (id, version): nitro's own, those of `register_data`, and those of the entry points `nitro.data`."""

BatchSize = Annotated[int, Field(ge=1)] | Literal["full"]
"""Rows per batch; `full` is the whole split in one, hence one update per epoch."""


class DataSet(Part):
    """A part that supplies `build_data` and `prepare`. A further one, registered by `register_data`, gives `build`.

    A field of this type holds any data set; in TOML it is a table with its `kind`. A field of the experiment that is
    called `split` and holds a split plan reaches `build`. Unmarked fields are Host: no program depends on them.
    """

    catalogue: ClassVar[Catalogue[Any] | None] = DATA_SETS
    precedence: ClassVar[int] = 10
    unmarked: ClassVar[FieldKind] = FieldKind.HOST

    batch_size: Host[BatchSize] = 64
    """Rows per batch; "full", or more than there are, is the whole split in one batch: one update per epoch."""

    eval_batch_size: Host[BatchSize | None] = None
    """Rows per batch of the splits that are not trained on; unset, `batch_size`."""

    shuffle: Host[bool] = True
    """Whether each epoch of training has a new random order."""

    resident: Host[bool | None] = None
    """Whether the rows stay on the device; unset, they do where they are small."""

    limit: Host[Annotated[int, Field(ge=1)] | None] = None
    """The most rows of each split, drawn once, for trials."""

    content: Host[str | None] = None
    """The digest of the content. Filled in from the data; where it is written, the data must have it."""

    normalize: GraphConst[Normalize | None] = None
    """Mean and deviation of each channel, `[[mean...], [deviation...]]`: what `forward` takes is brought to them."""

    augment: GraphConst[tuple[Augment, ...]] = ()
    """Random changes of images in training, such as `["flip", { kind = "shift", n = 2 }]`."""

    standardize: GraphConst[bool] = False
    """Whether columns are brought to mean 0 and deviation 1, by the rows of train alone."""

    mean: Device[tuple[float, ...] | None] = None
    """What `standardize` subtracts, per column. Filled in from the rows of train; what is written is used."""

    scale: Device[tuple[float, ...] | None] = None
    """What `standardize` divides by, per column. Filled in from the rows of train; what is written is used."""

    @abstractmethod
    def build(self, dist: Dist, split: SplitPlan | None, seed: int) -> Mapping[str, Any]:
        """The sources by split.

        Args:
            dist: which process this is.
            split: the experiment's split plan, None where it has none.
            seed: the run's seed.

        Returns:
            `train`, `val`, `test` or other names, each with a source; `self.batched` makes them of arrays.
        """

    def declares(self, data: Mapping[str, Any]) -> Declared:
        """What the set tells others: the fields to take, the target, classes and widths; arguments as of `Part`."""
        return data.declared if isinstance(data, BuiltSet) else Declared()

    def fills(self, data: Mapping[str, Any], batch: Mapping[str, RowSpec], declared: Declared) -> Mapping[str, Any]:
        """Content, mean and scale, from the data; arguments as of `Part`.

        Raises:
            ConfigError: the content is another than what is written, or no field can be prepared as the set says.
            DataError: float32 cannot tell the values of a column apart.
        """
        check_preparation(self.label, self.normalize, self.augment, self.standardize, batch, declared.inputs)
        found: dict[str, Any] = {}
        if isinstance(data, BuiltSet):
            found["content"] = data.content
            if self.content not in (None, data.content):
                raise ConfigError(
                    f"the data has the content {data.content}, and data.content is {self.content}",
                    where="data.content",
                    fix="use the data that was meant, or leave data.content out",
                )
        train = data.get("train")
        if self.standardize and (self.mean is None or self.scale is None):
            if not isinstance(train, ArrayBatches) or not declared.inputs:
                return found
            columns = train.arrays[declared.inputs[0]]
            fitted = Standardizer.fit(columns, rows=train.rows).arrays()
            check_spacing(columns if train.rows is None else columns[train.rows], fitted["scale"])
            # As plain numbers, which a configuration can hold.
            found |= {name: tuple(map(float, fitted[name])) for name in fitted if getattr(self, name) is None}
        return found

    def notes(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Rows by split, and what else was found; argument as of `Part`."""
        return data.told if isinstance(data, BuiltSet) else {}

    def kept_files(self, data: Mapping[str, Any]) -> Mapping[str, bytes]:
        """What a run keeps of it; argument as of `Part`."""
        return data.kept if isinstance(data, BuiltSet) else {}

    def prepare(self, inputs: Mapping[str, Any], train: bool, key: Any) -> Mapping[str, Any]:
        """The way from a batch to what `forward` takes, traced: bytes to 0..1, `augment` in training, `normalize`,
        `standardize`.

        Args:
            inputs: the fields that `forward` takes, batch axis first.
            train: whether it is a step of training.
            key: the step's random key, None outside of training.

        Returns:
            The fields that change.
        """
        statistics = (self.mean, self.scale) if self.standardize else (None, None)
        return prepared_fields(inputs, self.augment if train else (), key, self.normalize, *statistics)

    def hooks(self) -> Mapping[str, Hook]:
        """What follows from the set."""
        return {
            "build_data": Hook(self.build_of, fields={}, with_experiment=True),
            "prepare": Hook(self.prepare, fields={}),
        }

    def build_of(self, e: Any, dist: Dist) -> Mapping[str, Any]:
        """`build` with what it takes from the experiment: its field `split` and its seed."""
        split = getattr(e, "split", None)
        return self.build(dist, split if isinstance(split, SplitPlan) else None, e.seed)

    def batched(self, splits: Mapping[str, Any], declared: Declared, content: str, **told: Any) -> BuiltSet:
        """Sources over arrays, as the fields say: batch sizes, order, limit.

        Args:
            splits: per split either arrays by field, or `(arrays, rows)` with the rows of the arrays that it has.
            declared: what the set tells the other parts.
            content: the digest of the content.
            told: what the setup report says beside.
        """
        sources, rows_of = {}, {}
        for name, given in splits.items():
            arrays, rows = given if isinstance(given, tuple) else (given, None)
            rows = self._limited(rows, len(next(iter(arrays.values()))))
            sources[name] = self._source(name, arrays, rows)
            rows_of[name] = sources[name].samples
        if "train" in sources and len(sources["train"]) == 1:
            told = {**told, "updates per epoch": "one: the batch is the whole split"}
        return BuiltSet(sources, declared, content, {"rows": rows_of, **told})

    def rows_by_split(
        self,
        split: SplitPlan | None,
        seed: int,
        count: int,
        content: str,
        *,
        labels: Any = None,
        ids: Any = None,
        columns: Mapping[str, Any] | None = None,
    ) -> tuple[Mapping[str, np.ndarray], str]:
        """The rows of each split of a source that has none of its own.

        Args:
            split: the experiment's plan; None is 0.7, 0.15, 0.15, stratified.
            seed: the run's seed, for a plan without one.
            count: how many rows there are.
            content: the digest of the content, which stands for the source where rows have no ids.
            labels: the class of each row; None for a set without classes.
            ids: the ids of the rows.
            columns: the columns that a plan may go by.

        Returns:
            The rows, and the digest of the split.

        Raises:
            SplitError: the plan does not fit the rows.
            ConfigError: it goes by a column that there is not.
        """
        plan = StratifiedSplit(seed=0) if split is None else split
        if "seed" in type(plan).model_fields and getattr(plan, "seed", None) is None:
            plan = plan.replace(seed=seed)
        name, held = plan.column, None
        if name is not None:
            if name not in (columns or {}):
                raise ConfigError(
                    f"the data set {self.label} has no column {name!r} to split by",
                    where="split.by",
                    why=f"there are: {', '.join(columns)}" if columns else "its rows have no such columns",
                )
            held = (columns or {})[name]
        applied = plan.for_rows(count, ids, held, labels, content)
        return applied, applied.digest

    def refuse_split(self, split: SplitPlan | None) -> None:
        """Refuse a split plan for a source that has splits of its own.

        Raises:
            ConfigError: there is one.
        """
        if split is not None:
            raise ConfigError(
                f"the data set {self.label} has splits of its own, and `split` is set",
                where="split",
                why="a split plan is for rows that are not split yet",
                fix="leave split out",
            )

    def _limited(self, rows: np.ndarray | None, held: int) -> np.ndarray | None:
        count = held if rows is None else len(rows)
        if self.limit is None or self.limit >= count:
            return rows
        # Drawn, because rows may be sorted by class; the same ones in every run.
        kept = np.sort(np.random.default_rng(0).permutation(count)[: self.limit])
        return kept if rows is None else rows[kept]

    def _source(self, name: str, arrays: Mapping[str, np.ndarray], rows: np.ndarray | None) -> ArrayBatches:
        train = name == "train"
        wanted = self.batch_size if train or self.eval_batch_size is None else self.eval_batch_size
        count = len(next(iter(arrays.values()))) if rows is None else len(rows)
        size = count if wanted == "full" else min(int(wanted), count)
        return ArrayBatches(arrays, size, shuffle=train and self.shuffle, resident=self.resident, rows=rows)


register_data = DATA_SETS.register
"""`@register_data(id, version=1)`: a class decorator that makes a data set known as `{ kind = id }`."""
