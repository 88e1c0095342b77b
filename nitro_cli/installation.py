"""What is installed: nitro's own distribution and its version, and the libraries that its extras bring."""

from __future__ import annotations

import functools
import importlib
import re
import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from nitro_cli.errors import MissingExtraError

__all__ = [
    "DISTRIBUTION",
    "EXTRAS",
    "extra_requirements",
    "import_extra",
    "install_command",
    "nitro_version",
    "version_of",
]

DISTRIBUTION = "jax-nitro"
"""The name of the distribution: `nitro-cli` is another project on the public index."""

EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "flax": ("flax",),
        "equinox": ("equinox",),
        "plot": ("matplotlib",),
        "projection": ("sklearn",),
        "pandas": ("pandas",),
        "polars": ("polars",),
        "arrow": ("pyarrow",),
        "sklearn": ("sklearn",),
        "text": ("tokenizers",),
        "savedmodel": ("tensorflow",),
        "onnx": ("onnx", "onnxruntime"),
        "tensorboard": ("tensorboardX",),
        "mlflow": ("mlflow",),
        "wandb": ("wandb",),
        "trackio": ("trackio",),
    }
)
"""The modules that each extra of a user brings."""


@functools.cache
def version_of(distribution: str) -> str:
    """The installed version of a distribution, or "unknown"."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"


def nitro_version() -> str:
    """The version of nitro that is running, or "unknown" where it is not installed."""
    return version_of(DISTRIBUTION)


def __getattr__(name: str) -> str:
    if name == "__version__":
        return nitro_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def extra_requirements(extra: str) -> tuple[str, ...]:
    """What an extra asks for, such as `matplotlib>=3.9`: from the distribution's metadata, and where that does not
    tell (nitro is not installed), the names of its modules.
    """
    from importlib import metadata

    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        lines = []
    marker = re.compile(rf"\bextra\s*==\s*[\"']{re.escape(extra)}[\"']")
    found = [line.partition(";") for line in lines]
    return tuple(wanted.strip() for wanted, _, where in found if marker.search(where)) or EXTRAS[extra]


def install_command(module: str) -> str | None:
    """The command that installs what brings a top-level module, such as `pip install 'flax>=0.10.7'`; None where no
    extra of nitro brings it.
    """
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    return None if extra is None else f"pip install {' '.join(map(shlex.quote, extra_requirements(extra)))}"


def import_extra(module: str, *, use: str, where: str | None = None) -> Any:
    """Import a module that one of the extras brings.

    Args:
        module: the module, such as `matplotlib.figure`; its first part is in `EXTRAS`.
        use: what needs it, as a message begins: `Logging to MLflow`.
        where: the place of the setting that asked for it.

    Raises:
        MissingExtraError: it is not installed; the fix names the libraries themselves, which is right wherever nitro
            came from.
    """
    top = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as err:
        if err.name != top:
            raise
        raise MissingExtraError(
            f"{use} needs the package {top}, which is not installed", where=where, fix=install_command(top)
        ) from err
