"""`Optim`: a part that says which optimizer trains which parameters, by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from nitro_cli.errors import ConfigError, nearest
from nitro_cli.experiment import Hook, Host, Part, StrictModel
from nitro_cli.optim.factories import is_number, own_decay
from nitro_cli.text import Catalogue, path_matches, path_text

__all__ = ["NamedFactory", "Optim", "OptimGroup", "OptimRule"]

OWN_GROUPS = ("default", "frozen")


@dataclass(frozen=True)
class NamedFactory:
    """An optimizer that a group is to have: what the catalogue calls it, its options, and its L2 coefficient."""

    name: str
    version: int
    options: Mapping[str, Any]
    l2: float


def _with_options(table: Any, fields: Iterable[str]) -> Any:
    """A table whose further keys are options of the factory."""
    if not isinstance(table, Mapping):
        return table
    options = {name: value for name, value in table.items() if name not in fields}
    if "learning_rate" in options:
        raise ValueError("learning_rate is a field of the experiment, and each group's rate a ratio to it")
    held = table.get("options", {})
    if not options or not isinstance(held, Mapping):
        return table
    return {**{name: value for name, value in table.items() if name in fields}, "options": {**held, **options}}


def _fixed(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if not is_number(value)}


class OptimRule(StrictModel):
    """Another optimizer for a group: its name, and options of its own."""

    name: str
    """An optimizer that `nitro list optimizers` shows."""

    version: int = Field(default=1, ge=1)
    """Its version."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its factory; each may stand beside `name` as well."""

    @model_validator(mode="before")
    @classmethod
    def _beside(cls, table: Any) -> Any:
        return _with_options({"name": table} if isinstance(table, str) else table, cls.model_fields)


