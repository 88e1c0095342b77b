"""The hooks an experiment writes, and what each does when it is not written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from nitro_cli.errors import HookError

__all__ = [
    "HOOKS",
    "REQUIRED_HOOKS",
    "Hooks",
    "default_no_decay",
    "sanitize_metric_name",
]

REQUIRED_HOOKS = ("build_data", "build_model", "forward", "loss")

HOOKS = (
    *REQUIRED_HOOKS,
    "derive",
    "prepare",
    "train_metrics",
    "metrics",
    "finalize_metrics",
    "metrics_residency",
    "evaluate_split",
    "check_batch",
    "optimizer",
    "param_group",
    "group_learning_rate",
    "group_weight_decay",
    "decay_anchor",
    "no_decay",
    "schedules",
    "grad_rule",
    "no_perturb",
    "adaptive_perturb",
    "components",
    "train_step",
    "setup_optimizers",
    "manual_training",
    "checkpoint_filename",
    "export_inputs",
    "export_outputs",
    "export_head",
    "export_preprocess",
    "export_postprocess",
    "export_client_inputs",
    "export_client_outputs",
    "export_provenance_extra",
    "export_view",
    "visualize",
    "save_figure",
)
"""Every hook; a field of one of these names is refused."""

ParamPath = tuple[str | int, ...]
"""The place of a leaf in a parameter tree: its keys from the top."""


_BIASES_AND_SCALES = frozenset({"b", "beta", "bias", "biases", "gamma", "offset", "scale", "scales"})
_NORM = re.compile(r"norm|^ln(_|\d|$)")


def default_no_decay(path: ParamPath, leaf: Any) -> bool:
    """Whether weight decay leaves this parameter out: biases and the scales of norms.

    Every leaf of rank 1 or less; and of any rank what its library calls so: `bias` and `scale` (flax linen, flax nnx,
    equinox, and beside them `b`, `beta`, `gamma`, `offset` and what ends in `_bias` or `_scale`), and the `weight` of a
    norm of equinox, which is known by the name of the layer (`norm1`, `layer_norm`, `ln_1`).

    Args:
        path: the keys of the leaf from the top of the tree.
        leaf: anything with a shape.
    """
    if len(leaf.shape) <= 1:
        return True
    names = [str(key).lower() for key in path if not str(key).isdigit()]
    last, layer = (["", "", *names][-1], ["", "", *names][-2])
    if last in _BIASES_AND_SCALES or last.endswith(("_bias", "_scale")):
        return True
    return last in ("w", "weight") and _NORM.search(layer) is not None


def sanitize_metric_name(name: str) -> str:
    """A metric's name as part of a file name: every character but letters, digits, `_`, `.` and `-` becomes `_`."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", name)


