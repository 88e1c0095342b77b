"""The small sets that scikit-learn carries in itself."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from nitro_cli.data.dist import Dist
from nitro_cli.data.sets.built_set import BuiltSet, content_of_arrays
from nitro_cli.data.sets.data_set import DataSet, register_data
from nitro_cli.data.splits import SplitPlan
from nitro_cli.experiment import Declared
from nitro_cli.installation import import_extra

__all__ = ["Sklearn"]


@register_data("sklearn")
class Sklearn(DataSet):
    """A set that scikit-learn carries: `x` f32 (columns), of `digits` `image` f32 (8, 8, 1) in 0..16; `label` int32, of
    `diabetes` `target` f32 (1,). Nothing is downloaded.
    """

    name: Literal["iris", "digits", "wine", "breast_cancer", "diabetes"]
    """Which one."""

    def __init__(self, name: str | None = None, /, **values: Any) -> None:
        given: dict[str, Any] = {} if name is None else {"name": name}
        super().__init__(**given, **values)

    def build(self, dist: Dist, split: SplitPlan | None, seed: int) -> BuiltSet:
        """Three splits, or those that the plan says; arguments as of `DataSet.build`.

        Raises:
            MissingExtraError: scikit-learn is not installed.
            SplitError, ConfigError: the plan does not fit the rows.
        """
        datasets = import_extra("sklearn.datasets", use="The data set sklearn", where="data.kind")
        held = getattr(datasets, f"load_{self.name}")()
        x: np.ndarray = np.ascontiguousarray(held.data, np.float32)
        arrays: dict[str, np.ndarray] = {"image": x.reshape(-1, 8, 8, 1)} if self.name == "digits" else {"x": x}
        inputs, classes = tuple(arrays), None
        if self.name == "diabetes":
            arrays["target"] = np.asarray(held.target, np.float32)[:, None]
            declared = Declared(inputs=inputs, target="target", labels=("progression",), num_targets=1)
        else:
            arrays["label"] = classes = np.asarray(held.target, np.int32)
            labels = tuple(map(str, held.target_names))
            declared = Declared(inputs=inputs, target="label", labels=labels, num_classes=len(labels))
        content = content_of_arrays(arrays)
        rows, digest = self.rows_by_split(split, seed, len(x), content, labels=classes)
        return self.batched({name: (arrays, rows[name]) for name in rows}, declared, content, split=digest)
