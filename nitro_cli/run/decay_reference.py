"""The parameters that a decay toward `"w0"` pulls to, and how a resume finds them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nitro_cli.checkpoints import SourceOfWeights, read_record
from nitro_cli.errors import ConfigError, IncompatibleError, NitroError, nearest
from nitro_cli.run.devices import Placement
from nitro_cli.run.snapshot import unflatten
from nitro_cli.run.start import Start

__all__ = ["decay_reference"]


def decay_reference(
    start: Start, fresh: Callable[[], Any], loaded: Any, placement: Placement
) -> tuple[Callable[[], Any], SourceOfWeights | None]:
    """What makes the parameters that `w0` stands for in this run, and which loaded weights those are, if any.

    A record holds the anchors' checksums but not their arrays: it says which weights they were, and a resume reads
    them from there again.

    Args:
        start: whose `w0` is `"build_model"`, `"weights"` or a parameter tree.
        fresh: makes the parameters as `build_model` returns them.
        loaded: with the source's in their place.
        placement: the devices.

    Raises:
        ConfigError: `w0` is none of these, or `"weights"` without any.
        IncompatibleError: from what makes them: the weights that a resumed run is anchored to cannot be read any more.
    """
    source = start.source
    if not isinstance(start.w0, str):
        leaves = jax.tree.leaves(start.w0)
        if not all(isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float) for leaf in leaves):
            raise ConfigError("w0 is no tree of arrays", fix='w0 is "build_model", "weights" or a parameter tree')
        return lambda: placement.put_parameters(start.w0), None
    if start.w0 not in ("build_model", "weights"):
        raise ConfigError(
            f"w0 = {start.w0!r}",
            nearest=nearest(start.w0, ["build_model", "weights"]),
            fix='w0 is "build_model", "weights" or a parameter tree',
        )
    if source is not None and source.kind == "resume":
        held = source.record.meta.w0
        if held is not None and source.record.meta.anchors:
            return lambda: placement.put_parameters(_read_again(held, like=loaded)), held
    if start.w0 == "build_model":
        return fresh, None
    if source is None or source.kind == "resume":
        raise ConfigError(
            'w0 = "weights" without weights',
            why="a resumed run decays toward what it did before" if source is not None else None,
            fix='give weights= a checkpoint, or leave w0 at "build_model"',
        )
    path = None if source.path is None else str(Path(source.path).resolve())
    return lambda: loaded, SourceOfWeights(path=path, text=source.text, ema=start.load_ema)


def _read_again(held: SourceOfWeights, *, like: Any) -> Any:
    prefix = "ema" if held.ema else "params"
    try:
        if held.path is None:
            raise IncompatibleError("they were not those of one checkpoint")
        arrays = read_record(held.path, prefixes=(f"{prefix}/",)).arrays
    except NitroError as error:
        raise IncompatibleError(
            "the weights that the run decays toward cannot be read any more",
            where=held.text,
            why=error.what,
            fix="give them as a parameter tree: Nitro(..., resume=..., w0=params), or start a new run with weights=",
        ) from error
    return unflatten(prefix, like, arrays, source=held.text, what="parameters")