class OptimGroup(StrictModel):
    """A row of `groups`: the parameters that a pattern matches, and what is theirs."""

    match: str = Field(min_length=1)
    """A pattern of paths: `*` and `?` within a level, `**` across levels; a tree's path means all below it."""

    name: str | None = None
    """The group's name, as in `opt.<name>.learning_rate`; None is the pattern with dots for slashes."""

    learning_rate: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The group's base rate; None is that of the experiment."""

    scale: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The group's base rate as a multiple of the experiment's, in the place of `learning_rate`."""

    weight_decay: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The group's decay; None is that of all."""

    rule: OptimRule | None = None
    """The group's optimizer, as text or a table; None is that of all."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.learning_rate is not None and self.scale is not None:
            raise ValueError("learning_rate and scale both say the rate: give one")
        try:
            path_matches(self.match, "")
        except re.error as error:
            raise ValueError(f"match is no pattern: {error}") from None
        if "/" in self.group or self.group in (*OWN_GROUPS, ""):
            raise ValueError(f"the name of a group has no '/' and is none of {', '.join(OWN_GROUPS)}")
        return self

    @property
    def group(self) -> str:
        """The name of the group."""
        return self.match.replace("/", ".") if self.name is None else self.name


class Optim(Part):
    """Which optimizer trains which parameters: `Optim("adamw", b1=0.95, groups=[...])`.

    Names are the factories of optax and optax.contrib, and what `register_optimizer` registered. Numeric options are
    traced: another value compiles nothing, and a schedule reaches them by their names.
    """

    catalogue: ClassVar[Catalogue[Any] | None] = None
    open_names: ClassVar[bool] = True

    name: str
    """An optimizer that `nitro list optimizers` shows."""

    version: int = Field(default=1, ge=1)
    """Its version."""

    l2: Host[float] = Field(default=0.0, ge=0, allow_inf_nan=False)
    """`l2 * w` is added to the clipped gradient of each parameter that decays."""

    decay: Literal["matrices", "all"] = "matrices"
    """Which parameters decay: all but biases and the scales of norms, or all."""

    groups: Host[tuple[OptimGroup, ...]] = ()
    """Rows: of those whose pattern matches a parameter the first one counts, whole."""

    options: Host[dict[str, Any]] = Field(default_factory=dict)
    """Arguments of the factory; each may stand beside `name` as well."""

    def __init__(self, name: str | None = None, /, **values: Any) -> None:
        given: dict[str, Any] = {} if name is None else {"name": name}
        super().__init__(**given, **values)

    @model_validator(mode="before")
    @classmethod
    def _beside(cls, table: Any) -> Any:
        if isinstance(table, str):
            raise ValueError(f'should be a table: {{ name = "{table}" }}')
        return _with_options(table, cls.model_fields)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [row.group for row in self.groups]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two rows of groups are called {twice}: give one of them a name")
        return self

    @property
    def label(self) -> str:
        """The optimizer's name."""
        return self.name

    def structure(self) -> dict[str, Any]:
        """What a resume must find again: all but the numbers."""
        rows = [
            {"match": row.match, "name": row.group}
            | ({} if row.rule is None else {"rule": [row.rule.name, row.rule.version, _fixed(row.rule.options)]})
            for row in self.groups
        ]
        named = {"name": self.name, "version": self.version, "options": _fixed(self.options)}
        return {**named, "decay": self.decay, "groups": rows}

    def hooks(self) -> Mapping[str, Hook]:
        """`optimizer` and the groups' decay; with rows the groups and their rates; `no_decay` where all decays."""
        found = {
            "optimizer": Hook(self.optimizer),
            "group_weight_decay": Hook(self.group_weight_decay, with_experiment=True),
        }
        if self.groups:
            found["param_group"] = Hook(self.param_group)
            found["group_learning_rate"] = Hook(self.group_learning_rate, with_experiment=True)
        if self.decay == "all":
            found["no_decay"] = Hook(self.no_decay)
        return found

    def optimizer(self, group: str) -> NamedFactory:
        """The optimizer of a group."""
        rule = self._rule(group)
        return NamedFactory(rule.name, rule.version, rule.options, self.l2)

    def param_group(self, path: tuple[str | int, ...]) -> str:
        """The group of the first row that matches; `default` where none does."""
        text = path_text(path)
        return next((row.group for row in self.groups if path_matches(row.match, text)), OWN_GROUPS[0])

    def group_learning_rate(self, e: Any, group: str) -> float:
        """The row's rate, or the experiment's times the row's scale."""
        row = self._row(group)
        if row is not None and row.learning_rate is not None:
            return row.learning_rate
        rate: float = e.learning_rate
        return rate if row is None or row.scale is None else rate * row.scale

    def group_weight_decay(self, e: Any, group: str) -> float:
        """The row's decay, or that of the options, the experiment, the factory.

        Raises:
            ConfigError: the options and the experiment both have one.
        """
        row, rule = self._row(group), self._rule(group)
        if row is not None and row.weight_decay is not None:
            return row.weight_decay
        given: Any = rule.options.get("weight_decay")
        if given is not None and e.weight_decay:
            raise ConfigError(
                f"the group {str.__str__(group)!r} has two weight decays",
                where=f"weight_decay = {given:g} of {rule.name}, weight_decay = {e.weight_decay:g} of the experiment",
                why="a group decays by one number",
                fix="leave one of them out; a row of groups may have its own",
            )
        if given is not None:
            return float(given)
        return float(e.weight_decay or own_decay(rule.name, rule.version))

    def no_decay(self, path: tuple[str | int, ...], leaf: Any) -> bool:
        """No parameter is left out."""
        return False

    def check_paths(self, paths: Iterable[str]) -> None:
        """Refuse a row that matches no parameter.

        Raises:
            ConfigError: names the row and paths near its pattern.
        """
        known = list(paths)
        trees = {path[:at] for path in known for at, letter in enumerate(path) if letter == "/"}
        for number, row in enumerate(self.groups):
            if not any(path_matches(row.match, path) for path in known):
                plain = "/".join(level for level in row.match.split("/") if level != "**")
                raise ConfigError(
                    f"no parameter matches {row.match!r}",
                    where=f"optim.groups[{number}].match",
                    why=f"the parameters are {', '.join(known[:8])}{', ...' if len(known) > 8 else ''}",
                    nearest=nearest(plain, [*known, *trees]),
                )

    def _row(self, group: str) -> OptimGroup | None:
        # As plain text: the framework's groups tell which names they are compared with.
        return {row.group: row for row in self.groups}.get(str.__str__(group))

    def _rule(self, group: str) -> OptimRule:
        row = self._row(group)
        if row is not None and row.rule is not None:
            return row.rule
        return OptimRule(name=self.name, version=self.version, options=self.options)
