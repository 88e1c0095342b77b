"""What is wrong with the values of an experiment or a knob, as data and as one error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from nitro_cli.errors import ConfigError, nearest

__all__ = ["Problem", "config_error", "problems_of"]


@dataclass(frozen=True)
class Problem:
    """One value that cannot be used.

    Args:
        path: keys and list positions from the top to the value; empty when the whole is wrong.
        message: what is wrong, one line, with the value that was given.
        nearest: valid names close to the one given.
        kind: pydantic's error type, such as `extra_forbidden` or `missing`.
    """

    path: tuple[str | int, ...]
    message: str
    nearest: tuple[str, ...] = ()
    kind: str = ""

    @property
    def keypath(self) -> str:
        """The path as text: `checkpointer.keep[0]`."""
        text = ""
        for item in self.path:
            text += f"[{item}]" if isinstance(item, int) else f".{item}"
        return text.lstrip(".")

    def __str__(self) -> str:
        hint = f" (did you mean {', '.join(self.nearest)}?)" if self.nearest else ""
        return f"{self.keypath}: {self.message}{hint}" if self.path else f"{self.message}{hint}"


def problems_of(error: ValidationError, cls: type[BaseModel], values: Mapping[str, Any]) -> list[Problem]:
    """The problems in a ValidationError, one per path, in the order pydantic found them.

    Args:
        error: what pydantic raised for `values`.
        cls: the class that was validated.
        values: the values that were given, to tell keys of the input from pydantic's own markers in a path.
    """
    by_path: dict[tuple[str | int, ...], list[Problem]] = {}
    for item in error.errors(include_url=False):
        path, models = _present(item["loc"], cls, values)
        if item["type"] == "union_tag_invalid":
            path = (*path, "kind")
        problem = Problem(path, _message(item), _nearest(item, models), item["type"])
        by_path.setdefault(path, []).append(problem)
    return [_merged(path, found) for path, found in by_path.items()]


def _merged(path: tuple[str | int, ...], found: Sequence[Problem]) -> Problem:
    # A union reports each of its members; the value failed once.
    heads = list(dict.fromkeys(p.message.split(", got ")[0] for p in found))
    tail = found[0].message.partition(", got ")[2]
    message = " or ".join([heads[0], *(_continued(h) for h in heads[1:])]) + (f", got {tail}" if tail else "")
    close = tuple(dict.fromkeys(name for p in found for name in p.nearest))
    return Problem(path, message, close, found[0].kind)


def _continued(head: str) -> str:
    return head.removeprefix("should be ")


def _present(loc: Sequence[str | int], cls: Any, values: Any) -> tuple[tuple[str | int, ...], list[Any]]:
    path: list[str | int] = []
    models: list[Any] = [cls]
    current = values
    for position, item in enumerate(loc):
        models = [model.class_of(current) if hasattr(model, "class_of") else model for model in models]
        last = position == len(loc) - 1
        name = _alias(item, current, models)
        if isinstance(current, Mapping) and name in current:
            path.append(name)
            models = _models_at(models, item)
            current = current[name]
        elif isinstance(item, int) and isinstance(current, list | tuple) and item < len(current):
            path.append(item)
            current = current[item]
        elif position == 0 or (last and any(item in getattr(m, "model_fields", {}) for m in models)):
            path.append(item)
            if not last:
                default = getattr(models[0], "model_fields", {}).get(item) if models else None
                models = _models_at(models, item)
                current = getattr(default, "default", None)
    return tuple(path), models


def _alias(item: str | int, current: Any, models: Sequence[Any]) -> str | int:
    if isinstance(current, Mapping) and item not in current:
        for model in models:
            other = getattr(model, "input_names", {}).get(item)
            if other in current:
                return str(other)
    return item


def _models_at(models: Iterable[Any], item: str | int) -> list[Any]:
    if isinstance(item, int):
        return list(models)
    found: list[Any] = []
    for model in models:
        info = getattr(model, "model_fields", {}).get(item)
        if info is not None:
            found += _models_in(info.annotation)
            for marker in info.metadata:
                found += getattr(marker, "models", ())
    # A key of a plain mapping leads to values of the types the mapping holds.
    return found or list(models)


def _models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _nearest(item: Any, models: Sequence[Any]) -> tuple[str, ...]:
    if item["type"] == "extra_forbidden":
        name = str(item["loc"][-1])
        chosen = [m for m in models if _kind_of(m) in item["loc"][:-1]] or models
        known = [n for m in chosen for n in (*m.model_fields, *getattr(m, "input_names", {}).values())]
        longer = tuple(dict.fromkeys(n for n in known if n.startswith(f"{name}_")))
        return longer or nearest(name, known)
    if item["type"] in ("literal_error", "enum", "union_tag_invalid") and "ctx" in item:
        expected = item["ctx"].get("expected") or item["ctx"].get("expected_tags") or ""
        given = item["ctx"].get("tag") or item["input"]
        known = [name for name in re.findall(r"'([^']*)'", expected) if name != "number"]
        return nearest(given, known) if isinstance(given, str) else ()
    close = item.get("ctx", {}).get("nearest")
    return tuple(close) if close else ()


def _kind_of(model: Any) -> Any:
    """What `kind` says in a table for this model; None where tables have none."""
    info = model.model_fields.get("kind")
    return info.default if info is not None else None


def _message(item: Any) -> str:
    kind = item["type"]
    if kind == "extra_forbidden":
        return "unknown name"
    if kind == "missing":
        return "a value is required"
    if kind == "union_tag_invalid":
        return f"unknown kind {item['ctx']['tag']!r}; the kinds are {_listed(item['ctx']['expected_tags'])}"
    if kind == "union_tag_not_found":
        return "the table needs a `kind`"
    if kind == "value_error":
        return str(item["ctx"]["error"]).replace("\n", "; ") if "ctx" in item else item["msg"]
    if kind == "path_type":
        return f"should be a path, got {_shown(item['input'])}"
    text: str = item["msg"]
    if text.startswith("Input "):
        text = text.removeprefix("Input ")
        return f"{text}, got {_shown(item['input'])}"
    return text


def _listed(quoted: str) -> str:
    return ", ".join(name for name in re.findall(r"'([^']*)'", quoted) if name != "number")


def _shown(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"an array {value.dtype}{list(value.shape)}"
    text = repr(value)
    if len(text) > 60:
        text = text[:57] + "..."
    return f"{text} ({type(value).__name__})"


def config_error(cls: type, problems: Sequence[Problem]) -> ConfigError:
    """One ConfigError that lists all `problems` of a `cls`."""
    name = cls.__name__
    if len(problems) == 1:
        only = problems[0]
        dot = "." if only.path and only.kind != "extra_forbidden" else ": "
        what = f"{name}{dot}{only.keypath}: {only.message}" if only.path else f"{name}: {only.message}"
        return ConfigError(what, nearest=only.nearest)
    lines = "\n".join(f"  - {problem}" for problem in problems)
    return ConfigError(f"{name}: {len(problems)} problems\n{lines}")
