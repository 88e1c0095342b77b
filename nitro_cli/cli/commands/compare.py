"""`nitro compare`: runs side by side, from their files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from nitro_cli.cli import completion
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.tables import number, table, value_text
from nitro_cli.cli.run_places import FoundRun, find_run, run_roots, summaries
from nitro_cli.cli.run_status import asked_text, stop_cause
from nitro_cli.errors import ConfigError, ExitCode, NotFoundError
from nitro_cli.text import user_path

__all__ = ["run"]

_MISSING = object()


def run(
    output: Output,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Runs: ids, own directories, or run directories, of which the newest; of one alone, all.",
            autocompletion=completion.known_runs,
        ),
    ],
    every: Annotated[bool, typer.Option("--all", help="Also the fields that are the same.")] = False,
) -> int:
    """Configurations and results of two or more runs side by side, differences first; of a directory, all its runs."""
    places = _all_of(output, runs[0]) if len(runs) == 1 else [find_run(text) for text in runs]
    if len(places) < 2:
        raise ConfigError("one run has nothing to be compared with", fix="name two or more: `nitro compare RUN RUN`")
    configs = [_configuration(place) for place in places]
    results = [_results(place) for place in places]
    names = list(dict.fromkeys(name for config in configs for name in config))
    differing = [name for name in names if len({repr(config.get(name, _MISSING)) for config in configs}) > 1]
    same = [name for name in names if name not in differing]
    if output.json:
        output.document(
            runs=[{"id": p.id, "run_dir": p.root, **r} for p, r in zip(places, results, strict=True)],
            differences=[{"field": name, "values": [config.get(name) for config in configs]} for name in differing],
            same={name: configs[0][name] for name in same},
        )
        return ExitCode.OK
    columns = ["", *(place.id for place in places)]
    fold = tuple(range(1, len(columns)))
    keys = list(dict.fromkeys(key for result in results for key in _shown(result)))
    rows = [[key, *(_shown(result).get(key) for result in results)] for key in keys]
    output.show(table(columns, rows, fold=fold, title="results"))
    _show_fields(output, columns, configs, differing, "\ndifferent")
    if every:
        _show_fields(output, columns, configs, same, "\nthe same")
    elif same:
        output.note(f"{len(same)} fields are the same; --all shows them")
    return ExitCode.OK


def _all_of(output: Output, text: str) -> list[FoundRun]:
    """The runs of a directory, the oldest first, but for those without a configuration; else the one run there is."""
    roots = list(run_roots(user_path(text)))
    places = [FoundRun(root, summary.id) for root in roots for summary in reversed(summaries(root))]
    readable = [place for place in places if place.has_config]
    if len(readable) < 2:
        return [find_run(text)]
    if left := [place.id for place in places if place not in readable]:
        output.note(f"left out, having no config.toml: {', '.join(left)}")
    return readable


def _show_fields(
    output: Output, columns: list[str], configs: list[dict[str, Any]], names: list[str], title: str
) -> None:
    if not names:
        return
    rows = [[name, *(value_text(c[name]) if name in c else "-" for c in configs)] for name in names]
    output.show(table(columns, rows, fold=tuple(range(1, len(columns))), title=title))


def _configuration(place: FoundRun) -> dict[str, Any]:
    """The run's `config.toml`, flat; what is none is absent."""
    from nitro_cli.registry import read_toml

    try:
        document = read_toml(place.config, follow=False).data
    except ConfigError as error:
        what = f"the run {place.id} has no readable configuration"
        raise NotFoundError(what, where=str(place.config), why=error.why) from error
    flat: dict[str, Any] = {}
    about = document.get("experiment", {})
    flat |= {key: about[key] for key in ("name", "preset") if key in about}
    for section in ("fields", "schedules"):
        prefix = "" if section == "fields" else "schedules."
        flat |= _flattened(prefix, document.get(section, {}))
    for name, held in document.get("unwritten", {}).items():
        flat[name] = f"{held.get('type')} {str(held.get('sha256'))[:8]}"
    flat.pop("run_dir", None)
    return flat


def _flattened(prefix: str, table_: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table_.items():
        if isinstance(value, Mapping):
            flat |= _flattened(f"{prefix}{key}.", value)
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _results(place: FoundRun) -> dict[str, Any]:
    """Status, best score and the last epoch's numbers."""
    summary = next((s for s in summaries(place.root) if s.id == place.id), None)
    found: dict[str, Any] = {} if summary is None else summary.as_json()
    facts = {key: found.get(key) for key in ("experiment", "import_path", "preset", "status", "best", "parent")}
    facts["stop_cause"] = None if summary is None else stop_cause(summary)
    try:
        from nitro_cli.cli.run_history import read_history

        history = read_history(place)
    except NotFoundError:
        return {**facts, "epochs": 0, "last": {}}
    rows = list(history)
    last = {k: v for k, v in (rows[-1] if rows else {}).items() if isinstance(v, int | float)}
    return {**facts, "epochs": len(rows), "last": last}


def _shown(result: dict[str, Any]) -> dict[str, str]:
    best = result["best"]
    shown = {"status": asked_text(result["stop_cause"]) or str(result["status"]), "epochs": str(result["epochs"])}
    if best is not None:
        shown[f"best {best['metric']}"] = number(best["score"], 6)
    last = {key: value for key, value in result["last"].items() if key not in ("epoch", "step")}
    return shown | {f"last {key}": number(value, 6) for key, value in last.items()}
