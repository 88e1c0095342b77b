"""The wire contract of an experiment, gathered from its hooks and checked before anything is built."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nitro_cli.errors import ConfigError, NitroError, nearest
from nitro_cli.experiment import Experiment, HookTable
from nitro_cli.export.spec import ExportSpec
from nitro_cli.text import message_of

__all__ = ["WireContract", "inputs_named", "wire_contract"]


@dataclass(frozen=True)
class WireContract:
    """What goes over the wire.

    Attributes:
        inputs: tensors a client sends, in order.
        outputs: tensors the program gives, in order; empty where they follow from `forward`, until it was traced.
        client_inputs, client_outputs: what the client sees around a postprocess; None where it is the same.
        postprocess: Python source shipped beside the program, or None.
    """

    inputs: tuple[ExportSpec, ...]
    outputs: tuple[ExportSpec, ...]
    client_inputs: tuple[ExportSpec, ...] | None
    client_outputs: tuple[ExportSpec, ...] | None
    postprocess: str | None
    declared: bool = True
    """Whether `export_inputs` gave the inputs; they follow from `forward` otherwise."""


@contextlib.contextmanager
def inputs_named(contract: WireContract) -> Iterator[None]:
    """While inside, where hooks are traced on the wire inputs, a failure names the hook that declares those.

    Raises:
        ConfigError: the hooks fail on the wire inputs.
    """
    try:
        yield
    except NitroError:
        raise
    except Exception as error:
        inputs = ", ".join(
            f"{spec.name} {spec.dtype}{[*spec.sized('batch')]}".replace("'", "") for spec in contract.inputs
        )
        lines = message_of(error).strip().splitlines() or [""]
        first = contract.inputs[0]
        if not contract.declared:
            raise ConfigError(
                f"the program cannot be traced with the inputs that forward takes, at another batch size: {inputs}",
                where="forward",
                why=f"{type(error).__name__}: {lines[0]}",
                fix="let forward take any number of samples, or define export_inputs",
            ) from error
        raise ConfigError(
            f"the program cannot be traced with the inputs that export_inputs declares: {inputs}",
            where="export_inputs",
            why=f"{type(error).__name__}: {lines[0]}",
            fix="a shape begins with the batch axis, whose size is a placeholder: one number per sample is "
            f"ExportSpec({first.name!r}, {str(first.dtype)!r}, (1, 1))",
        ) from error


def wire_contract(e: Experiment, followed: Callable[[], tuple[ExportSpec, ...]]) -> WireContract:
    """Ask the export hooks and check them against each other.

    Args:
        e: the experiment.
        followed: gives the inputs where no hook does.

    Raises:
        ConfigError: a name stands twice, a spec lacks what it needs, a preprocess comes without the inputs it takes, or
            a client spec without a postprocess.
    """
    where, hooks = type(e).__name__, HookTable(e)
    declared = hooks.has("export_inputs")
    if not declared and hooks.has("export_preprocess"):
        raise ConfigError(
            f"{where} has export_preprocess and no export_inputs",
            why="what the preprocess takes is no field of the batch",
            fix="define export_inputs, returning an ExportSpec for each argument of export_preprocess",
        )
    inputs = _specs(hooks, e, "export_inputs", complete=True) if declared else followed()
    outputs = _specs(hooks, e, "export_outputs", complete=False) if hooks.has("export_outputs") else ()
    for spec in inputs:
        if spec.source is not None:
            raise ConfigError(f"input {spec.name!r} has a source", where=where, why="only outputs come from somewhere")
    wire = {spec.name for spec in inputs}
    for spec in outputs:
        if spec.source is None and spec.name in wire:
            raise ConfigError(
                f"output {spec.name!r} has the name of an input and no source",
                where=where,
                fix=f"to send the input back: ExportSpec({spec.name!r}, source={spec.name!r})",
            )
    postprocess = hooks.call(e, "export_postprocess") if hooks.has("export_postprocess") else None
    if postprocess is not None:
        _check_source(postprocess, where)
    client: dict[str, tuple[ExportSpec, ...] | None] = {}
    for hook in ("export_client_inputs", "export_client_outputs"):
        client[hook] = _specs(hooks, e, hook, complete=True) if hooks.has(hook) else None
        if client[hook] is not None and postprocess is None:
            raise ConfigError(
                f"`{hook}` without `export_postprocess`",
                where=where,
                why="without a postprocess the client sees the program's own tensors",
                fix="return the source of a postprocess, or drop the hook",
            )
    client_inputs, client_outputs = client["export_client_inputs"], client["export_client_outputs"]
    return WireContract(inputs, outputs, client_inputs, client_outputs, postprocess, declared)


def _specs(hooks: HookTable, e: Experiment, hook: str, *, complete: bool) -> tuple[ExportSpec, ...]:
    where = f"{type(e).__name__}.{hook}"
    returned: Any = hooks.call(e, hook)
    if not isinstance(returned, Sequence) or isinstance(returned, str) or not returned:
        raise ConfigError(
            f"`{hook}` returned {returned!r}", where=where, fix="return a list of ExportSpec, one per tensor"
        )
    for spec in returned:
        if not isinstance(spec, ExportSpec):
            raise ConfigError(f"`{hook}` returned {type(spec).__name__} in its list", where=where, fix="use ExportSpec")
        if complete and (spec.dtype is None or spec.shape is None):
            raise ConfigError(
                f"ExportSpec {spec.name!r} needs a dtype and a shape",
                where=where,
                fix=f'ExportSpec({spec.name!r}, "float32", (1, ...))',
            )
        if hook in ("export_inputs", "export_outputs") and spec.shape is not None and -1 in spec.shape:
            raise ConfigError(
                f"ExportSpec {spec.name!r} has an axis of any size",
                where=where,
                why="only the batch axis of the program is open; -1 is for what a postprocess gives",
            )
    names = [spec.name for spec in returned]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"`{hook}` names {', '.join(twice)} more than once", where=where)
    return tuple(returned)


def _check_source(source: Any, where: str) -> None:
    if not isinstance(source, str):
        raise ConfigError(
            f"`export_postprocess` returned {type(source).__name__}", where=where, fix="return Python source as text"
        )
    try:
        code = compile(source, "postprocess.py", "exec")
    except SyntaxError as error:
        raise ConfigError(
            "the postprocess is not Python", where=f"postprocess.py, line {error.lineno}", why=str(error.msg)
        ) from None
    if "postprocess" not in code.co_names:
        raise ConfigError(
            "the postprocess defines no function `postprocess`",
            where=where,
            fix="def postprocess(outputs): ... return a mapping of names to arrays",
            nearest=nearest("postprocess", code.co_names),
        )
