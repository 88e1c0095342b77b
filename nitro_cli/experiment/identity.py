"""The program's identity: GraphConst fields compare by content, and no run knob is among them."""

from __future__ import annotations

from nitro_cli.errors import ConfigError

from .content import NoContentError, content_digest
from .experiment import KNOBS, Experiment
from .kinds import FieldKind

__all__ = ["check_graphconst", "check_knob_kinds", "graphconst_fingerprint"]


def check_graphconst(e: Experiment) -> None:
    """Refuse a GraphConst value that does not compare and hash by content.

    Such a value could not be told from another of the same content, in this process or in a resumed one.

    Raises:
        ConfigError: names the field, the part of its value, and the fix.
    """
    for name, value in e.graphconst_items().items():
        _digest(e, name, value)


def graphconst_fingerprint(e: Experiment) -> str:
    """The SHA-256 of the GraphConst fields by name and content, in any order; equal in another process.

    Raises:
        ConfigError: a value does not compare by content.
    """
    return content_digest({name: _digest(e, name, value) for name, value in e.graphconst_items().items()})


def _digest(e: Experiment, name: str, value: object) -> str:
    try:
        return content_digest(value)
    except NoContentError as error:
        where = f"{type(e).__name__}.{name}{error.path}"
        raise ConfigError(
            f"GraphConst field {name!r} holds a {type(error.part).__name__}, "
            "which does not compare and hash by content",
            where=where,
            why="a GraphConst value is part of the program's identity: two equal configurations must be seen as equal",
            fix="use numbers, strings, enums, tuples, frozen dataclasses, mappings or lists of those, or arrays; name "
            f"a function or a class by a string and look it up in the hook; or make {name!r} a Host field",
        ) from None


def check_knob_kinds(cls: type[Experiment]) -> None:
    """Refuse a run knob that a class marks GraphConst or Device.

    Raises:
        ConfigError: names every such knob and the fix.
    """
    marked = [(name, cls.__nitro_kinds__[name]) for name in KNOBS if cls.__nitro_kinds__[name] is not FieldKind.HOST]
    if not marked:
        return
    name, kind = marked[0]
    marker = "GraphConst" if kind is FieldKind.GRAPHCONST else "Device"
    listed = ", ".join(f"{n} ({k.value})" for n, k in marked)
    raise ConfigError(
        f"run knobs of {cls.__name__} are marked: {listed}",
        where=f"{cls.__name__}.{name}",
        why="the framework reads run knobs on the host and decides itself which of them a program depends on",
        fix=f"drop {marker}[...]: write `{name} = ...`; for a value that traced code reads, declare a field of "
        "another name",
    )
