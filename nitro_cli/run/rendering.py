"""Pictures of samples, drawn by the experiment's `visualize` hook."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nitro_cli.data import batch_length
from nitro_cli.errors import ConfigError, HookError, NotFoundError, StorageError, nearest
from nitro_cli.experiment import HookTable
from nitro_cli.run.plan import Plan
from nitro_cli.run.progress import Progress
from nitro_cli.run.state import RunState
from nitro_cli.text import user_path

__all__ = ["render"]


def render(
    plan: Plan,
    run: RunState,
    predict: Callable[[Any], Any] | None,
    batch: Mapping[str, Any] | None,
    *,
    split: str,
    batches: int,
    out_dir: Path | str | None,
    tag: str | None,
) -> list[Path]:
    """See `Nitro.render`; `predict` gives the outputs of a batch, None draws without."""
    e, hooks = run.host_view(), plan.settings.hooks
    if isinstance(batch, str):
        raise ConfigError(
            f"{batch!r} is no batch, which is what render takes first", fix=f"nitro.render(split={batch!r})"
        )
    if batch is not None and not isinstance(batch, Mapping):
        raise ConfigError(
            f"a {type(batch).__name__} is no batch",
            why="a batch is a mapping of fields, batch first",
            fix="nitro.render({'x': array}), or nitro.render(split='val')",
        )
    if not hooks.has("visualize"):
        raise ConfigError(
            f"{type(e).__name__} has no `visualize` hook",
            fix="define visualize(self, outputs, *, <fields>) and return a matplotlib figure",
        )
    if batches < 1:
        raise ConfigError(f"batches = {batches}", why="at least one batch is rendered")
    if batch is None:
        _check_split(plan, split)
    folder = user_path(out_dir) if out_dir is not None else plan.settings.run_dir / "viz"
    folder.mkdir(parents=True, exist_ok=True)
    if out_dir is None:
        _check_no_links(folder)
    prefix = f"{split}_" if batch is None and tag is None else (f"{tag}_" if tag else "")
    source = _batches(plan, split, batches, predicted=predict is not None) if batch is None else iter([batch])
    paths: list[Path] = []
    with Progress.phase("rendering"):
        for one in source:
            paths += _render_batch(hooks, e, one, predict, folder, prefix, len(paths))
    return paths


def _render_batch(
    hooks: HookTable,
    e: Any,
    batch: Mapping[str, Any],
    predict: Callable[[Any], Any] | None,
    folder: Path,
    prefix: str,
    first: int,
) -> list[Path]:
    outputs = predict(batch) if predict is not None else None
    fields = hooks.fields("visualize").fields_for(list(batch), "the batch to render")
    paths: list[Path] = []
    for row in range(batch_length(batch)):
        sample = {name: _row(batch[name], row) for name in fields}
        mine = None if outputs is None else jax.tree.map(lambda leaf, row=row: leaf[row], outputs)
        figure = hooks.call(e, "visualize", mine, batch=sample)
        written = hooks.call(e, "save_figure", figure, str(folder / f"{prefix}{first + row:03d}"))
        if written is None:
            raise HookError("`save_figure` returned None", fix="return the path that was written")
        _close(figure)
        paths.append(Path(written))
    return paths


def _row(values: Any, row: int) -> Any:
    value = values[row]
    return value.item() if isinstance(value, np.generic) else value


def _check_no_links(folder: Path) -> None:
    """Refuse to draw through a link that lies in a run, which somebody else may have made.

    Raises:
        StorageError: the folder is a link, or holds one.
    """
    links = [path for path in (folder, *sorted(folder.iterdir())) if path.is_symlink()]
    if links:
        raise StorageError(
            "a picture would be written through a link",
            where=str(links[0]),
            why="what a run holds is not followed out of it",
            fix="remove the link, or name the folder to write to: out_dir=, --out",
        )


def _check_split(plan: Plan, split: str) -> None:
    splits = plan.splits
    if split not in splits:
        raise NotFoundError(
            f"there is no split {split!r}",
            why=f"build_data returned: {', '.join(sorted(splits)) or 'none'}",
            nearest=nearest(split, splits),
        )


def _batches(plan: Plan, split: str, count: int, *, predicted: bool) -> Iterator[Mapping[str, Any]]:
    fields = frozenset(plan.forward_fields) if predicted else frozenset()
    with plan.splits[split].whole().stream(epoch=0, seed=plan.settings.seed, device_fields=fields) as stream:
        for item, _ in zip(stream, range(count), strict=False):
            yield item.host


def _close(figure: Any) -> None:
    """Matplotlib keeps every pyplot figure alive until it is closed."""
    if type(figure).__module__.startswith("matplotlib."):
        from matplotlib import pyplot

        pyplot.close(figure)
