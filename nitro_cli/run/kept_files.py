"""Files that a run keeps beside its checkpoints because what they hold must not be made again: a trained tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nitro_cli.checkpoints import read_run_file
from nitro_cli.errors import IncompatibleError, IntegrityError
from nitro_cli.experiment import HookTable, Part, part_fields, parts_of, with_unset
from nitro_cli.run.description import described
from nitro_cli.run.plan import Settings
from nitro_cli.run.restore import Source
from nitro_cli.text import read_regular

__all__ = ["kept_digests", "kept_in_run", "with_kept_files", "with_made_files"]

_LARGEST = 2**30


def kept_digests(files: Mapping[str, bytes]) -> dict[str, str]:
    """`sha256:<hex>` of each file, as run.json holds it."""
    return {name: f"sha256:{hashlib.sha256(content).hexdigest()}" for name, content in files.items()}


def kept_in_run(run: Path) -> dict[str, bytes]:
    """What a run keeps, checked against its run.json.

    Raises:
        IntegrityError: a file is missing, or another than the run wrote.
    """
    try:
        digests = read_run_file(run / "run.json").get("kept", {})
    except OSError:
        return {}
    files = {}
    for name, digest in digests.items() if isinstance(digests, dict) else ():
        file = run / Path(name).name
        try:
            content = read_regular(file, limit=_LARGEST, follow=False)
        except OSError as error:
            told = error.strerror or str(error)
            raise IntegrityError(f"{name}, which the run keeps, cannot be read", where=str(file), why=told) from error
        if kept_digests({name: content})[name] != digest:
            raise IntegrityError(
                f"{name} is not what the run wrote: its digest is another",
                where=str(file),
                why=f"run.json has {digest}",
                fix="put the file back from where the run was made",
            )
        files[name] = content
    return files


def with_kept_files(settings: Settings, source: Source | None) -> Settings:
    """The settings with what the run kept that the weights come from, given to the parts that it is of.

    Raises:
        IntegrityError: a file is missing or damaged.
        IncompatibleError: a part would make another file now.
    """
    if source is None:
        return settings
    files = source.kept if source.run_path is None else kept_in_run(source.run_path)
    e = settings.experiment
    if not files:
        return settings
    taking = {}
    for path, part in parts_of(e).items():
        taken = part.with_kept(files)
        if taken is not part:
            _check_same(settings, path, part, source)
            taking[path] = taken
    if not taking:
        return replace(settings, kept=files)
    resolved = replace(settings.resolved, experiment=with_unset(e, taking))
    return replace(settings, resolved=resolved, hooks=HookTable(resolved.experiment), kept=files)


def with_made_files(settings: Settings, sources: Mapping[str, Any]) -> Settings:
    """The settings with the files that the parts keep of the data."""
    made: dict[str, bytes] = {}
    for part in parts_of(settings.experiment).values():
        made |= part.kept_files(sources)
    return replace(settings, kept={**settings.kept, **made}) if made else settings


def _check_same(settings: Settings, path: str, part: Part, source: Source) -> None:
    """Refuse other values of the fields that a kept file follows from."""
    roots = tuple(f"{path}.{name}" for name in part.kept_by)
    recorded = {name: value for kind in source.record.meta.fields.values() for name, value in kind.items()}
    held = {name: value for name, value in recorded.items() if _is_below(name, roots)}
    now = {leaf.path: described(leaf.value) for leaf in part_fields(settings.experiment) if _is_below(leaf.path, roots)}
    different = sorted(name for name in held.keys() | now.keys() if _text(held.get(name)) != _text(now.get(name)))
    if recorded and different:
        told = "; ".join(f"{name} {now.get(name)!r} here, {held.get(name)!r} in the run" for name in different)
        raise IncompatibleError(
            f"{', '.join(roots)} is another than the run's",
            where=source.text,
            why=f"{told}: the weights know the ids of the one that the run keeps",
            fix="leave it as the run has it, or start a new run without these weights",
        )


def _is_below(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def _text(value: Any) -> str:
    return json.dumps(value, default=str, sort_keys=True)
