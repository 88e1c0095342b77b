"""`nitro doctor`: whether everything a run needs is there."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import nitro_cli
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.tables import size, table
from nitro_cli.errors import ExitCode, NitroError
from nitro_cli.installation import DISTRIBUTION, EXTRAS

__all__ = ["run"]

_REQUIRED = (
    "jax", "jaxlib", "optax", "orbax-checkpoint", "pydantic", "numpy", "typer", "rich", "tomli-w", "filelock",
    "platformdirs",
)  # fmt: skip
_LITTLE_DISK = 2 * 10**9
_SCRIPT_BYTES = 2**20  # a launcher of Windows holds its script at its end


@dataclass(frozen=True)
class _Check:
    name: str
    status: str  # ok, note, FAILS
    detail: str
    fix: str | None = None


def run(output: Output) -> int:
    """Check the installation: packages, devices, program cache, disk, plugins.

    The exit code is 1 when something fails.
    """
    checks = [*_packages(), *_strangers(), *_command(), *_machine(), *_places(), *_plugins()]
    failing = [check for check in checks if check.status == "FAILS"]
    if output.json:
        rows = [{"name": c.name, "status": c.status.lower(), "detail": c.detail, "fix": c.fix} for c in checks]
        output.document(checks=rows, ok=not failing)
    else:
        output.show(table(["check", "", "found"], [[c.name, c.status, c.detail] for c in checks], fold=(2,)))
        for check in checks:
            if check.fix:
                output.complain_line(f"{check.name}: {check.fix}")
    return ExitCode.FAILED if failing else ExitCode.OK


def _packages() -> Iterator[_Check]:
    yield _Check("python", "ok", f"{platform.python_version()} at {sys.executable}")
    found: dict[str, str] = {}
    for name in (DISTRIBUTION, *_REQUIRED):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            ours = name == DISTRIBUTION
            yield _Check(
                name, "note" if ours else "FAILS", "not installed", _install() if ours else f"pip install {name}"
            )
    yield _Check("packages", "ok", ", ".join(f"{name} {version}" for name, version in found.items()))
    if found.get("jax", "").rpartition(".")[0] != found.get("jaxlib", "").rpartition(".")[0]:
        both = f"{found.get('jax')} and {found.get('jaxlib')}"
        yield _Check("jax and jaxlib", "FAILS", both, "pip install -U jax jaxlib")
    there = [extra for extra, modules in EXTRAS.items() if all(find_spec(module) for module in modules)]
    missing = [extra for extra in EXTRAS if extra not in there]
    yield _Check("extras", "ok", f"{', '.join(there) or 'none'}; not installed: {', '.join(missing) or 'none'}")


def _strangers() -> Iterator[_Check]:
    """Other distributions that put files where nitro's own lie: the last one installed wins, and either's removal
    breaks the other.
    """
    for distribution in metadata.distributions():
        try:
            name = distribution.metadata["Name"]
            owned = [] if name == DISTRIBUTION else [*_owned(distribution)]
        except Exception as error:  # the metadata is another package's, and may be anything
            yield _Check("metadata", "note", f"of a distribution cannot be read: {type(error).__name__}: {error}")
            continue
        if owned:
            detail = (
                f"{name} {distribution.version} owns {' and '.join(owned)} too: whichever was installed last is used"
            )
            yield _Check(
                f"distribution {name}", "note", detail, f"pip uninstall {name}; {_install()} --force-reinstall"
            )


def _command() -> Iterator[_Check]:
    """The program that the shell runs as `nitro`, where it is another one."""
    found = shutil.which("nitro")
    if found is None:
        return
    try:
        with open(found, "rb") as file:
            ours = b"nitro_cli" in file.read(_SCRIPT_BYTES)
    except OSError as error:
        yield _Check("command nitro", "note", f"{found} cannot be read: {error.strerror}")
        return
    if not ours:
        fix = f"write {Path(sys.executable).name} -m nitro_cli, or put {sysconfig.get_path('scripts')} first in PATH"
        yield _Check("command nitro", "note", f"{found} is another program", fix)


def _owned(distribution: metadata.Distribution) -> Iterator[str]:
    """Which of nitro's names a distribution brings."""
    files = distribution.files or []
    scripts = distribution.entry_points.select(group="console_scripts", name="nitro")
    if scripts or any(file.parent.name in ("bin", "Scripts") and file.stem == "nitro" for file in files):
        yield "the command nitro"
    top_level = (distribution.read_text("top_level.txt") or "").split()
    if "nitro_cli" in top_level or any(file.parts[0] == "nitro_cli" for file in files):
        yield "the import package nitro_cli"


def _install() -> str:
    """The command that installs this nitro."""
    checkout = Path(nitro_cli.__file__).parent.parent
    return (
        f"pip install {shlex.quote(str(checkout))}"
        if (checkout / "pyproject.toml").is_file()
        else f"pip install {DISTRIBUTION}"
    )


def _machine() -> Iterator[_Check]:
    try:
        import jax

        devices = jax.local_devices()
        total = float(jax.jit(lambda x: (x * 2).sum())(jax.numpy.ones(4)))
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        yield _Check("jax", "FAILS", why, "see the installation page of JAX")
        return
    kinds = ", ".join(sorted({device.device_kind for device in devices}))
    works = "computes" if total == 8.0 else f"computes wrongly: {total}"
    status = "ok" if total == 8.0 else "FAILS"
    yield _Check("jax", status, f"{jax.default_backend()}, {len(devices)} x {kinds}, {works}")
    if jax.default_backend() == "cpu" and Path("/proc/driver/nvidia/version").exists():
        yield _Check("gpu", "note", "there is an NVIDIA driver, and JAX uses the CPU", "pip install -U 'jax[cuda12]'")


def _places() -> Iterator[_Check]:
    from nitro_cli.programs import cache_info

    cache = cache_info()
    if cache.path is None:
        yield _Check("program cache", "note", "off")
    else:
        status = "ok" if cache.writable else "note"
        fix = None if cache.writable else "set NITRO_CACHE_DIR to a directory that can be written"
        yield _Check("program cache", status, f"{cache.path}, {cache.entries} programs, {size(cache.bytes)}", fix)
    here = Path("runs") if Path("runs").is_dir() else Path()
    free = shutil.disk_usage(here).free
    little = free < _LITTLE_DISK
    yield _Check("disk", "note" if little else "ok", f"{size(free)} free for {here.absolute()}")
    if not os.access(here, os.W_OK):
        fix = "run from another directory, or give --run-dir"
        yield _Check("disk", "FAILS", f"{here.absolute()} cannot be written", fix)


def _plugins() -> Iterator[_Check]:
    from nitro_cli.registry import list_experiments

    try:
        refs = list_experiments()
    except NitroError as error:
        yield _Check("experiments", "FAILS", error.what, error.fix)
        return
    good = [ref.name for ref in refs if ref.error is None]
    yield _Check("experiments", "ok", ", ".join(good) or "none found; `nitro new NAME` writes a project with one")
    for ref in refs:
        if ref.error is not None:
            yield _Check(f"experiment {ref.name}", "note", f"broken: {ref.error}")
