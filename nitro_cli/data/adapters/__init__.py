"""Data sources of other libraries, chosen by what the object is; no library is imported for it."""

from __future__ import annotations

from typing import Any

from nitro_cli.data.adapters.kind import is_instance
from nitro_cli.data.wrappers import WithLength

__all__ = ["adapt"]


def adapt(name: str, source: Any) -> Any:
    """Return a native data source for an object of a known library, and any other object as it is.

    Args:
        name: name of the split, for errors.
        source: the object that `build_data` returned, without wrapper; in `WithLength` where it has
            no length of its own.

    Raises:
        DataError: the object is of a known library but lacks what a split needs.
    """
    inner = source.source if isinstance(source, WithLength) else source
    batches = source.batches if isinstance(source, WithLength) else None
    if is_instance(inner, "grain", "MapDataset"):
        from nitro_cli.data.adapters.grain import GrainMapBatches

        return GrainMapBatches(name, inner, batches)
    if is_instance(inner, "grain", "IterDataset", "DataLoader"):
        from nitro_cli.data.adapters.grain import GrainIterBatches

        return GrainIterBatches(name, inner, batches)
    if is_instance(inner, "torch", "DataLoader"):
        from nitro_cli.data.adapters.torch import torch_batches

        return torch_batches(name, inner, batches)
    if is_instance(inner, "datasets", "Dataset"):
        from nitro_cli.data.adapters.huggingface import refuse_rows

        refuse_rows(name, inner)
    if is_instance(inner, "tensorflow", "DatasetV2", "DatasetV1"):
        from nitro_cli.data.adapters.tensorflow import TensorFlowBatches

        return TensorFlowBatches(name, inner, batches)
    return source
