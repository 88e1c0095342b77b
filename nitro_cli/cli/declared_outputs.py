"""What the command line says of outputs: their kind, the target, the ids, the names of the classes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nitro_cli.errors import ConfigError

if TYPE_CHECKING:
    from nitro_cli.analysis import Probabilities
    from nitro_cli.experiment import Experiment
    from nitro_cli.run import OutputMeaning

__all__ = ["DeclaredOutputs", "OutputKind", "with_declared_outputs"]

_PANEL = "What the outputs mean"


class OutputKind(StrEnum):
    """What outputs are."""

    CATEGORICAL = "categorical"
    BERNOULLI = "bernoulli"
    CONTINUOUS = "continuous"


def _option(name: str, metavar: str, help: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help, rich_help_panel=_PANEL, show_default=False)


_OPTIONS: dict[str, Any] = {
    "kind": Annotated[
        OutputKind | None,
        typer.Option(
            "--kind",
            help="Logits of classes, logits of labels that do not exclude each other, or values.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ],
    "logits": Annotated[str | None, _option("--logits", "NAME", "Output to read, where there are several.")],
    "target_field": Annotated[str | None, _option("--target", "FIELD", "What was to be predicted.")],
    "id_field": Annotated[str | None, _option("--id", "FIELD", "Names of the samples; positions by default.")],
    "labels": Annotated[str | None, _option("--labels", "A,B,..", "Names of the classes, in order.")],
    "class_axis": Annotated[int | None, _option("--class-axis", "N", "Axis of the classes; the last by default.")],
    "ignore_index": Annotated[int | None, _option("--ignore-index", "N", "Target of what is not judged.")],
}


@dataclass(frozen=True)
class DeclaredOutputs:
    """What was said; None where nothing was.

    Args:
        kind: what the outputs are.
        logits: the path of the output to read.
        target_field: the field of the targets.
        id_field: the field of the ids.
        labels: the names of the classes, separated by commas.
        class_axis: the axis of the classes.
        ignore_index: the target of what is not judged.
    """

    kind: OutputKind | None = None
    logits: str | None = None
    target_field: str | None = None
    id_field: str | None = None
    labels: str | None = None
    class_axis: int | None = None
    ignore_index: int | None = None

    def spec(self) -> Probabilities | None:
        """What the outputs mean; None where no kind was given.

        Raises:
            ConfigError: labels or an axis without a kind, or labels that do not name each class once.
        """
        from nitro_cli.analysis import Probabilities

        if self.kind is None:
            for name, value in (("--labels", self.labels), ("--class-axis", self.class_axis)):
                if value is not None:
                    raise ConfigError(f"{name} without --kind", fix="say what the outputs are: --kind categorical")
            return None
        names = None if self.labels is None else tuple(label.strip() for label in self.labels.split(","))
        return Probabilities(self.kind.value, -1 if self.class_axis is None else self.class_axis, names)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the data that were named."""
        return tuple(name for name in (self.target_field, self.id_field) if name is not None)

    def meaning(self, e: Experiment) -> OutputMeaning:
        """What the outputs of an experiment mean: what was said, and else what its task says.

        Raises:
            ConfigError: labels or an axis without a kind, or labels that do not name each class once.
        """
        from nitro_cli.run import OutputMeaning, meaning_of

        own, spec = meaning_of(e), self.spec()
        made = OutputMeaning(spec) if own is None else own if spec is None else replace(own, spec=spec, decode=None)
        said: dict[str, Any] = {"output": self.logits, "target": self.target_field, "ids": self.id_field}
        said["ignore_index"] = self.ignore_index
        return replace(made, **{name: value for name, value in said.items() if value is not None})

    def needed(self, e: Experiment) -> OutputMeaning:
        """The same.

        Raises:
            ConfigError: nothing says it.
        """
        made = self.meaning(e)
        if made.spec is None:
            raise ConfigError(
                "nothing says what the outputs mean",
                fix="give the experiment a task, or declare it: --kind categorical (or bernoulli, continuous), and "
                "--target FIELD",
            )
        return made


def with_declared_outputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of `DeclaredOutputs`, which it takes as its keyword `declared`."""
    signature = inspect.signature(function, eval_str=True)
    own = [p for p in signature.parameters.values() if p.name != "declared"]
    rest = [p for p in own if p.kind is inspect.Parameter.VAR_KEYWORD]
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(name, kind, default=None, annotation=hint) for name, hint in _OPTIONS.items()]

    @functools.wraps(function)
    def called(*args: Any, **values: Any) -> Any:
        declared = DeclaredOutputs(**{name: values.pop(name, None) for name in _OPTIONS})
        return function(*args, declared=declared, **values)

    parameters = [*(p for p in own if p not in rest), *added, *rest]
    setattr(called, "__signature__", signature.replace(parameters=parameters))  # noqa: B010 - unknown to mypy
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    del called.__wrapped__
    return called
