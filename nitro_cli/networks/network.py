"""The family of networks, and the catalogue that holds them."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from nitro_cli.errors import ConfigError, nearest
from nitro_cli.experiment import BatchField, Declared, FieldKind, Hook, Part, RowSpec
from nitro_cli.text import Catalogue

__all__ = ["NETWORKS", "Network", "register_network"]

NETWORKS: Catalogue[type[Network]] = Catalogue(
    "network",
    "nitro.networks",
    shipped={
        "conv": "nitro_cli.networks.conv:Conv",
        "mlp": "nitro_cli.networks.mlp:MLP",
        "moe_mlp": "nitro_cli.networks.moe_mlp:MoEMLP",
        "transformer": "nitro_cli.networks.transformer:Transformer",
        "vit": "nitro_cli.networks.vit:ViT",
    },
)
"""The networks by (id, version): nitro's own, those of `register_network`, and those of the entry points
`nitro.networks`."""

_DEFAULT_INPUTS = ("x",)
_SPEC = re.compile(r"([a-z]\w*)\[\s*(\d+(?:\s*,\s*\d+)*)?\s*\]")


class Network(Part):
    """A part that says what a model is, and supplies `build_model` and `forward`.

    A network of one's own is a subclass with `build`. The forward calls what that made with the inputs in their order;
    optional inputs that the batch has, and its own Device fields that are set, go by keyword.

    In TOML a field of this type is a table with the network's `kind`.
    """

    catalogue: ClassVar[Catalogue[Any] | None] = NETWORKS
    precedence: ClassVar[int] = 20

    optional_inputs: ClassVar[tuple[str, ...]] = ()
    """Batch fields that the model takes by keyword where the batch has them."""

    inputs: tuple[str, ...] | None = None
    """The batch fields that it takes, in order; unset, those that the data set declares, else `x`."""

    shapes: dict[str, str] | None = None
    """What a row of each input is, such as `float32[28, 28, 1]`; unset, as the first batch has it."""

    outputs: int | None = None
    """The width of the output; unset, what the task says."""

    @abstractmethod
    def build(self, rng: Any, shapes: Mapping[str, RowSpec], outputs: int | None) -> Any:
        """The model, as `build_model` returns it.

        Args:
            rng: key for its first parameters.
            shapes: one row of each input, by the name of the batch field.
            outputs: the width of the output; None where nothing says it.
        """

    def fills(self, data: Mapping[str, Any], batch: Mapping[str, RowSpec], declared: Declared) -> dict[str, Any]:
        """Inputs, their shapes and the width of the output, where they are open; what is written is compared."""
        inputs = self.inputs or declared.inputs or _DEFAULT_INPUTS
        missing = next((name for name in inputs if batch and name not in batch), None)
        if missing is not None:
            raise ConfigError(
                f"the network takes {missing!r}, which the batch has not",
                where=self._place("inputs"),
                why=f"the batch has: {', '.join(batch)}",
                nearest=nearest(missing, batch),
                fix=f"inputs = {list(batch)[:1]!r}",
            )
        found: dict[str, Any] = {"inputs": inputs}
        if batch:
            found["shapes"] = {name: _text(batch[name]) for name in inputs}
            self._compare("shapes", found["shapes"], "the batch has")
        if declared.outputs is not None:
            found["outputs"] = declared.outputs
            self._compare("outputs", declared.outputs, "the task needs")
        return {name: value for name, value in found.items() if getattr(self, name) is None}

    def hooks(self) -> Mapping[str, Hook]:
        """What follows from it."""
        fields = {name: BatchField((name,)) for name in self._inputs}
        fields |= {name: BatchField((name,), required=False) for name in self.optional_inputs}
        return {"build_model": Hook(self._build_model), "forward": Hook(self._forward, fields)}

    def required_outputs(self, outputs: int | None) -> int:
        """The width of the output, for a network that cannot be without.

        Raises:
            ConfigError: nothing says it.
        """
        if outputs is None:
            raise ConfigError(
                f"nothing says how wide the output of {self.label} is",
                where=self._place("outputs"),
                fix="write outputs, or num_classes (num_targets) of the task",
            )
        return outputs

    def _build_model(self, rng: Any) -> Any:
        if self.shapes is None or any(name not in self.shapes for name in self._inputs):
            raise ConfigError(
                f"the shapes of the inputs of {self.label} are not known",
                where=self._place("shapes"),
                why="they are read from the first batch, and there is no data",
                fix="give weights= the checkpoint, which holds them, or write shapes",
            )
        return self.build(rng, {name: _spec(text) for name, text in self.shapes.items()}, self.outputs)

    def _forward(self, model: Any, params: Any, state: Any, **fields: Any) -> Any:
        inputs = [fields.pop(name) for name in self._inputs]
        return model(params, state, *inputs, **fields, **self._rates())

    def _rates(self) -> dict[str, Any]:
        """The Device fields that are set."""
        kinds = type(self).__nitro_part_kinds__
        held = {name: getattr(self, name) for name, kind in kinds.items() if kind is FieldKind.DEVICE}
        return {name: value for name, value in held.items() if value is not None}

    @property
    def _inputs(self) -> tuple[str, ...]:
        return self.inputs or _DEFAULT_INPUTS

    def _place(self, field: str) -> str:
        return f"network.{field}"

    def _compare(self, field: str, found: Any, told: str) -> None:
        written = getattr(self, field)
        if written is not None and written != found and not (field == "shapes" and _same(written, found)):
            raise ConfigError(
                f"{self.label} has {field} = {written!r}, and {told} {found!r}",
                where=self._place(field),
                fix=f"leave {field} out, where it follows from the data",
            )


def _same(written: Mapping[str, str], found: Mapping[str, str]) -> bool:
    return written.keys() == found.keys() and all(_spec(written[name]) == _spec(found[name]) for name in found)


def _text(spec: RowSpec) -> str:
    return f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"


def _spec(text: str) -> RowSpec:
    """A row from `float32[28, 28, 1]`.

    Raises:
        ConfigError: it is none.
    """
    found = _SPEC.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is no shape of a row", where="network.shapes", fix="write it like float32[28, 28]")
    sizes = [] if found[2] is None else [int(size) for size in found[2].split(",")]
    return RowSpec(tuple(sizes), found[1])


register_network = NETWORKS.register
"""`@register_network(id, version=1)`: a class decorator that makes a network known as `{ kind = id }`."""