class Hooks:
    """The hooks with their defaults. The four required ones, and those whose absence means something, have none."""

    if TYPE_CHECKING:
        # Not methods: each experiment declares its own keywords, which no common signature could allow.
        build_data: ClassVar[Callable[..., Any]]
        build_model: ClassVar[Callable[..., Any]]
        prepare: ClassVar[Callable[..., Any]]
        forward: ClassVar[Callable[..., Any]]
        loss: ClassVar[Callable[..., Any]]
        train_metrics: ClassVar[Callable[..., Any]]
        metrics: ClassVar[Callable[..., Any]]
        evaluate_split: ClassVar[Callable[..., Any]]
        check_batch: ClassVar[Callable[..., Any]]
        train_step: ClassVar[Callable[..., Any]]
        setup_optimizers: ClassVar[Callable[..., Any]]
        visualize: ClassVar[Callable[..., Any]]
        grad_rule: ClassVar[Callable[..., Any]]
        export_inputs: ClassVar[Callable[..., Any]]
        export_outputs: ClassVar[Callable[..., Any]]
        export_head: ClassVar[Callable[..., Any]]
        export_preprocess: ClassVar[Callable[..., Any]]
        export_postprocess: ClassVar[Callable[..., Any]]
        export_client_inputs: ClassVar[Callable[..., Any]]
        export_client_outputs: ClassVar[Callable[..., Any]]
        export_provenance_extra: ClassVar[Callable[..., Any]]
        export_view: ClassVar[Callable[..., Any]]
        learning_rate: float
        weight_decay: float

    optimizer: ClassVar[Callable[..., Any] | None] = None
    """`optimizer(self, group)` returns an optax factory, `optimizer(self, group, hp)` the chain; None is RAdam."""

    def derive(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Field values computed from the data, merged into the fields; by default none."""
        return {}

    def finalize_metrics(self, acc: Mapping[str, Any], split: str) -> Mapping[str, Any]:
        """The reported values of a split from the combined ones; by default as they are."""
        return acc

    def metrics_residency(self, hook: str) -> Literal["host", "device"]:
        """Where a metrics hook runs: `train_metrics` on the device, `metrics` on the host.

        `train_metrics` on the host runs for every micro-batch of every step, whether or not the step is logged.
        """
        return "device" if hook == "train_metrics" else "host"

    def param_group(self, path: ParamPath) -> str:
        """The group of the parameter at `path`; `"frozen"` trains nothing."""
        return "default"

    def group_learning_rate(self, group: str) -> float:
        """The base learning rate of a group; only its ratio to `learning_rate` counts under a schedule."""
        return self.learning_rate

    def group_weight_decay(self, group: str) -> float:
        """The decoupled weight decay of a group."""
        return self.weight_decay

    def decay_anchor(self, group: str) -> Any:
        """What a group decays toward: `"zero"`, `"w0"` (the parameters as `build_model` returned them) or a tree."""
        return "zero"

    def no_decay(self, path: ParamPath, leaf: Any) -> bool:
        """Whether weight decay leaves the parameter at `path` out; by default biases and the scales of norms."""
        return default_no_decay(path, leaf)

    def schedules(self) -> Mapping[str, Any]:
        """What varies with the optimizer step: key to a factory of the horizon, an optax schedule or a number."""
        return {}

    if not TYPE_CHECKING:

        def grad_rule(self):
            """The gradient rule, such as `SAM(0.05)`; None is the plain gradient.

            As `grad_rule(self, hp)` it is called for every step, on the host, with the step's scheduled fields of the
            rule (`hp.rho`) and the values of the schedules `bind.<name>` (`hp.bind.<name>`).
            """
            return None

    def no_perturb(self, path: ParamPath, leaf: Any) -> bool:
        """Whether a perturbing gradient rule leaves the parameter at `path` alone."""
        return False

    def adaptive_perturb(self, path: ParamPath, leaf: Any) -> bool:
        """Whether ASAM scales the perturbation of the parameter at `path` by its size: all but biases and scales."""
        return not default_no_decay(path, leaf)

    def manual_training(self) -> bool:
        """Whether a `train_step` is used; asked only where there is one, and by default it is."""
        return True

    def components(self) -> Mapping[str, Any]:
        """What has a state of its own beside the arrays of training, by name; asked once per handle.

        An object with `state()`, JSON values and arrays, and `load_state(state, version)`. It may have `version = 1`,
        `required = True` (a resume needs it on both sides) and `check_state(state, version)`, which returns problems
        and touches nothing. Every checkpoint keeps all, a resume gives them back.
        """
        return {}

    def checkpoint_filename(self, *, epoch: int, step: int, metric: str | None, score: float | None) -> str:
        """The name of a checkpoint, such as `epoch-0006-step-4500-loss=0.0416831`."""
        name = f"epoch-{epoch:04d}-step-{step}"
        return name if score is None or metric is None else f"{name}-{sanitize_metric_name(metric)}={score:.6g}"

    def save_figure(self, figure: Any, stem: str) -> str:
        """Write what `visualize` returned and give the path back; by default a matplotlib figure as PNG."""
        if not hasattr(figure, "savefig"):
            raise HookError(
                f"visualize returned a {type(figure).__name__}, which has no savefig",
                where=f"{type(self).__name__}.save_figure",
                why="without a save_figure of your own the figure must be matplotlib's",
                fix="return a matplotlib Figure from visualize, or define save_figure(self, figure, stem)",
            )
        path = f"{stem}.png"
        figure.savefig(path)
        return path
